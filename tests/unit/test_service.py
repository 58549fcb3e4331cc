"""A unit that systemd reads differently from what was meant, or that names a group that does not exist."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.options.parse import parse
from launcher.service import own_command, unit
from launcher.system import SystemView


def service(tmp_path: Path, *words: str, groups: str = "") -> dict[str, str]:
    (tmp_path / "etc").mkdir(exist_ok=True)
    (tmp_path / "etc" / "group").write_text(groups)
    text = unit(parse(["--print-unit", *words], {}, ()), SystemView(root=tmp_path), ("/opt/mindnano-infer",))
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment]
    parser.read_string(text)
    assert set(parser) == {"DEFAULT", "Unit", "Service", "Install"}
    return dict(parser["Service"])


def command(text: str) -> list[str]:
    """ExecStart split as systemd does it: quotes, then its own doubled characters."""
    return [word.replace("%%", "%").replace("$$", "$") for word in shlex.split(text)]


def test_unit_runs_the_server_with_the_given_options(tmp_path: Path) -> None:
    found = service(tmp_path, "--model", str(tmp_path / "my model.l3r"), "--context", "8K", "--force", "--port", "80")
    words = command(found["ExecStart"])
    assert words[:2] == ["/opt/mindnano-infer", "--no-console"]
    assert set(words[2:]) == {
        *("--model", str((tmp_path / "my model.l3r").resolve()), "--context", "8192", "--force", "--port", "80")
    }
    assert found["LimitNOFILE"] == "65536"


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    place = tmp_path / "mindnano-infer.service"
    words = ["--print-unit", "--model", "/m/100% of it.l3r"]
    place.write_text(unit(parse(words, {}, ()), SystemView(root=tmp_path), ("/bin/true",)))
    done = subprocess.run([program, "verify", "--man=no", str(place)], capture_output=True, text=True, check=False)
    if "Failed to" in done.stderr and "manager" in done.stderr:
        pytest.skip(f"systemd-analyze does not work here: {done.stderr.strip()}")
    assert "mindnano-infer.service" not in done.stderr
    assert done.returncode == 0


def test_relative_paths_become_absolute(tmp_path: Path) -> None:
    words = command(service(tmp_path, "--model", "m.l3r")["ExecStart"])
    assert Path(words[words.index("--model") + 1]).is_absolute()


def test_special_characters_survive(tmp_path: Path) -> None:
    path = '/m/100% of "it" for $HOME \\ and 中文.l3r'
    words = command(service(tmp_path, "--model", path)["ExecStart"])
    assert words[words.index("--model") + 1] == path


def test_line_break_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="systemd unit"):
        service(tmp_path, "--model", "/m/a\nb.l3r")


def test_only_groups_that_exist_are_named(tmp_path: Path) -> None:
    assert "SupplementaryGroups" not in service(tmp_path)
    assert service(tmp_path, groups="video:x:44:\nrender:x:105:\n")["SupplementaryGroups"] == "video render"
    assert service(tmp_path, groups="video:x:44:\n")["SupplementaryGroups"] == "video"


def test_options_of_the_chat_do_not_enter(tmp_path: Path) -> None:
    assert "--lang" in service(tmp_path, "--lang", "zh")["ExecStart"]
    with pytest.raises(UsageError):
        service(tmp_path, "--system", "be brief")


def test_own_command_is_absolute() -> None:
    assert Path(own_command()[0]).is_absolute()


def test_unit_tells_systemd_of_its_state_and_stops_after_the_drain(tmp_path: Path) -> None:
    found = service(tmp_path, "--drain-timeout", "100.5")
    assert found["Type"] == "notify"
    assert found["TimeoutStopSec"] == "116"  # 15 seconds more than the drain, to save what was said
    assert found["SuccessExitStatus"] == "143"
    assert service(tmp_path)["TimeoutStopSec"] == "45"


def test_a_key_never_stands_in_the_unit(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        service(tmp_path, "--api-key", "hidden")
    assert "--api-key-file" in caught.value.hint
    assert "hidden" not in caught.value.message
    words = command(service(tmp_path, "--api-key-file", "/etc/mindnano/keys")["ExecStart"])
    assert words[-2:] == ["--api-key-file", "/etc/mindnano/keys"]


def test_several_values_are_several_options(tmp_path: Path) -> None:
    words = command(service(tmp_path, "--allow-host", "a", "--allow-host", "b", "--host", "unix:/run/x")["ExecStart"])
    assert sorted(words[2:]) == ["--allow-host", "--allow-host", "--host", "a", "b", "unix:/run/x"]


def test_folders_that_the_server_writes_to_are_named(tmp_path: Path) -> None:
    """The unit sees everything else read-only; without the "-" a missing folder keeps it from starting."""
    words = ("--log", "/srv/100% $x/log.jsonl", "--session-dir", "/data/../data/sessions", "--host", "unix:/srv/s/sock")
    found = service(tmp_path, *words)
    assert shlex.split(found["ReadWritePaths"]) == ["-/data/sessions", "-/srv/100%% $x", "-/srv/s"]
    assert "ReadWritePaths" not in service(tmp_path)


def test_the_units_own_folders_are_not_named_again(tmp_path: Path) -> None:
    words = ("--log", "/var/lib/mindnano/log", "--session-dir", "/var/lib/mindnano/sessions")
    found = service(tmp_path, *words, "--host", "unix:/run/mindnano/sock")
    assert "ReadWritePaths" not in found
    assert (found["StateDirectory"], found["RuntimeDirectory"]) == ("mindnano", "mindnano")
    assert service(tmp_path, "--session-dir", "/var/lib/mindnano2")["ReadWritePaths"] == "-/var/lib/mindnano2"
