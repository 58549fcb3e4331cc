"""The portable program takes a file, a variable or a library from outside for a part of itself."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from engine.build import plan_build
from launcher import __version__
from tests.bundle.portable import copied, program, run

PLANTED = "import os\nos.write(1, b'planted\\n')\n"
EXPECTED = f"mindnano-infer {__version__}\n"
# Of the standard library, of packages that are inside, and names that imports of theirs try.
NAMES = (
    "json/evil.py",
    "json/__init__.py",
    "encodings/__init__.py",
    "launcher/__init__.py",
    "launcher/cli.py",
    "launcher/version.py",
    "_l3.py",
    "site.py",
    "sitecustomize.py",
    "usercustomize.py",
    "readline.py",
    "_bz2.py",
    "sqlite3.py",
    "multiprocessing/__init__.py",
    "requests/__init__.py",
    "brotli.py",
    "zstandard.py",
    "chardet.py",
    "simplejson.py",
    "socks.py",
    "OpenSSL/__init__.py",
)
COMMANDS = (
    ("--version",),
    ("--version", "--json"),
    ("--list-payload",),
    ("--check", "--json"),
    ("--demo", "--list-contexts"),
    ("--demo", "--think", "off", "--temperature", "0", "1+1=?"),
    ("--download", "http://127.0.0.1:9/model.l3r"),
)
VARIABLES = {
    "PYTHONDEVMODE": "1",
    "PYTHONHASHSEED": "bad",
    "PYTHONHOME": "/nonexistent",
    "PYTHONINSPECT": "1",
    "PYTHONMALLOC": "debug",
    "PYTHONPATH": "/nonexistent",
    "PYTHONSTARTUP": "/nonexistent",
    "PYTHONVERBOSE": "1",
    "PYTHONWARNINGS": "error",
    "PYTHONUTF8": "bad",
    "NUITKA_PACKAGE_HOME": "/nonexistent",
}


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program in a folder full of files that must never run."""
    folder = tmp_path_factory.mktemp("planted")
    path = copied(folder)
    for name in NAMES:
        place = folder / name
        place.parent.mkdir(exist_ok=True)
        place.write_text(PLANTED)
    (folder / "python313.zip").write_bytes(b"")
    with zipfile.ZipFile(folder / "python313.zip", "w") as archive:
        archive.writestr("json/__init__.py", PLANTED)
    lib = folder / "lib" / "python3.13"
    lib.mkdir(parents=True)
    for name in ("os.py", "json.py", "codecs.py"):
        (lib / name).write_text(PLANTED)
    (folder / "pyvenv.cfg").write_text(f"home = {folder}\n")
    (folder / "mindnano-infer._pth").write_text(f"{folder}\n")
    return path


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_no_module_comes_from_a_file_beside_the_program(planted: Path, words: tuple[str, ...]) -> None:
    outside = run(program(), *words, environ={"PYTHONPATH": str(planted.parent)})
    beside = run(planted, *words, folder=planted.parent, environ={"PYTHONPATH": str(planted.parent)})
    assert "planted" not in beside.stdout + beside.stderr
    assert beside.returncode == outside.returncode, beside.stderr


@pytest.mark.parametrize("name", ["libutil.so.1", "libdl.so.2", "librt.so.1", "libc.so.6", "libpython3.13.so.1.0"])
def test_no_library_comes_from_beside_the_program(tmp_path: Path, name: str) -> None:
    path = copied(tmp_path)
    source = tmp_path / "evil.c"
    source.write_text(
        "#include <unistd.h>\n"
        '__attribute__((constructor)) static void evil(void) { (void)!write(1, "planted\\n", 8); }\n'
    )
    toolchain = plan_build().toolchain
    words = ["-shared", "-fPIC", str(source), "-o", str(tmp_path / name)]
    toolchain.run([*toolchain.cc, *words], "compile the planted library")
    done = run(path, "--version", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, EXPECTED)


@pytest.mark.parametrize(("name", "value"), VARIABLES.items(), ids=VARIABLES)
def test_no_variable_of_python_reaches_the_program(name: str, value: str) -> None:
    done = run(program(), "--version", environ={name: value})
    assert (done.returncode, done.stdout, done.stderr) == (0, EXPECTED, "")


def test_all_variables_of_python_together(tmp_path: Path) -> None:
    done = run(program(), "--version", environ={**VARIABLES, "PYTHONPATH": str(tmp_path)})
    assert (done.returncode, done.stdout, done.stderr) == (0, EXPECTED, "")


@pytest.mark.parametrize(
    "name", ["python3", "/nonexistent/python3", "-", "x" * 4000], ids=["word", "path", "dash", "long"]
)
def test_the_name_that_it_is_started_under_leads_nowhere(name: str, tmp_path: Path) -> None:
    done = run(
        Path(sys.executable),
        "-c",
        "import os, sys; os.execve(sys.argv[1], [sys.argv[2], '--version'], {})",
        str(program()),
        name,
        folder=tmp_path,
    )
    assert (done.returncode, done.stdout) == (0, EXPECTED)


def test_it_runs_on_when_its_file_is_replaced(tmp_path: Path) -> None:
    """Modules are in memory and the payload is held open, so an update under a running program changes nothing."""
    path = tmp_path / "mindnano-infer"
    shutil.copy(program(), path)
    process = subprocess.Popen(
        [str(path), *["--demo", "--think", "off", "--temperature", "0"]],
        env={},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while Path(f"/proc/{process.pid}/exe").resolve() != path:
        assert process.poll() is None
        time.sleep(0.01)
    fresh = tmp_path / "fresh"
    fresh.write_bytes(b"not a program")
    fresh.replace(path)
    out, err = process.communicate(b"1+1=?\n", timeout=120)
    assert process.returncode == 0, err
    assert out.strip()


@pytest.mark.parametrize("change", ["removed", "replaced"])
def test_a_child_starts_when_the_name_leads_elsewhere(change: str, tmp_path: Path) -> None:
    """As the self-test of the NPU starts one, after an update."""
    path = tmp_path / "mindnano-infer"
    shutil.copy(program(), path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        path.unlink()
        if change == "replaced":
            path.write_bytes(b"not a program")
        words = [f"/proc/self/fd/{descriptor}", "--version"]
        done = subprocess.run(words, env={}, pass_fds=[descriptor], capture_output=True, text=True)
    finally:
        os.close(descriptor)
    assert (done.returncode, done.stdout) == (0, EXPECTED), done


@pytest.mark.parametrize("words", COMMANDS, ids=" ".join)
def test_nothing_beside_the_program_is_looked_for(words: tuple[str, ...], tmp_path: Path) -> None:
    """No module, library, translation or configuration: with `strace`, where it is."""
    strace = shutil.which("strace")
    if strace is None:
        pytest.skip("strace is not installed")
    home, folder = tmp_path / "home", tmp_path / "folder"
    home.mkdir()
    folder.mkdir()
    path, log = copied(folder), tmp_path / "log"
    words = (strace, "-f", "-e", "trace=file", "-s", "4096", "-o", str(log), str(path), *words)
    environ = {"HOME": str(home), "LANGUAGE": "de"}
    subprocess.run(words, env=environ, cwd=home, stdin=subprocess.DEVNULL, capture_output=True)
    named = {name for line in log.read_text().splitlines() for name in re.findall(r'"([^"]*)"', line)}
    assert str(path) in named
    assert {name for name in named if name.startswith(f"{folder}/")} == {str(path)}
    assert {name for name in named if name.endswith((".py", ".pyc", ".zip", "site-packages", "pyvenv.cfg"))} == set()
