"""A layer that wins over a stronger one, a misspelt key that is ignored, a value that came from nowhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.messages import Catalogue, Language
from launcher.options.layers import SYSTEM_FILE, config_files, user_file
from launcher.options.parse import Options, parse
from launcher.options.print_config import run_print_config
from launcher.options.table import BY_VARIABLE, OPTIONS, OTHER_VARIABLES


def files(folder: Path, system: str = "", user: str = "") -> list[Path]:
    places = [folder / "system.toml", folder / "user.toml"]
    for place, text in zip(places, (system, user), strict=True):
        if text:
            place.write_text(text, encoding="utf-8")
    return places


def options(folder: Path, *words: str, system: str = "", user: str = "", **environ: str) -> Options:
    return parse(words, environ, files(folder, system, user))


def test_each_layer_wins_over_the_one_below(tmp_path: Path) -> None:
    layers = {"system": 'context = "4K"', "user": "context = 8192"}
    assert options(tmp_path).context is None
    assert options(tmp_path, system=layers["system"]).context == 4096
    assert options(tmp_path, **layers).context == 8192
    assert options(tmp_path, **layers, MINDNANO_CONTEXT="16K").context == 16384
    found = options(tmp_path, "--context", "32K", **layers, MINDNANO_CONTEXT="16K")
    assert found.context == 32768
    assert found.settings["context"].origin == "command line"


def test_origins_name_the_layer(tmp_path: Path) -> None:
    found = options(tmp_path, "--force", system='kv-cache = "fp16"', user="threads = 2", MINDNANO_THINK="off")
    origins = {name: found.settings[name].origin for name in ("force", "kv-cache", "threads", "think", "port")}
    assert origins == {
        "force": "command line",
        "kv-cache": str(tmp_path / "system.toml"),
        "threads": str(tmp_path / "user.toml"),
        "think": "MINDNANO_THINK",
        "port": "default",
    }
    assert (found.force, found.kv_cache, found.threads, found.think) == (True, "fp16", 2, False)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("kv_cache = 'bf16'", "did you mean kv-cache?"),
        ("contxt = 1", "did you mean context?"),
        ("prompt = 'x'", "no option 'prompt'"),
        ("zzzz = 1", "--print-config"),
        ("context = true", "no value for it"),
        ("context = [1]", "no value for it"),
        ("context = 'x'", "not a number of tokens"),
        ("force = 'yes'", "neither true nor false"),
        ("temperature = inf", "not between 0 and 100"),
        ("[server]\nport = 1", "no option 'server'"),
        ("context = ", "not valid TOML"),
        ("a = '\udcff'", "not valid TOML"),
    ],
)
def test_wrong_file_is_an_error_that_names_the_place(tmp_path: Path, text: str, part: str) -> None:
    place = tmp_path / "user.toml"
    place.write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(UsageError) as caught:
        parse([], {}, [place])
    assert str(place) in caught.value.message
    assert part in caught.value.message + caught.value.hint


@pytest.mark.parametrize(
    ("name", "value", "part"),
    [
        ("MINDNANO_KV_CASHE", "bf16", "did you mean MINDNANO_KV_CACHE?"),
        ("MINDNANO_PROMPT", "x", "is no option"),
        ("MINDNANO_PORT", "x", "MINDNANO_PORT: 'x' is not a whole number"),
        ("MINDNANO_FORCE", "maybe", "neither true nor false"),
    ],
)
def test_wrong_variable_is_an_error(name: str, value: str, part: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse([], {name: value}, ())
    assert part in caught.value.message + caught.value.hint


def test_file_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        parse([], {}, [tmp_path])


def test_pipe_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"
    os.mkfifo(path)
    command = [sys.executable, "-m", "launcher", "--version"]
    environ = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path / "home")}
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "mindnano").symlink_to(tmp_path)
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2
    assert "is a pipe, expected a file" in done.stderr


def test_huge_file_is_refused(tmp_path: Path) -> None:
    place = tmp_path / "user.toml"
    with place.open("wb") as file:
        os.truncate(file.fileno(), 1 << 30)
    with pytest.raises(UsageError, match="larger than"):
        parse([], {}, [place])


def test_empty_variable_counts_as_not_set() -> None:
    assert parse([], {"MINDNANO_CONTEXT": ""}, ()).context is None


def test_flag_of_a_file_can_be_taken_back(tmp_path: Path) -> None:
    assert options(tmp_path, user="force = true").force
    assert not options(tmp_path, "--no-force", user="force = true").force


def test_options_of_other_commands_may_stand_in_a_file(tmp_path: Path) -> None:
    assert options(tmp_path, "--version", user="context = 4096\ntemperature = 0.5").context == 4096


def test_stronger_layer_decides_between_demo_and_model(tmp_path: Path) -> None:
    found = options(tmp_path, "--model", "m.l3r", user="demo = true")
    assert (found.model, found.demo) == (Path("m.l3r"), False)
    found = options(tmp_path, "--demo", user="model = 'm.l3r'")
    assert (found.model, found.demo) == (None, True)
    found = options(tmp_path, user="demo = true", MINDNANO_MODEL="m.l3r")
    assert (found.model, found.demo) == (Path("m.l3r"), False)


def test_language_of_a_file_counts_unless_named_elsewhere(tmp_path: Path) -> None:
    assert options(tmp_path, user="lang = 'zh'").language is Language.CHINESE
    assert options(tmp_path, "--lang", "en", user="lang = 'zh'").language is Language.ENGLISH


def test_places_of_the_files() -> None:
    assert user_file({"HOME": "/home/x"}) == Path("/home/x/.config/mindnano/config.toml")
    assert user_file({"HOME": "/home/x", "XDG_CONFIG_HOME": "/c"}) == Path("/c/mindnano/config.toml")
    assert user_file({"HOME": "/home/x", "XDG_CONFIG_HOME": "relative"}) == user_file({"HOME": "/home/x"})
    assert user_file({}) is None
    assert config_files({}) == (SYSTEM_FILE,)


def test_names_of_variables_are_unique() -> None:
    assert len(BY_VARIABLE) == sum(option.configurable for option in OPTIONS)
    assert not set(BY_VARIABLE) & OTHER_VARIABLES


def test_printed_configuration_is_one_that_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--print-config", "--system", 'a "quoted" \\ 中文 \n line', "--force", "--temperature", "0.5"]
    found = parse(words, {"MINDNANO_LANG": "zh"}, ())
    assert run_print_config(found, {}, Catalogue(Language.ENGLISH)) == 0
    text = capsys.readouterr().out
    place = tmp_path / "again.toml"
    place.write_text(text, encoding="utf-8")
    again = parse(["--print-config"], {}, [place])
    assert tomllib.loads(text)["system"] == found.system
    for name, setting in found.settings.items():
        assert again.settings[name].value == setting.value
    assert "# command line" in text
    assert "# MINDNANO_LANG" in text


def test_printed_configuration_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    run_print_config(parse(["--print-config", "--json"], {}, ()), {"HOME": "/h"}, Catalogue(Language.ENGLISH))
    found = json.loads(capsys.readouterr().out)
    assert found["options"]["port"] == {"value": 9092, "origin": "default"}
    assert [file["path"] for file in found["files"]] == [str(SYSTEM_FILE), "/h/.config/mindnano/config.toml"]
