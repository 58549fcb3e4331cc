"""The engine library, which computes on the CPU, and the Rockchip runtime, which speaks to the NPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.checks.report import Finding, Group, Status
from launcher.engine_library import Library
from launcher.errors import EngineError, MindnanoError
from launcher.integrity.hashing import implementation
from launcher.npu.rknn_library import Judgement, RknnLibrary, judge, read_library, system_copies
from launcher.payload.carried import RUNTIME_VARIABLE, rknn_runtime
from launcher.system import SystemView

_PATH = frozenset({"path", "message"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineView:
    """The engine library, None where it does not load, and the line about it."""

    library: Library | None
    finding: Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class RknnView:
    """The Rockchip runtime that may be loaded, None where there is none, and the lines about it."""

    library: RknnLibrary | None
    findings: tuple[Finding, ...]


def engine_view() -> EngineView:
    """Loads the engine library, as a conversation would."""
    try:
        library = Library()
    except EngineError as error:
        return EngineView(
            library=None,
            finding=Finding(
                group=Group.RUNTIME,
                status=Status.FAIL,
                slug="runtime-engine-missing",
                facts={"error": error.slug, "message": error.message, "hint": error.hint},
                exit_code=error.exit_code,
                private=frozenset({"message"}),
            ),
        )
    facts = {
        "version": library.version,
        "abi": library.abi_version,
        "kernels": " ".join(library.simd_available),
        "sha256": implementation(library),
        "path": str(library.path),
    }
    return EngineView(library=library, finding=_line(Status.OK, "runtime-engine", facts))


def rknn_view(system: SystemView, environ: Mapping[str, str]) -> RknnView:
    """Looks at the runtime that this program carries, or else borrows one; names the copies that the system has."""
    try:
        path = rknn_runtime(environ)
    except MindnanoError as error:
        facts = {"error": error.slug, "message": error.message, "hint": error.hint}
        return RknnView(library=None, findings=(_line(Status.FAIL, "runtime-rknn-unpacked", facts),))
    if path is None:
        named = environ.get(RUNTIME_VARIABLE, "")
        slug = "runtime-rknn-relative" if named else "runtime-rknn-none"
        status = Status.WARN if named else Status.SKIP
        library, line = None, _line(status, slug, {"variable": RUNTIME_VARIABLE, "path": named})
        borrowed = None if named else _borrowed(system)
        if borrowed is not None:
            path = borrowed.path
            facts = {"version": borrowed.version, "sha256": borrowed.sha256, "path": path}
            library, line = borrowed, _line(Status.OK, "runtime-rknn-borrowed", facts)
    else:
        library, line = _carried(system, path)
    copies = tuple(
        _line(Status.OK, "runtime-rknn-system", {"path": place, "version": version or "?"})
        for place, version in system_copies(system, environ)
        if place != path
    )
    return RknnView(library=library, findings=(line, *copies))


def _borrowed(system: SystemView) -> RknnLibrary | None:
    """The first copy in the system's own folders that is known to be good, for a program that carries none."""
    for place, version in system_copies(system, {}):
        if judge(version) is not Judgement.GOOD:
            continue
        found = read_library(system, place)
        if found is not None and not found.trouble and not found.missing and found.machine == system.host.machine:
            return found
    return None


def _carried(system: SystemView, path: str) -> tuple[RknnLibrary | None, Finding]:
    found = read_library(system, path)
    if found is None:
        return None, _line(Status.FAIL, "runtime-rknn-missing", {"path": path})
    facts: dict[str, object] = {
        "version": found.version or "?",
        "build": found.build,
        "sha256": found.sha256,
        "published": found.published,
        "size": found.size,
        "path": path,
    }
    if found.trouble:
        return None, _line(Status.FAIL, "runtime-rknn-damaged", facts | {"trouble": found.trouble})
    if found.machine != system.host.machine:
        machines = {"machine": found.machine, "expected": system.host.machine}
        return None, _line(Status.FAIL, "runtime-rknn-foreign", facts | machines)
    if found.missing:
        return None, _line(Status.FAIL, "runtime-rknn-symbols", facts | {"missing": ", ".join(found.missing)})
    judgement = judge(found.version)
    status = {Judgement.GOOD: Status.OK, Judgement.BROKEN: Status.FAIL}.get(judgement, Status.WARN)
    slug = "runtime-rknn" if judgement is Judgement.GOOD else f"runtime-rknn-{judgement.value}"
    return found, _line(status, slug, facts)


def _line(status: Status, slug: str, facts: Mapping[str, object]) -> Finding:
    # The CPU computes whatever the Rockchip runtime is, so its failures never stop the program.
    return Finding(group=Group.RUNTIME, status=status, slug=slug, facts=facts, private=_PATH, blocking=False)
