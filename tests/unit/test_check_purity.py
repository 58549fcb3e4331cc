"""A check without ``=deep`` that starts, writes, opens or loads something.

Python's own audit events are the witness: they are raised by the interpreter, not by our code.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from engine.errors import BuildError
from tests.support.availability import unavailable
from tests.support.demo import require_demo
from tests.support.rknn_stand_in import build_stand_in

ROOT = Path(__file__).resolve().parents[2]

# Runs the check of a board and prints what was audited meanwhile.
WITNESS = """
import json, os, sys
from pathlib import Path
seen = []
watching = False

def audit(event, arguments):
    if not watching:
        return
    if event == "open":
        path, mode, flags = arguments
        writes = bool(flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND))
        seen.append(["write" if writes else "read", os.fsdecode(path) if isinstance(path, (str, bytes)) else str(path)])
    elif event in {"subprocess.Popen", "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "pty.spawn",
                   "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.chown", "os.link", "os.symlink",
                   "os.truncate", "os.utime", "shutil.copyfile", "ctypes.dlopen", "socket.connect", "os.kill",
                   "os.setxattr", "fcntl.flock", "fcntl.lockf", "fcntl.ioctl"}:
        seen.append([event, str(arguments[0]) if arguments else ""])

sys.addaudithook(audit)
from launcher.check import examine
from launcher.options.parse import parse
from launcher.system import SystemView
from tests.fixtures.boards.boards import BOARDS
words = json.loads(sys.argv[1])
folder = Path(sys.argv[2])
environ = {"HOME": str(folder / "home"), "MINDNANO_RKNN_RUNTIME": sys.argv[4]}
board = BOARDS[sys.argv[3]]() if sys.argv[3] else None
if board is not None:
    board.file(sys.argv[4], Path(sys.argv[5]).read_bytes()).file("/run/lock/.keep", "")
    board.host.machine = sys.argv[6]
    system = board.build(folder / "board")
else:
    system = SystemView()
options = parse(words, environ, [])
watching = True
report = examine(options, environ, system)
watching = False
print(json.dumps({"seen": seen, "slugs": [line.slug for line in report.findings]}))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require_demo()
    try:
        return build_stand_in(tmp_path_factory.mktemp("library"))
    except BuildError as error:
        unavailable(str(error))


def witness(folder: Path, library: Path, board: str, *words: str) -> tuple[list[tuple[str, str]], set[str]]:
    """What the check did, and the slugs of its lines."""
    command = [sys.executable, "-c", WITNESS, json.dumps(words), str(folder), board]
    command += ["/opt/librknnrt.so", str(library), platform.machine()]
    environ = {**os.environ, "RKNN_STAND_IN_FAULT": "", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=environ)
    assert done.returncode == 0, done.stderr[-3000:]
    document = json.loads(done.stdout)
    return [(event, name) for event, name in document["seen"]], set(document["slugs"])


@pytest.mark.parametrize("board", ["nanopi_m6", "armbian_rocket", "pc", "npu_held_by_other_process"])
def test_plain_check_only_reads(tmp_path: Path, library: Path, board: str) -> None:
    seen, slugs = witness(tmp_path, library, board, "--check", "--demo", "--report")
    assert {"runtime-engine", "runtime-rknn"} <= slugs
    assert "selftest-exact" not in slugs
    # The engine is loaded, and the C library that is loaded already is asked for its name; nothing else.
    loaded = [name for event, name in seen if event == "ctypes.dlopen"]
    assert loaded
    assert not [name for name in loaded if "rknn" in name]
    others = [item for item in seen if item[0] not in {"read", "ctypes.dlopen"}]
    assert others == []
    assert not (tmp_path / "home").exists()


def test_plain_check_of_this_machine_opens_nothing_for_writing(tmp_path: Path, library: Path) -> None:
    seen, _ = witness(tmp_path, library, "", "--check", "--demo")
    # Nodes of an NPU may be opened to ask their driver.
    others = [
        item
        for item in seen
        if item[0] not in {"read", "ctypes.dlopen", "fcntl.ioctl"}
        and not item[1].startswith(("/dev/dri/", "/dev/rknpu"))
    ]
    assert others == []
    assert list(tmp_path.iterdir()) == []


def test_witness_sees_what_the_deep_check_does(tmp_path: Path, library: Path) -> None:
    seen, slugs = witness(tmp_path, library, "nanopi_m6", "--check=deep", "--demo")
    assert "selftest-exact" in slugs
    events = [event for event, _ in seen]
    assert events.count("subprocess.Popen") == 1
    # Even then the vendor's library is loaded by the child only.
    assert not [name for event, name in seen if event == "ctypes.dlopen" and "rknn" in name]
