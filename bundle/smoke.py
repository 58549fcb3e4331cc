"""Starts the finished program the way its users will, before anybody else does.

On this machine's own processor it runs as it is. For aarch64 elsewhere it runs under emulation, with the C library of
each Debian release that boards come with; a release that can no longer be fetched is passed over with a message.

    smoke.json    system -> command -> exit code and what stood on stdout; times and this machine's facts left out
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from bundle import assemble, zig
from bundle.assemble import Freight
from bundle.emulator import CPU, emulator
from bundle.errors import BundleError
from bundle.stages import Stage
from bundle.sysroot import GLIBC, SysrootMissing, sysroot
from bundle.workspace import Workspace, log_tail

RECORD: Final = "smoke.json"
QUESTION: Final = "17+25=?"

_OK: Final = (0,)
# A build machine is no board and may be small, which the check says by its exit code.
_CHECKED: Final = (0, 3, 5)
_DEADLINE_S: Final = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A command line, the exit codes that it may end with, and whether its output is the same everywhere."""

    words: tuple[str, ...]
    codes: tuple[int, ...] = _OK
    same: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """Where the program runs: a name, and the words that go before the program."""

    name: str
    words: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """How a case ended; `stdout` is empty where it differs from machine to machine."""

    code: int
    stdout: str


_CASES: Final = (
    Case(words=("--version",)),
    Case(words=("--help",)),
    Case(words=("--verify-self",)),
    Case(words=("--list-payload",)),
    Case(words=("--notices",)),
    Case(words=("--sbom",)),
    Case(words=("--check",), codes=_CHECKED, same=False),
)
_DEMO_CASES: Final = (
    Case(words=("--list-contexts", "--demo"), same=False),
    Case(words=("--demo", "--think", "off", "--temperature", "0", QUESTION)),
)


def stage(target: str, *, assembled: Stage, freight: Freight) -> Stage:
    """The stage for a target, of the finished program."""
    cases = _CASES if freight.demo is None else (*_CASES, *_DEMO_CASES)

    def run(workspace: Workspace) -> None:
        program = workspace.need(assembled.name) / assemble.NAME
        record = {
            system.name: {" ".join(case.words): asdict(_run(workspace, system, program, case)) for case in cases}
            for system in _systems(workspace, target)
        }
        (workspace.out / RECORD).write_text(json.dumps(record, indent=1, ensure_ascii=False), encoding="utf-8")

    return Stage(
        name="smoke",
        target=target,
        run=run,
        results=(RECORD,),
        inputs={"host": zig.host_target()},
        modules=(__name__, "bundle.emulator", "bundle.sysroot"),
        needs=(assembled,),
    )


def texts(result: Path) -> Mapping[str, Mapping[str, str]]:
    """What stood on stdout, by system and command, of a result of this stage."""
    record = json.loads((result / RECORD).read_text(encoding="utf-8"))
    return {system: {words: run["stdout"] for words, run in runs.items()} for system, runs in record.items()}


def _systems(workspace: Workspace, target: str) -> Iterator[System]:
    if target == zig.host_target():
        yield System(name="native", words=())
        return
    if target != "aarch64":
        workspace.say(f"nothing here runs programs for {target}; the program is not started")
        return
    found = 0
    for release in GLIBC:
        try:
            root = sysroot(release)
        except SysrootMissing as error:
            workspace.say(f"without {release}: {error.message}")
            continue
        found += 1
        yield System(name=release, words=(str(emulator()), "-cpu", CPU, "-L", str(root)))
    if not found:
        raise BundleError("smoke-none", "no C library for aarch64 can be had, so the program cannot be started")


def _run(workspace: Workspace, system: System, program: Path, case: Case) -> Run:
    title = f"{system.name}: mindnano-infer {' '.join(case.words)}"
    workspace.say(title)
    errors = workspace.work / "stderr"
    words: Sequence[str] = [*system.words, str(program), *case.words]
    with errors.open("wb") as stream:
        try:
            done = subprocess.run(
                words,
                cwd=workspace.work,
                env={"MINDNANO_THREADS": "1"} if system.words else {},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stream,
                timeout=_DEADLINE_S,
            )
        except subprocess.TimeoutExpired as error:
            raise BundleError("smoke-late", f"{title} did not end in {_DEADLINE_S:.0f} s") from error
    if done.returncode not in case.codes or not done.stdout.strip():
        expected = " or ".join(map(str, case.codes))
        raise BundleError(
            "smoke-failed",
            f"{title} ended with {done.returncode} and {len(done.stdout)} bytes of output; "
            f"expected {expected} and some\n{log_tail(errors)}",
        )
    return Run(code=done.returncode, stdout=done.stdout.decode(errors="replace") if case.same else "")
