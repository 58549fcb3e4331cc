"""Imports against the house's direction, and modules that act when they are merely imported."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
ORDER = ("engine", "launcher", "notices", "bundle", "release")
# What each package may import of the others. The launcher reaches the engine's library, never its build.
ALLOWED = {
    "engine": {"engine"},
    "launcher": {"launcher"},
    "notices": {"launcher", "notices"},
    "bundle": {"engine", "launcher", "notices", "bundle"},
    "release": {"engine", "launcher", "notices", "bundle", "release"},
}
# What each room of release, and each module outside them, imports of the others: only what stands before it.
ROOMS = {
    "arguments": set(),
    "help_text": set(),
    "output": set(),
    "showing": set(),
    "signals": set(),
    "stages": set(),
    "system_errors": set(),
    "texts": set(),
    "checkpoint": set(),
    "layouts": set(),
    "package": {"checkpoint", "layouts", "output", "stages"},
    "quantization": {"checkpoint", "layouts", "output", "package", "stages"},
    "calibration": {"checkpoint", "output", "texts"},
    "mtp": {"arguments", "checkpoint", "layouts", "output", "package", "quantization", "showing"},
    "fidelity": {"checkpoint", "layouts", "output", "package", "quantization", "texts"},
    "bench": {"output", "package", "signals"},
    "folder": {"checkpoint", "fidelity", "output", "package", "showing"},
    "upload": {"arguments", "folder", "showing"},
    "demo": {"fidelity", "folder", "package", "quantization"},
    "cli": {
        *("arguments", "help_text", "output", "signals", "system_errors"),
        *("package", "quantization", "calibration", "mtp", "fidelity", "bench", "folder", "upload"),
    },
    "__main__": {"cli"},
}
# Loaded by Nuitka in its own process, where alone its base class exists.
PLUGINS = {"bundle/nuitka_plugin.py"}
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ORDER
    for path in (ROOT / package).rglob("*.py")
    if path.name != "__main__.py" and str(path.relative_to(ROOT)) not in PLUGINS
)

# Fails when one of our modules opens a file, a socket or a process, or starts a thread, while it is imported.
GUARD = """
import builtins, importlib, io, os, socket, subprocess, sys, threading
from pathlib import Path

OURS = tuple(sys.argv[1].split(","))

def guarded(real, what):
    def call(*arguments, **settings):
        frame = sys._getframe(1)
        while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "pathlib":
            frame = frame.f_back
        name = "" if frame is None else frame.f_globals.get("__name__", "")
        if name.partition(".")[0] in OURS:
            raise SystemExit(f"{name} calls {what} while it is imported")
        return real(*arguments, **settings)
    return call

builtins.open = guarded(builtins.open, "open")
io.open = guarded(io.open, "open")
os.open = guarded(os.open, "os.open")
class Socket(socket.socket):
    __init__ = guarded(socket.socket.__init__, "socket")
socket.socket = Socket
subprocess.Popen.__init__ = guarded(subprocess.Popen.__init__, "a process")
threading.Thread.start = guarded(threading.Thread.start, "a thread")
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


@pytest.mark.parametrize("package", ORDER)
def test_imports_go_one_way(package: str) -> None:
    wrong = []
    for path in (ROOT / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [package if node.level else node.module or ""]
            for name in names:
                top = name.partition(".")[0]
                if top in ORDER and top not in ALLOWED[package]:
                    wrong.append(f"{path.relative_to(ROOT)} imports {name}")
    assert wrong == []


def doors(release: Path) -> dict[str, set[str]]:
    """Which rooms each room of `release` imports, anywhere in its modules."""
    found: dict[str, set[str]] = {}
    for path in release.rglob("*.py"):
        place = path.relative_to(release.parent).with_suffix("").parts
        if place[1] != "__init__":
            names = list(imported(ast.parse(path.read_text(encoding="utf-8")), place[:-1]))
            rooms = {name.split(".")[1] for name in names if name.startswith("release.")}
            found.setdefault(place[1], set()).update(rooms - {place[1]})
    return found


def imported(module: ast.Module, package: tuple[str, ...]) -> Iterator[str]:
    """Full names of what a module of `package` imports, whichever way it says so."""
    for node in ast.walk(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def test_doors_between_the_rooms_of_release_open_one_way() -> None:
    found = doors(ROOT / "release")
    assert {room: sorted(others) for room, others in found.items()} == {
        room: sorted(others) for room, others in ROOMS.items()
    }
    order = list(ROOMS)
    assert [room for room, others in ROOMS.items() if others - set(order[: order.index(room)])] == []


def test_set_up_packs_anew_whenever_a_room_that_quantises_changes() -> None:
    from scripts.setup_checkout import packers

    needed = {"quantization"} | ROOMS["quantization"]
    known = {path.relative_to(ROOT / "release").with_suffix("").parts[0] for path in packers()}
    assert needed <= known


@pytest.mark.parametrize(
    "line",
    [
        "from release.upload.publish import publish",
        "import release.upload.publish",
        "from release import upload",
        "from ..upload import publish",
        "def lazily():\n    from release.upload import publish",
    ],
)
def test_a_door_is_noticed_however_it_is_opened(tmp_path: Path, line: str) -> None:
    room = tmp_path / "release" / "folder"
    room.mkdir(parents=True)
    (room / "card.py").write_text(line + "\n", encoding="utf-8")
    assert doors(tmp_path / "release") == {"folder": {"upload"}}


@pytest.mark.parametrize("package", [name for name in ORDER if (ROOT / name).is_dir()])
def test_importing_does_nothing(package: str) -> None:
    names = [name for name in MODULES if name.partition(".")[0] == package]
    assert names
    done = subprocess.run(
        [sys.executable, "-c", GUARD, ",".join(ORDER), *names], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == ""


def test_guard_notices_a_module_that_acts(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "engine" / "acts.py").write_text("from pathlib import Path\nPath('/etc/hostname').read_bytes()\n")
    done = subprocess.run(
        [sys.executable, "-c", GUARD, "engine", "engine.acts"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "while it is imported" in done.stderr


@pytest.mark.parametrize("words", [["--version"], ["--version", "--json"], ["--help-exit-codes"], ["--help"]])
def test_answers_about_itself_load_nothing_heavy(words: list[str]) -> None:
    code = (
        "import sys\nfrom launcher.cli import main\n"
        "try:\n    main(sys.argv[1:])\nexcept SystemExit:\n    pass\n"
        "heavy = {'jinja2', 'numpy', 'prompt_toolkit', 'ctypes', 'asyncio', 'launcher.engine'}\n"
        "heavy |= {'launcher.server', 'starlette', 'uvicorn', 'msgspec', 'llguidance', 'ssl'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr.strip() == "[]"
