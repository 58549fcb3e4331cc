"""Makes a fresh checkout ready: virtual environment, pinned packages, engine, built-in model.

    python3 scripts/setup_checkout.py run|test

Each step leaves a stamp that names the content it was made from. A step whose stamp still fits is skipped, so a second
start costs a few file reads; a step that was interrupted has no stamp and runs again. A lock keeps two set-ups apart.
Only the standard library is used, because nothing else is there yet.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from launcher.engine_abi import LIBRARY_NAME, native_target  # noqa: E402
from launcher.errors import EngineError, MindnanoError, NetworkError, PackageError, UsageError  # noqa: E402
from launcher.progress import Progress  # noqa: E402

BUILD = ROOT / "build"
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
CHECKPOINT = ROOT / "release" / "demo" / "checkpoint"
PACKER_ROOMS = ("checkpoint", "layouts", "package", "quantization")
DEMO = BUILD / "demo" / "demo.l3r"
DEMO_WORDS = ("--recipe", "w8a8", "--name", "mindnano-demo", "--license", "Apache-2.0")
_TAIL_LINES = 25


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One part of the set-up: `key` names its inputs, `results` must exist afterwards."""

    name: str
    key: str
    results: tuple[Path, ...]
    run: Callable[[], None]

    @property
    def stamp(self) -> Path:
        """Where the key of the last success is kept: with the environment that it describes, or with the build."""
        return (VENV if self.name.startswith("packages") else BUILD) / f".setup-{self.name}"

    def is_done(self) -> bool:
        """Whether the last success still holds."""
        try:
            fits = self.stamp.read_text(encoding="utf-8") == self.key
        except OSError:
            return False
        return fits and all(path.exists() for path in self.results)

    def ensure(self) -> None:
        """Runs the step unless it is done."""
        if self.is_done():
            return
        self.stamp.unlink(missing_ok=True)
        self.run()
        missing = [str(path) for path in self.results if not path.exists()]
        if missing:
            raise EngineError("setup", f"step {self.name} ended without making {', '.join(missing)}")
        partial = self.stamp.with_name(f"{self.stamp.name}.partial")
        partial.write_text(self.key, encoding="utf-8")
        partial.replace(self.stamp)


def steps(profile: str) -> list[Step]:
    """The steps for `run` or `test`, in order."""
    lock = ROOT / "requirements" / "run.txt"
    found = [
        Step(
            name="packages",
            key=digest([lock, ROOT / "pyproject.toml"], str(ROOT)),
            results=(PYTHON, VENV / "bin" / "mindnano-infer", VENV / "bin" / "mindnano"),
            run=lambda: install_packages(lock),
        ),
        Step(
            name="engine",
            key=digest(source_files(ROOT / "engine"), native_target()),
            results=(BUILD / native_target() / LIBRARY_NAME,),
            run=build_engine,
        ),
        Step(
            name="demo",
            key=digest([*source_files(CHECKPOINT), *packers()], *DEMO_WORDS),
            results=(DEMO,),
            run=pack_demo,
        ),
    ]
    if profile == "test":
        test_lock = ROOT / "requirements" / "test.txt"
        torch = ROOT / "requirements" / "torch.txt"
        found.append(
            Step(
                name="packages-test",
                key=digest([test_lock, torch], str(ROOT)),
                results=(VENV / "bin" / "pytest", VENV / "bin" / "mypy", VENV / "bin" / "ruff"),
                run=lambda: install_test_packages(test_lock, torch),
            )
        )
    return found


def packers() -> list[Path]:
    """The modules that the bytes of a package depend on."""
    release = ROOT / "release"
    return [*sorted(release.glob("*.py")), *(path for room in PACKER_ROOMS for path in source_files(release / room))]


def digest(files: Sequence[Path], *words: str) -> str:
    """SHA-256 over names and contents of files, and some words."""
    total = hashlib.sha256()
    for word in words:
        total.update(word.encode() + b"\0")
    for path in files:
        data = path.read_bytes()
        total.update(f"{path.relative_to(ROOT)}\0{len(data)}\0".encode())
        total.update(data)
    return total.hexdigest()


def source_files(folder: Path) -> list[Path]:
    """Every file below a folder in a fixed order, without compiled Python."""
    return sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix != ".pyc")


def install_packages(lock: Path) -> None:
    """The virtual environment with the packages of the lock and this project."""
    if not works([str(PYTHON), "-m", "pip", "--version"]):
        say(f"Making a virtual environment in {VENV.name}")
        run_quietly([sys.executable, "-m", "venv", "--clear", str(VENV)], lambda _line: None, "venv")
    pip_install(["--require-hashes", "-r", str(lock)], "Installing packages", count_pins(lock))
    pip_install(["--no-deps", "--no-build-isolation", "--editable", str(ROOT)], "Installing mindnano-infer", 1)


def install_test_packages(lock: Path, torch: Path) -> None:
    """What the tests need beside: the second lock, then torch."""
    pip_install(["--require-hashes", "-r", str(lock)], "Installing test packages", count_pins(lock))
    pip_install(["-r", str(torch)], "Installing torch", 1)


def count_pins(lock: Path) -> int:
    """How many packages a lock names."""
    return len(re.findall(r"^[A-Za-z0-9]", lock.read_text(encoding="utf-8"), flags=re.MULTILINE))


def pip_install(words: Sequence[str], label: str, packages: int) -> None:
    """pip with our progress in place of its own: it counts the packages that were fetched; the last step is installing.

    Raises:
        NetworkError: pip failed.
    """
    command = [str(PYTHON), "-m", "pip", "install", "--no-input", "--disable-pip-version-check", *words]
    with Progress(label, packages, unit="packages") as progress:
        found = 0

        def follow(line: str) -> None:
            nonlocal found
            found += line.startswith(("Collecting ", "Requirement already satisfied", "Obtaining "))
            progress.update(min(found, packages) - 1)

        run_quietly(command, follow, "pip")
        progress.update(packages)


def build_engine() -> None:
    """The engine's shared library for this machine."""
    say("Building the engine")
    run_quietly([str(PYTHON), "-m", "engine.build"], say_indented, "build")


def pack_demo() -> None:
    """The built-in model's package from its checkpoint."""
    say("Packing the built-in model")
    assets = DEMO.parent / "assets"
    fresh = DEMO.with_suffix(".new.l3r")
    shutil.rmtree(assets, ignore_errors=True)
    fresh.unlink(missing_ok=True)
    mindnano = str(VENV / "bin" / "mindnano")
    quantize = ["quantize", "--source", str(CHECKPOINT), "--output", str(assets), *DEMO_WORDS]
    run_quietly([mindnano, *quantize], lambda _line: None, "pack")
    run_quietly([mindnano, "pack", str(assets / "manifest.json"), str(fresh)], lambda _line: None, "pack")
    fresh.replace(DEMO)
    shutil.rmtree(assets)


def run_quietly(command: Sequence[str], follow: Callable[[str], None], kind: str) -> None:
    """Runs a command, hands each line of its output to `follow` and shows the last ones where it fails.

    Raises:
        NetworkError, EngineError, PackageError: it failed; by what kind of step it was.
    """
    tail: list[str] = []
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    ) as process:
        if process.stdout is None:
            raise EngineError("setup", f"no output of {command[0]}")
        for raw in process.stdout:
            line = raw.decode(errors="replace").rstrip()
            tail = [*tail[-_TAIL_LINES + 1 :], line]
            follow(line)
        code = process.wait()
    if code == 0:
        return
    print("\n".join(f"  {line}" for line in tail), file=sys.stderr)
    message = f"`{' '.join(command)}` ended with code {code}; its last lines are above"
    if kind == "pip":
        raise NetworkError("setup-packages", message, hint="check the network and the package index, then run it again")
    if kind == "build":
        raise EngineError("setup-engine", message)
    raise PackageError("setup-demo" if kind == "pack" else "setup-venv", message)


def works(command: Sequence[str]) -> bool:
    """Whether a command can be run and succeeds."""
    try:
        return subprocess.run(command, capture_output=True, check=False, stdin=subprocess.DEVNULL).returncode == 0
    except OSError:
        return False


def say(text: str) -> None:
    """One line on stderr."""
    print(text, file=sys.stderr, flush=True)


def say_indented(text: str) -> None:
    """One line of a step's own progress."""
    say(f"  {text}")


@contextmanager
def only_one() -> Iterator[None]:
    """Waits until no other set-up of this checkout runs."""
    BUILD.mkdir(exist_ok=True)
    with (BUILD / ".setup-lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("Another set-up of this checkout is running; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def main(arguments: Sequence[str]) -> int:
    """Sets up for the profile that is named; returns the exit code."""
    try:
        if list(arguments) not in (["run"], ["test"]):
            raise UsageError("usage", "usage: setup_checkout.py run|test")
        if all(step.is_done() for step in steps(arguments[0])):
            return 0
        with only_one():
            for step in steps(arguments[0]):
                step.ensure()
    except MindnanoError as error:
        say(f"error ({error.slug}): {error.message}")
        if error.hint:
            say(f"  next: {error.hint}")
        return error.exit_code
    except KeyboardInterrupt:
        say("Set-up stopped; the next start goes on from here")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
