"""A report that lies about what was found, an interrupt that is not heard, a file hashed twice."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import jsonschema
import pytest

from launcher.errors import Cancelled, PackageError
from launcher.integrity.verify import run_verify, verify
from tests.support.releases import write_release
from tests.support.verification import (
    ENGLISH,
    ROOT,
    SCHEMA,
    TRUSTED,
    look,
)


@dataclass(frozen=True)
class Words:
    """What the command needs of the command line."""

    operand: str | None = None
    model: Path | None = None
    json: bool = False
    strict: bool = False


def run_command(words: Words, home: dict[str, str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = run_verify(words, home, ENGLISH)
    found = capsys.readouterr()
    return code, found.out, found.err


def test_json_is_the_only_thing_on_stdout(
    release: Path, home: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_command(Words(operand=str(release), json=True), home, capsys)
    document = json.loads(out)
    jsonschema.validate(document, SCHEMA)
    assert code == document["exit_code"] == 0
    assert document["ok"] is True
    assert [entry["slug"] for entry in document["warnings"]] == ["verify-warning-no-key"]
    assert "Hashing release" in err
    assert "\r" not in err
    assert "\x1b" not in err


def test_json_of_an_error_is_a_document_too(
    tmp_path: Path, home: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PackageError):
        run_verify(Words(operand=str(tmp_path), json=True), home, ENGLISH)
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert document["error"]["slug"] == "nothing-to-verify"
    assert document["exit_code"] == 4


def test_folder_is_that_of_the_model_or_the_current_one(
    release: Path, home: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/nonexistent/mindnano-infer"])
    assert run_command(Words(model=release / "toy.l3r"), home, capsys)[0] == 0
    with pytest.raises(PackageError):
        run_verify(Words(), home, ENGLISH)
    monkeypatch.chdir(release)
    assert run_command(Words(), home, capsys)[0] == 0
    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "argv", [str(release / "mindnano-infer")])
    assert run_command(Words(), home, capsys)[0] == 0


def test_name_that_is_no_unicode_is_shown(
    release: Path, home: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    (release / os.fsdecode(b"\xff")).write_text("x")
    assert json.loads(run_command(Words(operand=str(release), json=True), home, capsys)[1])["extra"] == ["\udcff"]
    assert "\\udcff" in run_command(Words(operand=str(release)), home, capsys)[1]


INTERRUPTED = """
import sys
from pathlib import Path
from launcher.messages import Catalogue, Language
from launcher.integrity.verify import verify
try:
    verify(Path(sys.argv[1]), {}, Catalogue(Language.ENGLISH))
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_interrupt_stops_the_hashing(tmp_path: Path) -> None:
    """Three files of 64 GiB each (holes), which would take minutes."""
    lines = ""
    for name in "abc":
        with (tmp_path / name).open("wb") as file:
            file.truncate(64 << 30)
        lines += f"{'0' * 64}  {name}\n"
    (tmp_path / "SHA256SUMS").write_text(lines)
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
    )
    try:
        wait_until_reading(process.pid, tmp_path)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert b"stopped at" in err


def wait_until_reading(process: int, folder: Path) -> None:
    """Returns once the process has a file of the folder open."""
    for _ in range(3000):
        for link in Path(f"/proc/{process}/fd").glob("*"):
            try:
                if link.readlink().parent == folder and link.readlink().name != "SHA256SUMS":
                    return
            except OSError:
                continue
        time.sleep(0.01)
    raise AssertionError("nothing was read")


class ClosedPipe(io.StringIO):
    """A stream whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_reader_of_the_progress_that_goes_away_is_no_success(release: Path, home: dict[str, str]) -> None:
    with pytest.raises(Cancelled):
        verify(release, home, ENGLISH, publisher=TRUSTED, stream=ClosedPipe())


def test_many_files_are_hashed_each_once(tmp_path: Path, home: dict[str, str]) -> None:
    files = {f"f/{number:04}": b"%d" % number for number in range(2000)}
    report = look(write_release(tmp_path / "r", files), home)
    assert report.intact == 2001


# Before a package is used.
