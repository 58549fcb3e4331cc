"""The model package that the options name: whether it opens, what it is, what it needs here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.checks.memory import Need
from launcher.contexts import build_table, needed_bytes, show_tokens
from launcher.engine import Package
from launcher.engine_library import Library
from launcher.errors import MindnanoError
from launcher.memory import read_memory
from launcher.model import engine_options, kv_type, metadata_of, model_name, package_path, session_options
from launcher.options import Options
from launcher.progress import format_bytes
from launcher.report import Finding, Group, Status
from launcher.system import SystemView

_PATH = frozenset({"path", "message"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageView:
    """What is known about the package. `path` is None where none is named, `need` where none opens."""

    path: Path | None
    need: Need | None
    findings: tuple[Finding, ...]


def package_view(
    options: Options, environ: Mapping[str, str], system: SystemView, library: Library | None
) -> PackageView:
    """Opens the package as a conversation would, without reading its weights."""
    if options.model is None and not options.demo:
        return PackageView(path=None, need=None, findings=(_line(Status.SKIP, "package-none"),))
    path: Path | None = None
    try:
        path = package_path(options, environ).absolute()
        if library is None:
            return PackageView(
                path=path, need=None, findings=(_line(Status.SKIP, "package-unread", {"path": str(path)}),)
            )
        with Package(path, library=library) as package:
            facts = _facts(package, path)
            slug = "package-mtp" if package.has_mtp else "package"
            return PackageView(
                path=path,
                need=_need(package, options, system),
                findings=(_line(Status.OK, slug, facts),),
            )
    except MindnanoError as error:
        facts = {"error": error.slug, "message": error.message, "hint": error.hint}
        line = _line(Status.FAIL, "package-unusable", facts, exit_code=error.exit_code)
        return PackageView(path=path, need=None, findings=(line,))


def _facts(package: Package, path: Path) -> dict[str, object]:
    return {
        "name": model_name(metadata_of(package), path),
        "size": format_bytes(path.stat().st_size),
        "layers": package.config.layer_count,
        "experts": package.config.expert_count,
        "context": show_tokens(package.config.max_context),
        "path": str(path),
    }


def _need(package: Package, options: Options, system: SystemView) -> Need:
    wanted = session_options(options, package.config)
    plan = package.plan(engine_options(options), wanted)
    table = build_table(package, "", engine_options(options), kv_type(options), read_memory(system))
    return Need(
        context=wanted.context,
        bytes=needed_bytes(plan),
        largest=table.largest,
        weights=tuple((term.name, term.bytes) for term in plan.terms if term.name.startswith("weights")),
    )


def _line(
    status: Status, slug: str, facts: Mapping[str, object] | None = None, *, exit_code: int | None = None
) -> Finding:
    return Finding(group=Group.PACKAGE, status=status, slug=slug, facts=facts or {}, exit_code=exit_code, private=_PATH)
