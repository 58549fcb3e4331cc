"""C programs with the whole engine inside, under the sanitizers that this machine has."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from engine.build import build_executable

ENGINE_TESTS = Path(__file__).parents[1] / "engine"
# A leak ends the program with an error as well; a report comes before anything else could hide it.
_ENVIRONMENT = {
    "ASAN_OPTIONS": "detect_leaks=1:abort_on_error=0:allocator_may_return_null=1:detect_stack_use_after_return=1",
    "UBSAN_OPTIONS": "print_stacktrace=1",
}


def has_address_sanitizer() -> bool:
    """Whether the compilers that AddressSanitizer needs are installed."""
    return shutil.which("gcc") is not None and shutil.which("g++") is not None


def sanitizers() -> tuple[str, ...]:
    """The sanitizers to build with: undefined behaviour everywhere, addresses where the system has gcc."""
    return ("address", "undefined") if has_address_sanitizer() else ("undefined",)


def guarded_program(*names: str, folder: Path, coverage: bool = False) -> Path:
    """Builds a program from tests/engine/<name>.c, named after the first, with sanitizers and guarded mappings."""
    return build_executable(
        [ENGINE_TESTS / f"{name}.c" for name in (*names, "guarded_mapping")],
        names[0],
        sanitize=sanitizers(),
        coverage=coverage,
        extra_flags=("-Wl,--wrap=mmap", "-Wl,--wrap=munmap"),
        out=folder,
    )


def run_program(command: Sequence[str | Path]) -> subprocess.CompletedProcess[str]:
    """Runs a program to its end with the sanitizers' settings."""
    return subprocess.run(
        [str(word) for word in command],
        env={**os.environ, **_ENVIRONMENT},
        capture_output=True,
        text=True,
        errors="replace",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What the driver says about a package: status name, where it arose, and the engine's message."""

    status: str
    stage: str
    message: str


class PackageDriver:
    """A running tests/engine/package_driver.c. A crash or report of a sanitizer fails the test that asked."""

    def __init__(self, program: Path, log: Path) -> None:
        self._program = program
        self._log = log
        self._process: subprocess.Popen[str] | None = None

    def ask(self, depth: str, path: Path) -> Answer:
        """Opens and uses one package; `depth` as in package_driver.c."""
        process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            process.stdin.write(f"{depth} {path}\n")
            process.stdin.flush()
            line = process.stdout.readline()
        except BrokenPipeError:
            line = ""
        if not line.endswith("\n"):
            raise AssertionError(f"the engine crashed (exit code {self._end()}):\n{self._report()}")
        status, stage, message = line[:-1].split("\t", 2)
        return Answer(status=status, stage=stage, message=message)

    def close(self) -> None:
        """Ends the program; a leak that is found then is an error too."""
        if self._process is not None:
            code = self._end()
            assert code == 0, f"the driver ended with exit code {code}:\n{self._report()}"

    def _start(self) -> subprocess.Popen[str]:
        with self._log.open("wb") as errors:
            self._process = subprocess.Popen(
                [self._program],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env={**os.environ, **_ENVIRONMENT},
                text=True,
                errors="replace",
            )
        return self._process

    def _end(self) -> int:
        """Closes stdin, waits and returns the exit code."""
        assert self._process is not None
        process, self._process = self._process, None
        process.communicate()
        return process.returncode

    def _report(self) -> str:
        return self._log.read_text(encoding="utf-8", errors="replace")[:8000]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def package_driver(folder: Path) -> PackageDriver:
    """Builds and starts the driver; `folder` takes the program and its log."""
    return PackageDriver(guarded_program("package_driver", folder=folder), folder / "log")


def refused(answer: Answer, pattern: str, what: object) -> None:
    """Asserts that a package was refused as such, with a message that matches."""
    assert answer.status in {"format", "unsupported", "io"}, f"{what}: {answer}"
    assert re.search(pattern, answer.message), f"{what}: expected {pattern!r}, got {answer}"
