"""A library that cannot be loaded where memfd is refused, that can be changed, or that leaves something behind.

The kernel itself refuses the calls here, by a seccomp filter; nothing of the code under test is replaced.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.payload.memory_file import Method, place
from tests.bundle.support import ROOT, stand_in_library
from tests.support.availability import unavailable

LOAD = Path(__file__).with_name("load_library.py")
SECCOMP = ROOT / "tests" / "support" / "seccomp.py"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return stand_in_library(tmp_path_factory.mktemp("library"))


def load(library: Path, refused: str = "", **environ: str) -> dict[str, object]:
    command = [sys.executable, str(LOAD), str(ROOT), str(library), "stand_in"]
    if refused:
        command = [sys.executable, str(SECCOMP), refused, "--", *command]
    done = subprocess.run(command, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def in_shared_memory() -> set[str]:
    return {path.name for path in Path("/dev/shm").iterdir()}


def test_library_comes_from_sealed_memory(library: Path) -> None:
    found = load(library)
    assert (found["method"], found["sum"], found["same"]) == ("MEMFD", 42, True)
    assert found["refused"] == []
    assert found["writable"] is False


def test_without_memfd_an_unnamed_file_is_used(library: Path, tmp_path: Path) -> None:
    found = load(library, "memfd", XDG_RUNTIME_DIR=str(tmp_path))
    assert (found["method"], found["sum"], found["same"]) == ("UNNAMED", 42, True)
    assert found["refused"] == ["memfd: Operation not permitted"]
    assert list(tmp_path.iterdir()) == []


def test_folders_are_tried_in_order(library: Path, tmp_path: Path) -> None:
    before = in_shared_memory()
    found = load(library, "memfd", XDG_RUNTIME_DIR=str(tmp_path / "missing"))
    assert (found["method"], found["sum"]) == ("UNNAMED", 42)
    refused = found["refused"]
    assert isinstance(refused, list)
    assert refused[1] == f"unnamed file in {tmp_path / 'missing'}: No such file or directory"
    assert in_shared_memory() == before
    found = load(library, "memfd", XDG_RUNTIME_DIR="relative")
    assert found["refused"] == ["memfd: Operation not permitted"]


def test_without_unnamed_files_a_private_folder_is_used_and_gone(library: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    found = load(library, "memfd,unnamed", XDG_RUNTIME_DIR=str(tmp_path), HOME="/nonexistent")
    assert (found["method"], found["sum"], found["same"]) == ("FOLDER", 42, True)
    refused = found["refused"]
    assert isinstance(refused, list)
    assert [line.partition(":")[0] for line in refused] == [
        "memfd",
        f"unnamed file in {tmp_path}",
        "unnamed file in /dev/shm",
        "unnamed file in /nonexistent/.cache",
    ]
    assert "Operation not supported" in refused[1]
    assert list(tmp_path.iterdir()) == []


def test_folders_that_others_can_change_are_not_used(library: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    found = load(library, "memfd,unnamed", XDG_RUNTIME_DIR=str(tmp_path))
    refused = found["refused"]
    assert isinstance(refused, list)
    assert f"private folder in {tmp_path}: other users can change this folder" in refused
    assert (found["method"], found["sum"]) == ("FOLDER", 42)  # in /dev/shm, whose sticky bit protects it


def test_cache_folder_is_the_last_place(library: Path, tmp_path: Path) -> None:
    cache = tmp_path / ".cache"
    cache.mkdir(0o700)
    before = in_shared_memory()
    found = load(library, "memfd,unnamed", XDG_RUNTIME_DIR="/nonexistent", HOME=str(tmp_path))
    assert found["method"] == "FOLDER"
    assert list(cache.iterdir()) == []
    assert in_shared_memory() == before


def test_places_from_which_no_code_runs_are_recognised(library: Path, tmp_path: Path) -> None:
    # The trial mapping fails everywhere, so nothing is left to try, and the reason stands for each place.
    found = load(library, "noexec", XDG_RUNTIME_DIR=str(tmp_path), HOME="/nonexistent")
    assert found["error"] == "library-unplaced"
    message = str(found["message"])
    for name in ("memfd: ", f"unnamed file in {tmp_path}: ", f"private folder in {tmp_path}: ", "in /dev/shm: "):
        assert name in message
    assert message.count("Operation not permitted") >= 5
    assert list(tmp_path.iterdir()) == []


def test_mount_without_exec_is_passed_over(library: Path, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        unavailable("only root can mount")
    (tmp_path / "noexec").mkdir()
    script = (
        f"mount -t tmpfs -o noexec,mode=700 none {tmp_path}/noexec && "
        f"exec {sys.executable} {SECCOMP} memfd -- {sys.executable} {LOAD} {ROOT} {library} stand_in"
    )
    environ = {"XDG_RUNTIME_DIR": str(tmp_path / "noexec"), "PATH": os.environ["PATH"]}
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], env=environ, capture_output=True, text=True)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        unavailable(f"this machine lets nobody mount: {done.stderr.strip()}")
    found = json.loads(done.stdout)
    assert found["refused"][1] == f"unnamed file in {tmp_path}/noexec: Operation not permitted"
    assert found["sum"] == 42


def test_closing_gives_the_descriptor_back_once(library: Path) -> None:
    placed = place(library.read_bytes(), "librknnrt.so", {})
    assert placed.method is Method.MEMFD
    path = Path(placed.path)
    assert path.exists()
    with placed:
        pass
    placed.close()
    assert not path.exists()
