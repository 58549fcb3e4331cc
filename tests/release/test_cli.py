"""The publisher's command line: exit codes, streams, and errors that say what to do next."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from release import cli
from tests.release.conftest import Convert
from tests.support.checkpoints import edit_json

ROOT = Path(__file__).resolve().parents[2]


def test_quantise_pack_inspect_and_logits_in_a_row(
    micro: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assets, package, ids, out = (str(tmp_path / name) for name in ("assets", "x.l3r", "ids", "out.npz"))
    Path(ids).write_text("1 2 3 4")
    assert cli.main(["quantize", "--source", str(micro), "--output", assets, "--recipe", "w8a8"]) == 0
    assert cli.main(["pack", f"{assets}/manifest.json", package]) == 0
    assert cli.main(["logits", "--package", package, "--ids", ids, "--out", out, "--mtp", "--threads", "1"]) == 0
    streams = capsys.readouterr()
    assert streams.out.splitlines() == [f"{assets}/manifest.json", package, out]
    assert "Converting: 100 %" in streams.err
    assert "\r" not in streams.err
    assert cli.main(["inspect", package, "--json", "--verify"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["metadata"]["quantization"]["recipe"] == "w8a8"
    with np.load(out) as archive:
        assert archive["mtp_logits"].shape == (3, 320)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["quantize", "--source", "{tmp}/nothing", "--output", "{tmp}/out"], 4, "nothing is not a folder"),
        (["pack", "{tmp}/nothing.json", "{tmp}/out.l3r"], 4, "does not exist"),
        (["inspect", "{tmp}/nothing.l3r"], 4, "nothing.l3r"),
        (["bench", "{tmp}/nothing.l3r"], 4, "nothing.l3r"),
        (["logits", "--package", "{tmp}/nothing.l3r", "--ids", "{tmp}/x", "--out", "{tmp}/y"], 4, "nothing.l3r"),
        (["logits", "--package", "{tmp}/nothing.l3r", "--ids", "{tmp}/x", "--out", "{tmp}"], 2, "is not a plain file"),
    ],
)
def test_errors_have_a_message_a_hint_and_a_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, text: str
) -> None:
    assert cli.main([argument.format(tmp=tmp_path) for argument in arguments]) == code
    streams = capsys.readouterr()
    assert streams.out == ""
    lines = streams.err.splitlines()
    assert lines[0].startswith("mindnano: error: ")
    assert text in lines[0]
    assert len(lines) == 2


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["unknown"],
        ["quantize"],
        ["quantize", "--source", "a", "--output", "b", "--recipe", "w2a2"],
        ["quantize", "--source", "a", "--output", "b", "--max-context", "0"],
        ["bench", "x", "--prompt", "12,"],
        ["bench", "x", "--prompt", "0"],
        ["bench", "x", "--repeat", "-1"],
        ["logits", "--package", "x", "--ids", "y", "--out", "z", "--kv-cache", "int3"],
    ],
)
def test_malformed_command_lines_exit_with_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert capsys.readouterr().out == ""


def test_a_full_disk_behind_stdout_exits_with_5() -> None:
    script = "from release import cli; cli._inspect = lambda arguments: print('x' * 100); raise SystemExit(cli.main())"
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-c", script, "inspect", "x.l3r"],
            cwd=ROOT,
            stdout=full,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 5
    assert b"cannot write" in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


@pytest.mark.parametrize("length", [100, 100_000])
@pytest.mark.parametrize(
    ("report", "command", "code"),
    [
        ("release.folder.verify.verify", ["verify", "x"], 4),
        ("release.folder.verify.verify", ["verify", "x", "--json"], 4),
        ("release.mtp.audit.audit", ["mtp", "audit", "x"], 1),
    ],
)
def test_a_finding_that_nobody_reads_to_the_end_is_none(
    report: str, command: list[str], code: int, length: int
) -> None:
    """As `mindnano verify DIR | grep -q failed` does in a script with `pipefail`."""
    script = (
        "import sys\n"
        "from types import SimpleNamespace\n"
        "from unittest import mock\n"
        "from release import cli\n"
        f"text = lambda: 'x' * {length}\n"
        "found = SimpleNamespace(to_text=text, to_json=text, exit_code=4, differs=True)\n"
        f"with mock.patch({report!r}, lambda _options: found):\n"
        "    sys.exit(cli.main())\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-c", script, *command], cwd=ROOT, stdout=gone, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == code
    assert done.stderr == b""


def test_an_error_that_nobody_reads_has_its_code(tmp_path: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as gone:
        done = subprocess.run(
            [sys.executable, "-m", "release", "verify", "--json", str(tmp_path / "none")],
            cwd=ROOT,
            stdout=gone,
            stderr=subprocess.PIPE,
            check=False,
        )
    assert done.returncode == 4
    assert b"Exception ignored" not in done.stderr


def test_an_interrupt_exits_with_130(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def interrupt(_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("release.package.pack.pack_with_report", interrupt)
    assert cli.main(["pack", str(tmp_path), str(tmp_path)]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_an_unsupported_checkpoint_exits_with_4(
    checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    edit_json(checkpoint / "config.json", lambda config: config.update(rope_scaling={"type": "yarn"}))
    assert cli.main(["quantize", "--source", str(checkpoint), "--output", str(tmp_path / "out")]) == 4
    assert "rope_scaling" in capsys.readouterr().err


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_version_and_help_import_nothing_heavy(argument: str) -> None:
    program = (
        "import sys; from release.cli import main\n"
        "try: main([sys.argv[1]])\n"
        "except SystemExit as end: assert end.code == 0\n"
        "heavy = {'numpy', 'ctypes', 'jinja2', 'launcher.engine'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    command = [sys.executable, "-c", program, argument]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert "mindnano" in result.stdout
    assert "exit codes" in result.stdout or argument == "--version"


@pytest.mark.parametrize("script", ["quantize_model", "pack_model", "benchmark", "build_portable", "finalize_release"])
def test_scripts_are_doors_to_their_commands(script: str) -> None:
    """By any Python: the one that runs the script has none of our packages."""
    command = [sys.executable, "-S", f"scripts/{script}.py", "--help"]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env={"PATH": ""})
    assert result.stdout.startswith("usage: mindnano ")


@pytest.mark.parametrize("code", [0, 6])
def test_a_script_sets_a_fresh_checkout_up_first(code: int, tmp_path: Path) -> None:
    scripts, program = tmp_path / "scripts", tmp_path / ".venv" / "bin" / "mindnano"
    scripts.mkdir()
    for name in ("door.py", "build_portable.py"):
        shutil.copy(ROOT / "scripts" / name, scripts)
    (scripts / "setup_checkout.py").write_text(
        "import pathlib, sys\n"
        f"program = pathlib.Path({str(program)!r})\n"
        "program.parent.mkdir(parents=True)\n"
        "program.write_text('#!/bin/sh\\necho \"$@\"\\n')\n"
        "program.chmod(0o755)\n"
        f"sys.exit(0 if sys.argv[1:] == ['run'] and not {code} else {code})\n"
    )
    command = [sys.executable, "-S", str(scripts / "build_portable.py"), "--explain"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, "" if code else "bundle --explain\n"), done.stderr


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/some/file"), 2, "Permission denied (/some/file)"),
        (OSError(errno.EROFS, "Read-only file system", "/a"), 2, "Read-only file system (/a)"),
        (OSError(errno.EIO, "Input/output error"), 1, "Input/output error"),
        (OSError("no reason"), 1, "no reason"),
        (OSError(errno.EMFILE, "Too many open files"), 5, "Too many open files"),
        (OSError(errno.ENOSPC, "No space left on device", "/a"), 5, "cannot write: No space left on device (/a)"),
    ],
)
def test_what_the_system_refuses_is_shown_as_a_traceback(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: OSError, code: int, text: str
) -> None:
    def fail(*_arguments: object, **_options: object) -> None:
        raise error

    monkeypatch.setattr("release.package.inspection.inspect_package", fail)
    assert cli.main(["inspect", "x.l3r"]) == code
    lines = capsys.readouterr().err.splitlines()
    assert text in lines[0]
    assert len(lines) == 2


@pytest.mark.parametrize("kind", ["pipe", "device"])
@pytest.mark.parametrize(
    "arguments",
    [
        ["pack", "{file}", "{tmp}/out.l3r"],
        ["quantize", "--source", "{tmp}/checkpoint", "--output", "{tmp}/out"],
        ["logits", "--package", "{package}", "--ids", "{file}", "--out", "{tmp}/out"],
        ["fidelity", "--reference", "{package}", "--package", "{package}", "--text", "{file}"],
        ["calibrate", "--package", "{package}", "--output", "{tmp}/out", "--text", "{file}"],
    ],
)
def test_special_files_hold_a_command_up(
    convert: Convert,
    micro: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    kind: str,
) -> None:
    """A pipe that nobody writes to, and a device that never ends."""
    file = tmp_path / "special"
    if kind == "pipe":
        os.mkfifo(file)
    else:
        file.symlink_to("/dev/zero")
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "config.json").symlink_to(file)
    package = convert(micro)
    capsys.readouterr()
    names = {"file": file, "tmp": tmp_path, "package": package}
    assert cli.main([argument.format(**names) for argument in arguments]) in (2, 4)
    error = capsys.readouterr().err.splitlines()
    assert "not a plain file" in error[0] or "not a regular file" in error[0]


def test_a_shard_that_is_a_pipe_holds_quantise_up(checkpoint: Path, tmp_path: Path) -> None:
    shard = next(checkpoint.glob("*.safetensors"))
    shard.unlink()
    os.mkfifo(shard)
    assert cli.main(["quantize", "--source", str(checkpoint), "--output", str(tmp_path / "out")]) == 4


def test_help_leaves_a_command_out_or_breaks_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["--help"])
    shown = capsys.readouterr().out
    before = ["calibrate", "quantize", "pack", "mtp", "inspect", "logits", "fidelity"]
    commands = [*before, "bench", "bundle", "finalize", "verify", "publish"]
    lines = [line.split() for line in shown.split("commands:")[1].split("exit codes:")[0].splitlines()]
    assert [words[0] for words in lines if words][1:] == commands
    assert all(len(words) > 2 for words in lines if words and words != ["COMMAND"])
