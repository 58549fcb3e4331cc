"""The program for boards needs a user, an environment or a page size that some of them do not have."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from bundle import zig
from bundle.emulator import CPU, EmulatorMissing, emulator
from bundle.sysroot import SysrootMissing, sysroot
from launcher import __version__
from tests.bundle.portable import QUESTION, program, texts
from tests.support.availability import unavailable

NOBODY = 65534
BOARD = "aarch64"

pytestmark = pytest.mark.skipif(zig.host_target() == BOARD, reason="this machine runs the program itself")


def as_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


@pytest.fixture(scope="module")
def board() -> Iterator[Path]:
    """A folder that everybody may read and nobody may write: emulator, C library and program."""
    built = program(BOARD)
    try:
        qemu, root = emulator(), sysroot("bookworm")
    except (EmulatorMissing, SysrootMissing) as error:
        unavailable(f"no {BOARD} system: {error.message}")
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="mindnano-") as name:
        folder = Path(name)
        shutil.copy(qemu, folder / "qemu")
        shutil.copy(built, folder / "mindnano-infer")
        shutil.copytree(root, folder / "root", symlinks=True)
        folder.chmod(0o555)
        yield folder
        folder.chmod(0o755)


def words(board: Path, *options: str) -> list[str]:
    return [str(board / "qemu"), "-cpu", CPU, *options, "-L", str(board / "root"), str(board / "mindnano-infer")]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
def test_it_answers_as_nobody_with_an_empty_environment(board: Path) -> None:
    command = [*words(board), *QUESTION]
    done = subprocess.run(
        command, env={}, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, preexec_fn=as_nobody
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout in {said[" ".join(QUESTION)] for said in texts(BOARD).values()}


@pytest.mark.parametrize("page", [16384, 65536])
def test_it_answers_with_larger_pages(board: Path, page: int) -> None:
    """Kernels for this processor have pages of 4, 16 or 64 KiB; the built-in model is mapped out of the file."""
    command = [*words(board, "-p", str(page)), *QUESTION]
    done = subprocess.run(command, env={}, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout in {said[" ".join(QUESTION)] for said in texts(BOARD).values()}


def test_it_starts_with_every_stream_closed(board: Path) -> None:
    script = 'exec "$@" 0<&- 1>&- 2>&-'
    done = subprocess.run(["sh", "-c", script, "sh", *words(board), "--version"], env={}, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_changed_byte_is_refused(board: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "mindnano-infer"
    shutil.copy(board / "mindnano-infer", damaged)
    with damaged.open("r+b") as stream:
        stream.seek(damaged.stat().st_size // 2)
        byte = stream.read(1)[0]
        stream.seek(-1, os.SEEK_CUR)
        stream.write(bytes([byte ^ 1]))
    command = [*words(board)[:-1], str(damaged), "--version"]
    done = subprocess.run(command, env={}, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("error (program-damaged)")


def test_its_version_is_that_of_the_checkout(board: Path) -> None:
    done = subprocess.run([*words(board), "--version"], env={}, capture_output=True, text=True)
    assert done.stdout == f"mindnano-infer {__version__}\n"
