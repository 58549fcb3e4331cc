"""A set-up that repeats what is done, believes what was interrupted, or misses a change."""

from __future__ import annotations

import fcntl
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from launcher.errors import MindnanoError, NetworkError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The set-up module, its folders moved to an empty place."""
    spec = importlib.util.spec_from_file_location("setup_checkout", ROOT / "scripts" / "setup_checkout.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "setup_checkout", module)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "BUILD", tmp_path / "build")
    (tmp_path / "build").mkdir()
    return module


def step(setup: ModuleType, ran: list[str], *, key: str = "k", fail: bool = False) -> object:
    result = setup.BUILD / "result"

    def run() -> None:
        ran.append(key)
        result.write_text(key)
        if fail:
            raise KeyboardInterrupt

    return setup.Step(name="thing", key=key, results=(result,), run=run)


def test_done_step_is_not_repeated(setup: ModuleType) -> None:
    ran: list[str] = []
    step(setup, ran).ensure()  # type: ignore[attr-defined]
    step(setup, ran).ensure()  # type: ignore[attr-defined]
    assert ran == ["k"]


def test_changed_input_and_missing_result_repeat_the_step(setup: ModuleType) -> None:
    ran: list[str] = []
    step(setup, ran, key="a").ensure()  # type: ignore[attr-defined]
    step(setup, ran, key="b").ensure()  # type: ignore[attr-defined]
    (setup.BUILD / "result").unlink()
    step(setup, ran, key="b").ensure()  # type: ignore[attr-defined]
    assert ran == ["a", "b", "b"]


def test_interrupted_step_runs_again(setup: ModuleType) -> None:
    ran: list[str] = []
    step(setup, ran).ensure()  # type: ignore[attr-defined]
    with pytest.raises(KeyboardInterrupt):
        step(setup, ran, key="new", fail=True).ensure()  # type: ignore[attr-defined]
    step(setup, ran, key="new").ensure()  # type: ignore[attr-defined]
    assert ran == ["k", "new", "new"]


def test_step_that_makes_nothing_is_an_error(setup: ModuleType) -> None:
    broken = setup.Step(name="thing", key="k", results=(setup.BUILD / "never",), run=lambda: None)
    with pytest.raises(MindnanoError, match="never"):
        broken.ensure()
    assert not broken.is_done()


def test_digest_sees_content_name_and_words(setup: ModuleType, tmp_path: Path) -> None:
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("x")
    second.write_text("x")
    digests = {setup.digest([first]), setup.digest([second]), setup.digest([first], "w"), setup.digest([])}
    first.write_text("y")
    assert len(digests | {setup.digest([first])}) == 5


def test_failing_command_shows_its_last_lines(setup: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    command = [sys.executable, "-c", "print('the reason'); raise SystemExit(3)"]
    with pytest.raises(NetworkError, match="code 3"):
        setup.run_quietly(command, lambda line: None, "pip")
    assert "the reason" in capsys.readouterr().err


def test_second_set_up_waits_for_the_first(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    code = (
        "import fcntl, sys\nhandle = open(sys.argv[1], 'w')\nfcntl.flock(handle, fcntl.LOCK_EX)\n"
        "print('held', flush=True)\nsys.stdin.readline()\n"
    )
    lock = setup.BUILD / ".setup-lock"
    with subprocess.Popen(
        [sys.executable, "-c", code, str(lock)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        release = other.stdin
        said: list[str] = []

        def say_and_release(text: str) -> None:
            said.append(text)
            release.write("\n")
            release.flush()

        monkeypatch.setattr(setup, "say", say_and_release)
        other.stdout.readline()
        with lock.open("w") as handle, pytest.raises(BlockingIOError):
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        with setup.only_one():
            assert len(said) == 1
            assert "waiting" in said[0]


def fake_python(folder: Path, version: str, *, venv: bool) -> None:
    script = folder / "python3"
    script.write_text(
        "#!/bin/sh\n"
        f"case $* in --version) echo 'Python {version}' ;;\n"
        f"*version_info\\ *) {'exit 1' if version < '3.11' else 'exit 0'} ;;\n"
        f"*ensurepip*) {'exit 0' if venv else 'exit 1'} ;;\n"
        f"*) echo {version} ;;\nesac\n"
    )
    script.chmod(0o755)


@pytest.mark.parametrize(
    ("version", "venv", "words"),
    [
        ("3.10", True, ("no Python 3.11 or newer", "Python 3.10", "python3.11-venv")),
        ("3.12", False, ("no venv module", "apt install python3.12-venv")),
        (None, True, ("no Python 3.11 or newer", "no python3")),
    ],
)
def test_machine_without_a_fit_python_is_told_what_to_install(
    tmp_path: Path, version: str | None, venv: bool, words: tuple[str, ...]
) -> None:
    for tool in ("sh", "cat", "dirname"):
        place = shutil.which(tool)
        assert place is not None
        (tmp_path / tool).symlink_to(place)
    if version is not None:
        fake_python(tmp_path, version, venv=venv)
    done = subprocess.run(
        ["sh", str(ROOT / "scripts" / "run"), "x"],
        env={"PATH": str(tmp_path), "HOME": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert done.stdout == ""
    for word in words:
        assert word in done.stderr
