"""`--check --report`: a text for bug reports, always in English, that says neither who nor where."""

from __future__ import annotations

import platform
from collections.abc import Callable, Iterator

from launcher import __version__
from launcher.checks.report import Report, one_line
from launcher.memory import read_memory
from launcher.messages import Catalogue, Language
from launcher.progress import format_bytes
from launcher.system import SystemView


def bug_report(report: Report, system: SystemView, scrub: Callable[[str], str]) -> str:
    """The text: what the machine is, then every line with status and slug.

    Private facts are left out of the lines, and `scrub` goes over everything once more.
    """
    texts = Catalogue(Language.ENGLISH)
    lines = [texts("check-report-title", version=__version__), texts("check-report-note"), ""]
    lines += [f"{name:<8} {one_line(value)}" for name, value in _machine(system) if value]
    lines.append("")
    for finding in report.findings:
        shown = finding.redacted()
        error = shown.facts.get("error")
        slug = shown.slug if error in {None, "", "-"} else f"{shown.slug} ({error})"
        lines.append(f"{shown.status.value:<4}  {shown.group.value:<8} {slug}: {shown.text(texts)}")
        printed = shown.facts.get("lines")
        if isinstance(printed, list):
            lines += [f"      | {line}" for line in printed]
    largest = "unknown" if report.largest_context is None else str(report.largest_context)
    lines += [
        "",
        f"ready: {'yes' if report.ready else 'no'}, exit code {report.exit_code}, backend {report.backend}, "
        f"largest context {largest}",
    ]
    # The kernel's and the vendor's texts may hold anything, so the last word is the scrubber's.
    return scrub("\n".join(lines))


def _machine(system: SystemView) -> Iterator[tuple[str, str]]:
    """Names and values of the head. What cannot be read is empty."""
    model = next(
        (
            found
            for tree in ("/proc/device-tree", "/sys/firmware/devicetree/base")
            if (found := system.line(f"{tree}/model"))
        ),
        "",
    )
    yield "program", f"{__version__}, Python {platform.python_version()}"
    yield "board", model
    yield "machine", system.host.machine
    # Without the part of /proc/version that names who built it where.
    yield "kernel", system.line("/proc/sys/kernel/osrelease") or ""
    yield "system", _os_name(system)
    yield "libc", system.host.libc
    memory = read_memory(system)
    if memory is not None:
        yield "memory", f"{format_bytes(memory.total)}, {format_bytes(memory.available)} available"
    yield "clocks", ", ".join(_clocks(system))


def _os_name(system: SystemView) -> str:
    for line in (system.read("/etc/os-release") or "").splitlines():
        name, _, value = line.partition("=")
        if name == "PRETTY_NAME":
            return value.strip("\"' ")
    return ""


def _clocks(system: SystemView) -> Iterator[str]:
    """``policy4 2208/2400 MHz ondemand`` for every clock that can change."""
    for name in system.names("/sys/devices/system/cpu/cpufreq"):
        folder = f"/sys/devices/system/cpu/cpufreq/{name}"
        now, most = system.number(f"{folder}/scaling_cur_freq"), system.number(f"{folder}/cpuinfo_max_freq")
        if now and most:
            yield f"{name} {now // 1000}/{most // 1000} MHz {system.line(f'{folder}/scaling_governor') or '?'}"
    for name in system.names("/sys/class/devfreq"):
        folder = f"/sys/class/devfreq/{name}"
        now, most = system.number(f"{folder}/cur_freq"), system.number(f"{folder}/max_freq")
        if now and most:
            yield f"{name} {now // 1_000_000}/{most // 1_000_000} MHz {system.line(f'{folder}/governor') or '?'}"
