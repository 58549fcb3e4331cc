"""A traceback, a document that is no JSON, or a terminal that is taken over, by texts and names out of files."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import MindnanoError, PackageError, UsageError
from release import cli
from release.checkpoint.json_text import parse_json
from release.package.reader import read_package
from release.quantization.journal import Entry, Journal
from release.quantization.quantize import QuantizeOptions, quantize
from tests.release.conftest import Convert

HALF = "\ud800"
"""Half of a surrogate pair: JSON can spell it, UTF-8 cannot."""
NOT_UTF8 = "\udcff"
"""The byte ff in a name, as Python has it."""


def _edit(path: Path, change: Callable[[Any], object]) -> None:
    document = json.loads(path.read_bytes())
    change(document)
    path.write_text(json.dumps(document))


def _refusal(checkpoint: Path, tmp_path: Path) -> MindnanoError:
    with pytest.raises(PackageError) as caught:
        quantize(QuantizeOptions(source=checkpoint, output=tmp_path / "out", recipe="f32"))
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "out.partial").exists()
    return caught.value


@pytest.mark.parametrize(
    ("key", "value"), [("rms_norm_eps", 10**400), ("rope_theta", -(10**400)), ("routed_scaling_factor", math.nan)]
)
def test_numbers_beyond_all_bounds_are_out_of_bounds(checkpoint: Path, tmp_path: Path, key: str, value: Any) -> None:
    _edit(checkpoint / "config.json", lambda config: config.update({key: value}))
    assert f"{key} is " in _refusal(checkpoint, tmp_path).message


TOKENIZERS: dict[str, Callable[[Any], object]] = {
    "processors": lambda file: file.update(post_processor={"type": "Sequence", "processors": 5}),
    "processors as object": lambda file: file.update(post_processor={"type": "Sequence", "processors": {"a": 1}}),
    "single": lambda file: file.update(post_processor={"type": "TemplateProcessing", "single": 5}),
    "pair": lambda file: file.update(post_processor={"type": "TemplateProcessing", "pair": "ab"}),
    "pattern": lambda file: file["pre_tokenizer"]["pretokenizers"][0].update(pattern={"Regex": []}),
    "added token": lambda file: file["added_tokens"].append({"id": 400, "content": HALF, "special": True}),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_tokenizer_with_other_kinds_of_values_is_refused(checkpoint: Path, tmp_path: Path, name: str) -> None:
    _edit(checkpoint / "tokenizer.json", TOKENIZERS[name])
    assert "tokenizer.json" in _refusal(checkpoint, tmp_path).message


@pytest.mark.parametrize("file", ["config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("text", ["[" * 200_000, '{"chat_template": "\\ud800"}'], ids=["deep", "half"])
def test_json_that_cannot_be_written_again_is_refused(checkpoint: Path, tmp_path: Path, file: str, text: str) -> None:
    (checkpoint / file).write_text(text)
    assert file in _refusal(checkpoint, tmp_path).message


def test_a_pair_of_surrogates_is_a_character() -> None:
    assert parse_json(b'"\\ud83d\\ude00"') == "\U0001f600"
    for data in (b'"\\ud83d"', b'"\xed\xa0\x80"', b"\xff", b"[" * 200_000, b'"\\', b""):
        with pytest.raises(ValueError):  # noqa: PT011 - any text
            parse_json(data)


@pytest.mark.parametrize("value", [["x"], {"content": {"x": 1}}, {"content": 5}])
def test_a_special_token_that_is_no_text_is_refused(checkpoint: Path, tmp_path: Path, value: object) -> None:
    (checkpoint / "tokenizer_config.json").write_text(json.dumps({"eos_token": value}))
    assert "eos_token" in _refusal(checkpoint, tmp_path).message


def test_sampling_defaults_that_json_does_not_have_are_left_out(checkpoint: Path, convert: Convert) -> None:
    (checkpoint / "generation_config.json").write_text('{"temperature": NaN, "top_p": 1e999, "top_k": 5, "min_p": 0.1}')
    metadata = read_package(convert(checkpoint)).metadata
    assert metadata["generation"] == {"top_k": 5, "min_p": 0.1}


def test_a_folder_whose_name_cannot_be_shown_needs_a_name(micro: Path, tmp_path: Path, convert: Convert) -> None:
    for name in (f"a{NOT_UTF8}", "a\nb", "a\x1b[31m"):
        source = shutil.copytree(micro, tmp_path / name)
        with pytest.raises(UsageError) as caught:
            quantize(QuantizeOptions(source=source, output=tmp_path / "out"))
        assert "--name" in caught.value.hint
        assert read_package(convert(source, name="good")).metadata["name"] == "good"


@pytest.mark.parametrize("option", ["--name", "--license", "--repository", "--revision"])
@pytest.mark.parametrize("value", ["", "a\nb", f"a{NOT_UTF8}", "\x1b[31m"])
def test_labels_are_lines_of_text(micro: Path, tmp_path: Path, option: str, value: str) -> None:
    for command in (["quantize", "--source", str(micro), "--output"], ["mtp", "extract", str(micro)]):
        with pytest.raises(SystemExit) as caught:
            cli.main([*command, str(tmp_path / "x.mtp.l3r"), option, value])
        assert caught.value.code == 2
    assert list(tmp_path.iterdir()) == []


def test_files_may_have_names_that_are_not_utf8(
    micro: Path, tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    assets, package = tmp_path / f"a{NOT_UTF8}", tmp_path / f"x{NOT_UTF8}.l3r"
    report = tmp_path / f"r{NOT_UTF8}.json"
    words = ["quantize", "--source", str(micro), "--output", str(assets), "--recipe", "f32", "--report", str(report)]
    assert cli.main(words) == 0
    assert cli.main(["pack", str(assets / "manifest.json"), str(package)]) == 0
    assert b"x\\udcff.l3r\n" in capsysbinary.readouterr().out
    for command in (["inspect", str(package), "--json"], ["mtp", "inspect", str(package), "--json"]):
        assert cli.main(command) == 0
        json.loads(capsysbinary.readouterr().out)
    assert cli.main(["inspect", str(package)]) == 0
    assert capsysbinary.readouterr().out.startswith(b"x\\udcff.l3r  ")


def test_nothing_out_of_a_file_moves_the_cursor(
    checkpoint: Path, convert: Convert, capsys: pytest.CaptureFixture[str]
) -> None:
    package = convert(checkpoint, repository="a\x1b[2Jb", license="c\rd")
    assert cli.main(["inspect", str(package)]) == 0
    shown = capsys.readouterr().out
    assert "a\\x1b[2Jb" in shown
    assert "c\\rd" in shown
    assert not {"\x1b", "\r"} & set(shown)
    _edit(checkpoint / "generation_config.json", lambda file: file.update(eos_token_id=["\x1b[2J"]))
    _edit(checkpoint / "tokenizer.json", lambda file: file.update({"\x1b[2J": 1}))
    assert cli.main(["quantize", "--source", str(checkpoint), "--output", str(checkpoint.with_name("out"))]) == 4
    message = capsys.readouterr().err
    assert "\\x1b[2J" in message
    assert "\x1b" not in message


ENTRY = {"name": "t", "bytes": 1, "source_sha256": "0" * 64, "sha256": "0" * 64}
FIGURES = {"energy": 1.0, "error": 0.0, "plain_error": 0.0}


@pytest.mark.parametrize(
    "line",
    [
        "[" * 200_000,
        "5",
        json.dumps({**ENTRY, "figures": 5}),
        json.dumps({**ENTRY, "figures": {**FIGURES, "energy": "x"}}),
        json.dumps({**ENTRY, "figures": FIGURES, "bytes": "1"}),
        json.dumps({**ENTRY, "figures": FIGURES, "name": ["t"]}),
        json.dumps({**ENTRY, "figures": FIGURES, "more": 1}),
        json.dumps({**ENTRY, "figures": FIGURES})[:-1],
    ],
)
def test_a_journal_is_believed_up_to_the_first_line_that_is_none(tmp_path: Path, line: str) -> None:
    journal = Journal(tmp_path, "key")
    journal.start(())
    journal.close()
    path = tmp_path / "journal.jsonl"
    good = json.dumps({**ENTRY, "figures": FIGURES})
    path.write_text(f"{path.read_text()}{good}\n{line}\n{good}\n")
    entries = journal.read()
    assert entries is not None
    assert [type(entry) for entry in entries] == [Entry]
    path.write_text("[" * 200_000)
    assert journal.read() is None
