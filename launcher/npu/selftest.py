"""`--check=deep`: known products on every core of the NPU, in a child with a watchdog.

The child may crash, hang, print anything or be killed; every end of it becomes an `Outcome`. This process never loads
librknnrt. `launcher.npu.child` describes what the child is told and what it says.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Final

from launcher.checks.limits import NEEDED_FILES
from launcher.checks.report import one_line
from launcher.payload.built_in import PROGRAM, start

CHILD_WORD: Final = "--npu-child"
DEADLINE_S: Final = 10.0
_MAX_EVENTS: Final = 64
_MAX_LINE: Final = 8192
_MAX_TAIL: Final = 8192
_SHOWN_LINES: Final = 5
_SHOWN_CHARACTERS: Final = 200
_REAP_S: Final = 2.0
_POLL_S: Final = 0.02
_MAX_LAST_READS: Final = 16  # a pipe holds 64 KiB, and a read takes as much
_FOREIGN: Final = ("LD_", "PYTHON", "GLIBC_TUNABLES", "MALLOC_")


class Outcome(Enum):
    """How the test ended. The values are ends of slugs."""

    EXACT = "exact"
    WRONG = "wrong"
    ZEROS = "zeros"
    BUSY = "busy"
    NO_LOCK = "no-lock"
    NOT_STARTED = "not-started"
    NOT_LOADED = "not-loaded"
    NO_SYMBOL = "no-symbol"
    CALL_FAILED = "call-failed"
    ODD_SHAPE = "odd-shape"
    EXITED = "exited"
    SIGNAL = "signal"
    OUT_OF_MEMORY = "out-of-memory"
    HUNG = "hung"
    STUCK = "stuck"
    GARBAGE = "garbage"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True, kw_only=True)
class CoreResult:
    """One product: core 0 to 2, layout of B, elements of C that are wrong."""

    core: int
    layout: str
    wrong: int
    of: int
    zeros: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class SelfTest:
    """What came out of it.

    Attributes:
        outcome: how it ended.
        stage: what was going on then: ``start``, ``load``, ``core 0`` to ``core 2``, ``end``.
        version: of the library, an empty string where it was not loaded.
        cores: the products that were finished.
        facts: more about the outcome, by name.
        last_lines: the end of what the child and the library printed, without control characters.
    """

    outcome: Outcome
    stage: str
    version: str
    cores: tuple[CoreResult, ...]
    facts: Mapping[str, object] = field(default_factory=dict)
    last_lines: tuple[str, ...] = ()


def child_command() -> list[str]:
    """How this program starts itself as the child."""
    if start() is not None:
        return [PROGRAM, CHILD_WORD]  # leads to the same file in the child, even when another took its name meanwhile
    return [sys.executable, "-m", "launcher", CHILD_WORD]


def lock_folders(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Where the lock may be, the best first: a folder that all programs share keeps them all apart."""
    own = environ.get("XDG_RUNTIME_DIR", "")
    return ("/run/lock", *((own,) if own.startswith("/") else ()), "/tmp")


def run_selftest(
    library: str,
    environ: Mapping[str, str],
    *,
    locks: Sequence[str],
    command: Sequence[str] | None = None,
    deadline_s: float = DEADLINE_S,
    clock: Callable[[], float] = time.monotonic,
    oom_kills: Callable[[], int] = lambda: 0,
) -> SelfTest:
    """Starts the child, listens to it and ends it.

    Args:
        library: absolute path of the librknnrt.so to load.
        environ: the environment; the child gets it without what changes how programs load.
        locks: folders for the lock file, the best first.
        command: how to start the child; by default this program itself.
        deadline_s: seconds from one event to the next.
        clock: seconds, monotone.
        oom_kills: how many processes of this control group the kernel has killed for memory so far.
    """
    request = {
        "library": library,
        "locks": list(locks),
        "files": NEEDED_FILES,
    }
    killed_before = oom_kills()
    reading, writing = os.pipe()
    try:
        process = subprocess.Popen(
            [*(child_command() if command is None else command), str(writing)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=(writing,),
            start_new_session=True,
            # From there Python finds the package of the launcher.
            cwd=Path(__file__).resolve().parents[2] if start() is None else "/",
            env={name: value for name, value in environ.items() if not name.startswith(_FOREIGN)},
        )
    except (OSError, ValueError) as error:
        os.close(reading)
        return SelfTest(outcome=Outcome.NOT_STARTED, stage="start", version="", cores=(), facts={"error": str(error)})
    finally:
        os.close(writing)
    watch = _Watch(process, reading, deadline_s, clock)
    try:
        watch.tell(request)
        watch.listen()
    finally:
        watch.end()
    return watch.result(killed=oom_kills() > killed_before)


class _Watch:
    """One child from its start to its end."""

    def __init__(
        self, process: subprocess.Popen[bytes], events: int, deadline_s: float, clock: Callable[[], float]
    ) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._stdin = process.stdin
        self._output = process.stdout
        self._events = events
        self._deadline_s = deadline_s
        self._clock = clock
        self._pending = b""
        self._tail = b""
        self._stage = "start"
        self._version = ""
        self._cores: list[CoreResult] = []
        self._failure: Mapping[str, object] | None = None
        self._done = False
        self._count = 0
        self._trouble: Outcome | None = None
        self._code: int | None = None

    def tell(self, request: Mapping[str, object]) -> None:
        """Sends the request; a child that is gone already is noticed later."""
        with suppress(OSError):
            self._stdin.write(json.dumps(request).encode() + b"\n")
        with suppress(OSError):
            self._stdin.close()

    def listen(self) -> None:
        """Reads until the child has ended, said nonsense or been silent for too long."""
        deadline = self._clock() + self._deadline_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._events, selectors.EVENT_READ)
            selector.register(self._output, selectors.EVENT_READ)
            while not self._has_ended():
                if self._clock() >= deadline:
                    self._trouble = Outcome.HUNG
                    return
                for key, _ in selector.select(min(_POLL_S, self._deadline_s)):
                    count = self._count
                    if not self._read(key.fd):
                        selector.unregister(key.fileobj)
                    if self._trouble is not None:
                        return
                    if self._count > count:
                        deadline = self._clock() + self._deadline_s
            # What it wrote just before it ended; an orphan of it may hold the pipes open, or go on writing.
            for key in list(selector.get_map().values()):
                os.set_blocking(key.fd, False)
                for _ in range(_MAX_LAST_READS):
                    if self._trouble is not None or not self._read(key.fd):
                        break

    def end(self) -> None:
        """Kills what is left of the child's group and takes its exit code."""
        with suppress(OSError):
            # While the child is not waited for, its number, and so that of its group, belongs to nobody else.
            os.killpg(self._process.pid, signal.SIGKILL)
        try:
            self._code = self._process.wait(_REAP_S)
        except subprocess.TimeoutExpired:  # inside the kernel, where no signal reaches it
            self._trouble = Outcome.STUCK
        os.close(self._events)
        self._output.close()

    def result(self, *, killed: bool) -> SelfTest:
        """The outcome. `killed`: the kernel killed a process of this group for memory meanwhile."""
        outcome, facts = self._outcome(killed=killed)
        return SelfTest(
            outcome=outcome,
            stage=self._stage,
            version=self._version,
            cores=tuple(self._cores),
            facts=facts,
            last_lines=last_lines(self._tail),
        )

    def _outcome(self, *, killed: bool) -> tuple[Outcome, dict[str, object]]:
        if self._trouble is not None:
            return self._trouble, {"seconds": round(self._deadline_s)}
        if self._failure is not None:
            return _failure_outcome(self._failure)
        code = self._code or 0
        if code < 0:
            facts: dict[str, object] = {"signal": _signal_name(-code)}
            return (Outcome.OUT_OF_MEMORY if killed and -code == signal.SIGKILL else Outcome.SIGNAL), facts
        if code > 0:
            return Outcome.EXITED, {"code": code}
        if not self._done:
            return Outcome.STOPPED, {}
        if any(core.wrong for core in self._cores):
            return (Outcome.ZEROS if all(core.zeros for core in self._cores) else Outcome.WRONG), {}
        return Outcome.EXACT, {}

    def _has_ended(self) -> bool:
        # Not waited for yet: see `end`.
        ended = os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        return ended is not None

    def _read(self, descriptor: int) -> bool:
        """Reads what is there; False at the end."""
        try:
            data = os.read(descriptor, 65536)
        except OSError:
            return False
        if not data:
            return False
        if descriptor != self._events:
            self._tail = (self._tail + data)[-_MAX_TAIL:]
            return True
        *lines, self._pending = (self._pending + data).split(b"\n")
        for line in lines:
            if self._done or self._failure is not None or not self._take(line):
                self._trouble = Outcome.GARBAGE
                return False
        if len(self._pending) > _MAX_LINE:
            self._trouble = Outcome.GARBAGE
        return True

    def _take(self, line: bytes) -> bool:
        """Takes one event; False where it is none."""
        self._count += 1
        if len(line) > _MAX_LINE or self._count > _MAX_EVENTS:
            return False
        try:
            event = json.loads(line)
        except (ValueError, RecursionError):
            return False
        if not isinstance(event, dict):
            return False
        match event.get("event"):
            case "started":
                self._stage = "load"
            case "loaded" if isinstance(event.get("version"), str):
                self._version = event["version"][:32]
                self._stage = "core 0"
            case "core":
                return self._take_core(event)
            case "failed" if isinstance(event.get("reason"), str):
                self._failure = event
            case "done" if len(self._cores) == _PRODUCTS:
                self._done = True
                self._stage = "end"
            case _:
                return False
        return True

    def _take_core(self, event: Mapping[str, object]) -> bool:
        mask, layout, wrong, of, zeros = (event.get(name) for name in ("mask", "layout", "wrong", "of", "zeros"))
        if not isinstance(mask, int) or mask not in _CORES or layout not in _LAYOUTS or not isinstance(zeros, bool):
            return False
        if not isinstance(wrong, int) or not isinstance(of, int) or not 0 <= wrong <= of:
            return False
        self._cores.append(CoreResult(core=_CORES[mask], layout=str(layout), wrong=wrong, of=of, zeros=zeros))
        finished = len(self._cores) // len(_LAYOUTS)
        self._stage = f"core {min(finished, len(_CORES) - 1)}"
        return len(self._cores) <= _PRODUCTS


_CORES: Final[Mapping[int, int]] = {1: 0, 2: 1, 4: 2}
_LAYOUTS: Final = ("native", "normal")
_PRODUCTS: Final = len(_CORES) * len(_LAYOUTS)
_FAILURES: Final = {
    "busy": Outcome.BUSY,
    "lock": Outcome.NO_LOCK,
    "load": Outcome.NOT_LOADED,
    "symbol": Outcome.NO_SYMBOL,
    "call": Outcome.CALL_FAILED,
    "shape": Outcome.ODD_SHAPE,
}


def _failure_outcome(event: Mapping[str, object]) -> tuple[Outcome, dict[str, object]]:
    outcome = _FAILURES.get(str(event.get("reason")), Outcome.GARBAGE)
    facts: dict[str, object] = {}
    for name in ("path", "detail", "name", "function"):
        facts[name] = printable_text(str(event.get(name, "")))
    code = event.get("code", 0)
    facts["code"] = code if isinstance(code, int) else 0
    return outcome, facts


def last_lines(data: bytes) -> tuple[str, ...]:
    """The last lines of an output, shortened, without anything that a terminal would obey."""
    lines = [printable_text(line) for line in data.decode(errors="replace").splitlines() if line.strip()]
    return tuple(lines[-_SHOWN_LINES:])


def printable_text(text: str) -> str:
    """The text on one line of limited length, with marks for characters that are not printable."""
    shown = one_line(text[: _SHOWN_CHARACTERS + 1])
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS] + "…"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
