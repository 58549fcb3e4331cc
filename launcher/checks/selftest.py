"""The line about the NPU's self test. The CPU computes, so nothing here stops the program."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from launcher.checks.npu_traces import log_findings
from launcher.checks.report import Finding, Group, Status, skip
from launcher.npu import rknn_abi
from launcher.npu.rknn_library import RknnLibrary
from launcher.npu.selftest import Outcome, SelfTest, lock_folders
from launcher.system import SystemView

_WARNINGS = frozenset({Outcome.BUSY, Outcome.NO_LOCK})

Run = Callable[[str, Mapping[str, str], Sequence[str], Callable[[], int]], SelfTest]
"""Runs the test: path of the library, environment, folders for the lock, counter of kills for want of memory."""


def selftest_findings(
    system: SystemView,
    environ: Mapping[str, str],
    library: RknnLibrary | None,
    scrub: Callable[[str], str],
    run: Run,
    *,
    usable: bool,
    held: bool,
) -> tuple[Finding, ...]:
    """Runs the test where there is an NPU that may be used and a runtime to use it with.

    Args:
        system: the machine.
        environ: for the child.
        library: the runtime that this program carries.
        scrub: takes names and addresses out of what the child printed.
        run: runs the test.
        usable: the driver answered and is one that the runtime can use.
        held: another process has the NPU open. Most programs know nothing of our lock, and two at once panic some
            kernels.
    """
    if not usable:
        return (skip(Group.NPU, "selftest-no-npu"),)
    if held:
        return (skip(Group.NPU, "selftest-held"),)
    place = None if library is None else system.place(library.path)
    if place is None:
        return (skip(Group.NPU, "selftest-no-runtime"),)
    locks = [str(folder) for name in lock_folders(environ) if (folder := system.place(name)) is not None]
    line = _line(run(str(place), environ, locks, lambda: oom_kills(system)), scrub)
    # What the driver saw explains a failure best.
    return (line, *log_findings(system, wanted=True)) if line.status is Status.FAIL else (line,)


def oom_kills(system: SystemView) -> int:
    """How many processes of this process's control groups the kernel has killed for want of memory."""
    total = 0
    for line in (system.read("/proc/self/cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        folder = path.rstrip("/")
        if hierarchy == "0" and not controllers:
            total += _counter(system, f"/sys/fs/cgroup{folder}/memory.events")
        elif "memory" in controllers.split(","):
            total += _counter(system, f"/sys/fs/cgroup/memory{folder}/memory.oom_control")
    return total


def _counter(system: SystemView, path: str) -> int:
    for line in (system.read(path) or "").splitlines():
        words = line.split()
        if len(words) == 2 and words[0] == "oom_kill" and words[1].isdecimal() and len(words[1]) < 20:
            return int(words[1])
    return 0


def _line(test: SelfTest, scrub: Callable[[str], str]) -> Finding:
    wrong = sorted({core.core for core in test.cores if core.wrong})
    lines = [scrub(line) for line in test.last_lines]
    facts: dict[str, object] = {name: scrub(v) if isinstance(v, str) else v for name, v in test.facts.items()}
    code = facts.get("code")
    facts |= {
        "stage": test.stage,
        "version": test.version or "?",
        "exact": len({core.core for core in test.cores} - set(wrong)),
        "products": len(test.cores),
        "wrong": ", ".join(map(str, wrong)) or "-",
        "meaning": rknn_abi.error_text(code) if isinstance(code, int) else "-",
        "last": lines[-1] if lines else "-",
        "lines": lines,
    }
    status = Status.OK if test.outcome is Outcome.EXACT else Status.FAIL
    if test.outcome in _WARNINGS:
        status = Status.WARN
    return Finding(
        group=Group.NPU,
        status=status,
        slug=f"selftest-{test.outcome.value}",
        facts=facts,
        blocking=False,
        private=frozenset({"path"}),
    )
