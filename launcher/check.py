"""`--check`: what this machine is, what is there and what is missing. Nothing is started and no device is touched."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from launcher.contexts import build_table, show_tokens
from launcher.engine import Package
from launcher.engine_library import Library
from launcher.errors import DeviceError, MindnanoError
from launcher.messages import Catalogue, Language
from launcher.model import engine_options, kv_type, metadata_of, model_name, package_path
from launcher.options import Options
from launcher.progress import format_bytes
from launcher.system import SystemView

BACKEND = "cpu"
_MACHINES = {"x86_64", "amd64", "aarch64", "arm64"}


class Status(Enum):
    """How a finding counts: only `fail` makes the machine not ready."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line. `slug` and `facts` give its text in any language; a failure carries its error."""

    group: str
    status: Status
    slug: str
    facts: Mapping[str, object] = field(default_factory=dict)
    error: MindnanoError | None = None

    def text(self, texts: Catalogue) -> str:
        """The fact for a person."""
        return self.error.message if self.error is not None else texts(self.slug, **self.facts)

    def next_step(self, texts: Catalogue) -> str:
        """What to do about it, or an empty string."""
        if self.error is not None:
            return self.error.hint
        return texts(f"{self.slug}-next") if self.status is Status.WARN else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All findings. `largest_context` is in tokens, None without a package that opens."""

    findings: tuple[Finding, ...]
    largest_context: int | None

    @property
    def exit_code(self) -> int:
        """0 when ready, else that of the first failure."""
        return next((finding.error.exit_code for finding in self.findings if finding.error is not None), 0)

    @property
    def ready(self) -> bool:
        """Whether nothing failed."""
        return self.exit_code == 0

    def document(self) -> dict[str, object]:
        """The JSON document; `launcher/schemas/check.json` describes it."""
        texts = Catalogue(Language.ENGLISH)
        return {
            "schema": "mindnano-infer.check",
            "version": 1,
            "ready": self.ready,
            "exit_code": self.exit_code,
            "backend": BACKEND,
            "largest_context": self.largest_context,
            "findings": [
                {
                    "group": finding.group,
                    "status": finding.status.value,
                    "slug": finding.slug,
                    "fact": finding.text(texts),
                    "next": finding.next_step(texts),
                }
                for finding in self.findings
            ],
        }

    def text(self, texts: Catalogue) -> str:
        """The report for a person."""
        lines = []
        for finding in self.findings:
            lines.append(f"{finding.status.value:<4}  {finding.group:<8} {finding.text(texts)}")
            step = finding.next_step(texts)
            if step:
                lines.append(" " * 15 + texts("check-next", text=step))
        largest = texts("unknown") if self.largest_context is None else show_tokens(self.largest_context)
        lines.append("")
        lines.append(texts("check-ready", ready=texts("yes" if self.ready else "no")))
        lines.append(texts("check-largest", context=largest))
        lines.append(texts("check-backend", backend=BACKEND))
        return "\n".join(lines)


def examine(options: Options, environ: Mapping[str, str], system: SystemView) -> Report:
    """Looks at the machine and, where one is named, at the package."""
    library, runtime = _runtime()
    package, largest = _package(options, environ, system, library)
    findings = (_board(system), _cpu(system, library), _npu(system), runtime, _memory(system), package)
    return Report(findings=findings, largest_context=largest)


def _board(system: SystemView) -> Finding:
    name = system.board()
    if name is None:
        return Finding(group="board", status=Status.SKIP, slug="check-board-unknown")
    return Finding(group="board", status=Status.OK, slug="check-board", facts={"name": name})


def _cpu(system: SystemView, library: Library | None) -> Finding:
    machine = platform.machine()
    if machine.lower() not in _MACHINES:
        error = DeviceError(
            "cpu-unsupported", f"the processor is {machine}, expected x86-64 or arm64", hint="use such a machine"
        )
        return Finding(group="cpu", status=Status.FAIL, slug=error.slug, error=error)
    if library is None:
        features = system.cpu_features()
        found = " ".join(name for name in ("avx2", "fma", "asimd", "asimddp", "fphp") if name in features)
        return Finding(
            group="cpu",
            status=Status.OK,
            slug="check-cpu-features",
            facts={"machine": machine, "features": found or "-"},
        )
    kernels = library.simd_available
    slow = kernels[:1] in ((), ("scalar",))
    return Finding(
        group="cpu",
        status=Status.WARN if slow else Status.OK,
        slug="check-cpu",
        facts={"machine": machine, "kernels": " ".join(kernels)},
    )


def _npu(system: SystemView) -> Finding:
    place = system.npu()
    if place is None:
        return Finding(group="npu", status=Status.SKIP, slug="check-npu-none")
    return Finding(group="npu", status=Status.SKIP, slug="check-npu-unused", facts={"place": place})


def _runtime() -> tuple[Library | None, Finding]:
    try:
        library = Library()
    except MindnanoError as error:
        return None, Finding(group="runtime", status=Status.FAIL, slug=error.slug, error=error)
    facts = {"version": library.version, "abi": library.abi_version, "path": library.path}
    return library, Finding(group="runtime", status=Status.OK, slug="check-runtime", facts=facts)


def _memory(system: SystemView) -> Finding:
    memory = system.memory()
    if memory is None:
        return Finding(group="memory", status=Status.SKIP, slug="check-memory-unknown")
    facts = {"available": format_bytes(memory.available), "total": format_bytes(memory.total)}
    if memory.cgroup_limit is None:
        return Finding(group="memory", status=Status.OK, slug="check-memory", facts=facts)
    facts["limit"] = format_bytes(memory.cgroup_limit)
    return Finding(group="memory", status=Status.OK, slug="check-memory-limited", facts=facts)


def _package(
    options: Options, environ: Mapping[str, str], system: SystemView, library: Library | None
) -> tuple[Finding, int | None]:
    if options.model is None and not options.demo:
        return Finding(group="package", status=Status.SKIP, slug="check-package-none"), None
    if library is None:
        return Finding(group="package", status=Status.SKIP, slug="check-package-unread"), None
    try:
        path = package_path(options, environ)
        with Package(path, library=library) as package:
            name = model_name(metadata_of(package), path)
            table = build_table(package, name, engine_options(options), kv_type(options), system.memory())
            facts = {
                "name": name,
                "size": format_bytes(path.stat().st_size),
                "layers": package.config.layer_count,
                "experts": package.config.expert_count,
                "context": show_tokens(package.config.max_context),
                "path": path,
            }
            slug = "check-package-mtp" if package.has_mtp else "check-package"
            return Finding(group="package", status=Status.OK, slug=slug, facts=facts), table.largest
    except MindnanoError as error:
        return Finding(group="package", status=Status.FAIL, slug=error.slug, error=error), None
