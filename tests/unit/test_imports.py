"""Imports against the house's direction, and modules that act when they are merely imported."""

from __future__ import annotations

import ast
import subprocess
import sys
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
