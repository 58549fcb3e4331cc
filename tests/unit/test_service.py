"""A unit that systemd reads differently from what was meant, or that names a group that does not exist."""

from __future__ import annotations

import configparser
import shlex
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.options.parse import parse
from launcher.service import own_command, unit
from launcher.system import SystemView


def printed(tmp_path: Path, *words: str) -> str:
    return unit(parse(["--print-unit", *words], {}, ()), SystemView(root=tmp_path), ("/opt/mindnano-infer",))


def service(tmp_path: Path, *words: str, groups: str = "") -> dict[str, str]:
    (tmp_path / "etc").mkdir(exist_ok=True)
    (tmp_path / "etc" / "group").write_text(groups)
    text = printed(tmp_path, *words)
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
    words = ["--print-unit", "--model", "/m/100% of it.l3r", "--api-key-file", "/etc/100% $my keys", "--port", "80"]
    words += ["--session-dir", "/data/my sessions", "--host", "unix:/run/mindnano/sock"]
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


def test_files_of_root_come_as_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit's user cannot read them, and %d for their folder is newer than what Debian 11 has."""
    monkeypatch.chdir(tmp_path)
    words = ("--api-key-file", "/etc/../etc/100% my $keys", "--tls-cert", "cert.pem", "--tls-key", "key.pem")
    lines = printed(tmp_path, *words).splitlines()
    start = next(line for line in lines if line.startswith("ExecStart="))
    for name, credential in (("api-key-file", "api-keys"), ("tls-cert", "tls-cert"), ("tls-key", "tls-key")):
        assert f" --{name} ${{CREDENTIALS_DIRECTORY}}/{credential}" in start
    assert [line for line in lines if line.startswith("LoadCredential=")] == [
        "LoadCredential=api-keys:/etc/100%% my $keys",
        f"LoadCredential=tls-cert:{tmp_path}/cert.pem",
        f"LoadCredential=tls-key:{tmp_path}/key.pem",
    ]


def test_a_renewed_certificate_is_found(tmp_path: Path) -> None:
    """Its name leads to another file then, which the resolved name would not."""
    (tmp_path / "old.pem").touch()
    (tmp_path / "live.pem").symlink_to("old.pem")
    text = printed(tmp_path, "--tls-cert", str(tmp_path / "live.pem"), "--tls-key", str(tmp_path / "live.pem"))
    assert f"LoadCredential=tls-cert:{tmp_path}/live.pem\n" in text


def test_keys_that_the_system_file_names_come_as_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The service reads that file too, and could not read the keys."""
    place = tmp_path / "config.toml"
    place.write_text('api-key-file = "/etc/mindnano/keys"\n')
    monkeypatch.setattr("launcher.service.SYSTEM_FILE", place)
    options = parse(["--print-unit"], {}, (place,))
    assert "LoadCredential=api-keys:/etc/mindnano/keys\n" in unit(options, SystemView(root=tmp_path), ("/bin/true",))
    own = parse(["--print-unit"], {"MINDNANO_API_KEY_FILE": "/home/me/keys"}, ())
    assert "LoadCredential" not in unit(own, SystemView(root=tmp_path), ("/bin/true",))


@pytest.mark.parametrize("name", ["keys ", "keys\\", "ke\nys"])
def test_a_path_that_a_line_cannot_end_with_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="systemd unit"):
        printed(tmp_path, "--api-key-file", f"/etc/{name}")


def test_ports_of_root_can_be_bound(tmp_path: Path) -> None:
    assert service(tmp_path, "--port", "443")["AmbientCapabilities"] == "CAP_NET_BIND_SERVICE"
    assert "AmbientCapabilities" not in service(tmp_path, "--port", "1024")
    assert "AmbientCapabilities" not in service(tmp_path, "--port", "443", "--host", "unix:/run/mindnano/sock")


def test_what_the_unit_cannot_reach_is_said(tmp_path: Path) -> None:
    """Everything in it is right, and yet it does not start."""
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    (closed / "m.l3r").touch()
    assert f"/tmp of its own and does not see {closed}/m.l3r" in printed(tmp_path, "--model", str(closed / "m.l3r"))
    text = printed(tmp_path, "--session-dir", "/data/sessions", "--log", "/data/log/log")
    assert "# It writes to /data/log, /data/sessions: " in text
    assert "nobody else sees /tmp/sock" in printed(tmp_path, "--host", "unix:/tmp/sock")
    assert "Only root may use the socket" in printed(tmp_path, "--host", "unix:/run/mindnano/sock")
    assert "members of its group" in printed(tmp_path, "--host", "unix:/run/mindnano/sock", "--allow-lan")
    words = ("--log", "/var/log/mindnano/log", "--session-dir", "/var/lib/mindnano/s", "--model", "/usr/share/m.l3r")
    assert "# It " not in printed(tmp_path, *words).replace("# It runs", "")


def test_files_that_only_some_users_read_are_told_from_those_of_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.service._TEMPORARY", ())
    monkeypatch.setattr("launcher.service._OWN_FOLDERS", ())
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # every user passes through /tmp, not through pytest's own
        folder = Path(name)
        model = folder / "m.l3r"
        model.touch(mode=0o600)
        said = f"It may not read {model}: "
        folder.chmod(0o755)
        assert said in printed(folder, "--model", str(model))
        model.chmod(0o644)
        assert said not in printed(folder, "--model", str(model))
        folder.chmod(0o700)
        assert said in printed(folder, "--model", str(model))


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
