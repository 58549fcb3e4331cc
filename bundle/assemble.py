"""Puts the portable file together: payload, notices and bill of materials behind the linked program, sealed and judged.

mindnano-infer        the finished program
sbom.cdx.json         its bill of materials, as it is inside too
policy.txt            how the ELF policy judges what is inside
sizes.json            bytes by component
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import launcher
from bundle import link, python_packages, zig
from bundle import nuitka as compiler
from bundle.elf_policy import RULES_FILE, check
from bundle.errors import BundleError
from bundle.origins import archive_origins, distribution_origins
from bundle.payload import Source as Content
from bundle.payload import pack
from bundle.program_sources import source_digest
from bundle.rknn_source import RknnRuntime
from bundle.sbom import Program, bill_of_materials, to_bytes
from bundle.size import check_sizes, component_sizes, table
from bundle.sources import Source
from bundle.stages import ENVIRONMENT, Stage
from bundle.workspace import Workspace
from engine.fetch import file_sha256
from launcher.payload.carried import CERTIFICATES, DEMO_MODEL, LLGUIDANCE, PAGE, PUBLISHER, RKNN_RUNTIME, SBOM
from notices.collect import Inventory, Origin, Ownership, PayloadFile, assign_owners
from notices.compilation import read_report
from notices.components import FOLDER as NOTICES
from notices.components import load_components
from notices.render import render_notices

NAME: Final = "mindnano-infer"
POLICY: Final = "policy.txt"
SIZES: Final = "sizes.json"

_ROOT: Final = NOTICES.parent
_LICENCES: Final = ("LICENSE", "NOTICE", "LICENSES.md")
_MODULES: Final = (
    __name__,
    "bundle.elf_policy",
    "bundle.origins",
    "bundle.payload",
    "bundle.program_sources",
    "bundle.sbom",
    "bundle.size",
    "launcher.payload.carried",
    "launcher.payload.file",
    "notices.collect",
    "notices.compilation",
    "notices.components",
    "notices.render",
)

Supplied = Mapping[tuple[str, str], bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Freight:
    """What the user decides of the payload: Rockchip's runtime and the built-in model, or None to leave them out."""

    runtime: RknnRuntime | None
    demo: Path | None


def stage(
    target: str,
    *,
    linked: Stage,
    compiled: Stage,
    packages: Stage,
    llguidance: Stage,
    nuitka: Stage,
    sources: Mapping[str, Source],
    freight: Freight,
    forbidden: tuple[str, ...],
) -> Stage:
    """The stage for a target. `forbidden` are paths of this machine that may stand nowhere in the file."""
    made_from = source_digest()

    def run(workspace: Workspace) -> None:
        if source_digest() != made_from:
            raise BundleError("program-changed", "the source changed while the build ran", hint="build again")
        elf = workspace.need(linked.name) / link.PROGRAM
        certificates = workspace.need(packages.name) / python_packages.SITE / "certifi" / "cacert.pem"
        (wheel,) = (workspace.need(llguidance.name) / python_packages.FILES).iterdir()
        members: dict[str, Content] = {LLGUIDANCE: wheel, **dict(_payload(freight, certificates))}
        ownership = assign_owners(
            Inventory(
                target=target,
                archives=link.linked_parts(workspace.need(linked.name))[0],
                objects=link.linked_parts(workspace.need(linked.name))[1],
                compilation=read_report(workspace.need(compiled.name) / compiler.REPORT),
                payload=tuple(PayloadFile(name=name, sha256=_sha256(content)) for name, content in members.items()),
                origins=_origins(workspace, (packages, llguidance, nuitka), sources, freight),
            ),
            load_components(),
        )
        supplied = _supplied(freight)
        bill = _bill(ownership, elf, made_from, supplied)
        members |= {SBOM: bill, **render_notices(ownership, supplied)}
        packed = pack(elf, workspace.out / NAME, members)
        (workspace.out / SBOM).write_bytes(bill)
        sizes = component_sizes(packed)
        (workspace.out / SIZES).write_text(json.dumps(sizes, indent=1), encoding="utf-8")
        library = workspace.need(llguidance.name) / python_packages.LLGUIDANCE_LIBRARY
        judged = _judged(packed.path, library, target, freight, forbidden)
        (workspace.out / POLICY).write_text(judged, encoding="utf-8")
        rows = check_sizes(sizes)
        if not all(row.passed for row in rows):
            raise BundleError("size-budget", f"the program is larger than {RULES_FILE.name} allows\n{table(rows)}")

    return Stage(
        name="assemble",
        target=target,
        run=run,
        results=(NAME, SBOM, POLICY, SIZES),
        inputs={
            "zig": zig.VERSION,
            "version": launcher.__version__,
            "program sources": made_from,
            "runtime": "none" if freight.runtime is None else freight.runtime.sha256,
            "terms": "none" if freight.runtime is None else file_sha256(freight.runtime.terms),
            "demo": "none" if freight.demo is None else file_sha256(freight.demo),
            **_text_digests(),
            **{f"source {name}": source.digest for name, source in sources.items()},
        },
        modules=_MODULES,
        needs=(linked, compiled, packages, llguidance, nuitka),
    )


def _payload(freight: Freight, certificates: Path) -> Iterator[tuple[str, Content]]:
    yield CERTIFICATES, certificates
    yield PUBLISHER, compiler.LAUNCHER / "integrity" / "publisher.json"
    for path in _page():
        yield f"{PAGE}{path.name}", path
    if freight.runtime is not None:
        yield RKNN_RUNTIME, freight.runtime.library
    if freight.demo is not None:
        yield DEMO_MODEL, freight.demo


def _page() -> list[Path]:
    """The files of the page that the server shows, which are no modules."""
    return sorted((compiler.LAUNCHER / "server" / "page").iterdir())


def _origins(
    workspace: Workspace, fetched: tuple[Stage, ...], sources: Mapping[str, Source], freight: Freight
) -> Mapping[str, Origin]:
    files = [path for stage in fetched for path in (workspace.need(stage.name) / python_packages.FILES).iterdir()]
    found = {**archive_origins(sources), **distribution_origins(sorted(files))}
    found["pypi:ziglang"] = Origin(version=zig.VERSION)
    found["project"] = Origin(version=launcher.__version__)
    if freight.runtime is not None:
        runtime = freight.runtime
        found["rknn-runtime"] = Origin(version=runtime.version, file=runtime.library.name, sha256=runtime.sha256)
    return found


def _supplied(freight: Freight) -> Supplied:
    return {} if freight.runtime is None else {("librknnrt", "LICENSE"): freight.runtime.terms.read_bytes()}


def _bill(ownership: Ownership, elf: Path, made_from: str, supplied: Supplied) -> bytes:
    program = Program(size=elf.stat().st_size, sha256=file_sha256(elf), sources=made_from)
    epoch = int(ENVIRONMENT["SOURCE_DATE_EPOCH"])
    return to_bytes(bill_of_materials(ownership, program, epoch=epoch, supplied=supplied))


def _judged(program: Path, llguidance: Path, target: str, freight: Freight, forbidden: tuple[str, ...]) -> str:
    """The reports of the ELF policy.

    Raises:
        BundleError: a rule is broken; the message holds the reports.
    """
    reports = [check(program, "program", target, forbidden=[path.encode() for path in forbidden])]
    reports.append(check(llguidance, "llguidance", target))
    if freight.runtime is not None:
        reports.append(check(freight.runtime.library, "rknn", target))
    text = "".join(f"{report.text()}\n" for report in reports)
    if not all(report.passed for report in reports):
        raise BundleError("elf-policy", f"what is inside the program breaks {RULES_FILE.name}\n{text}")
    return text


def _sha256(content: Content) -> str:
    return hashlib.sha256(content).hexdigest() if isinstance(content, bytes) else file_sha256(content)


def _text_digests() -> Mapping[str, str]:
    """Everything that notices and rules are made from, and the publisher's file."""
    files = [path for path in NOTICES.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc")]
    files += [_ROOT / name for name in _LICENCES]
    files += [RULES_FILE, compiler.LAUNCHER / "integrity" / "publisher.json", *_page()]
    return {str(path.relative_to(_ROOT)): file_sha256(path) for path in sorted(files)}
