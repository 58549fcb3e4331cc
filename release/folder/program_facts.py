"""What a portable program says of itself, read out of its payload. The program is never started."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from launcher.errors import MindnanoError, PackageError
from launcher.integrity.publisher import FILE_NAME as PUBLISHER_NAME
from launcher.integrity.publisher import Publisher, parse_publisher
from launcher.payload.carried import DEMO_MODEL, NOTICES, PUBLISHER, RKNN_RUNTIME, SBOM
from launcher.payload.file import Payload

NAME: Final = "mindnano-infer"
DOCUMENT: Final = "NOTICES.txt"
"""Member with all notices, as `notices.render` writes it."""
INDEX: Final = f"{NOTICES}index.json"
RUNTIME_COMPONENT: Final = "librknnrt"
MODEL_COMPONENT: Final = "demo-model"
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Rockchip's library in the program: licence expression, version, SHA-256 and where it is published."""

    licence: str
    version: str
    sha256: str
    homepage: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramFacts:
    """A program.

    Attributes:
        path: the file.
        size: bytes of the whole file.
        version: of the launcher in it.
        target: processor.
        licence: SPDX expression of the project's own code.
        bill: its CycloneDX document, as the payload has it.
        notices: members with notices by name, `NOTICES.txt` included.
        runtime: Rockchip's library, None where the program carries none.
        demo_sha256: of the built-in model, None where the program carries none.
        publisher: whose releases the program trusts.
        tools: versions of what the program was made with, by name.
        sources: digest of the source that it was built from, None where an older build did not note it.
    """

    path: Path
    size: int
    version: str
    target: str
    licence: str
    bill: Json
    notices: Mapping[str, bytes]
    runtime: Runtime | None
    demo_sha256: str | None
    publisher: Publisher
    tools: Mapping[str, str]
    sources: str | None


def read_program(path: Path) -> tuple[ProgramFacts | None, list[str]]:
    """Reads a program and hashes every member of it.

    Returns:
        What it says, or None and everything that is missing or wrong, one sentence each.
    """
    if not path.is_file():
        return None, [f"the program: there is no file {path}"]
    try:
        with Payload(str(path)) as payload:
            gaps = [f"the program: {path}: {gap}" for gap in _gaps(payload)]
            return (None, gaps) if gaps else (_facts(path, payload), [])
    except MindnanoError as error:
        return None, [f"the program: {error.message}"]
    except (ValueError, KeyError, IndexError, TypeError, AttributeError, StopIteration, RecursionError) as error:
        return None, [f"the program: {path}: its {SBOM} is not what a build writes: {error!r}"]


def source_gaps(program: ProgramFacts, sources: str) -> list[str]:
    """Why a release of this program could not name the checkout as its source, one sentence; empty where it can.

    Args:
        sources: digest of the checkout's files, as `bundle.program_sources` takes it.
    """
    if program.sources == sources:
        return []
    found = "does not say what source it was built from"
    if program.sources is not None:
        found = f"was built from another source (digest {program.sources}) than this checkout's ({sources})"
    return [f"the program: {program.path}: it {found}; build it again with mindnano bundle --target {program.target}"]


def components(bill: Json) -> Iterator[Json]:
    """All components of a CycloneDX document, nested ones included, that of its metadata first."""
    waiting = [bill["metadata"]["component"], *bill.get("components", [])]
    while waiting:
        entry = waiting.pop(0)
        yield entry
        waiting = [*entry.get("components", []), *waiting]


def _gaps(payload: Payload) -> list[str]:
    if payload.sealed_part_sha256() != payload.sealed_sha256:
        return ["its bytes are not those that its seal covers"]
    gaps = [f"it carries no {name}" for name in (SBOM, DOCUMENT, INDEX, PUBLISHER) if name not in payload.members]
    for member in payload.members.values():
        if payload.sha256(member.offset, member.size) != member.sha256:
            gaps.append(f"its {member.name} has another SHA-256 than its list says")
    if gaps:
        return gaps
    for entry in json.loads(payload.read(INDEX))["components"]:
        if entry["file"] not in payload.members:
            gaps.append(f"it carries no {entry['file']}, which its list of notices names")
    return gaps


def _facts(path: Path, payload: Payload) -> ProgramFacts:
    bill = json.loads(payload.read(SBOM))
    root = bill["metadata"]["component"]
    by_key = {str(entry["bom-ref"]): entry for entry in components(bill)}
    for key, entry in by_key.items():
        if not (entry["name"] and entry["version"] and entry["licenses"][0]["expression"]):
            raise ValueError(f"{key} has no name, version or licence")
    if not all(dependency["ref"] in by_key for dependency in bill["dependencies"]):
        raise ValueError("its dependencies name what it does not list")
    names = sorted(name for name in payload.members if name == DOCUMENT or name.startswith(NOTICES))
    runtime = None
    if RKNN_RUNTIME in payload.members:
        runtime = _runtime(by_key, payload.member(RKNN_RUNTIME).sha256)
    demo = payload.members.get(DEMO_MODEL)
    return ProgramFacts(
        path=path,
        size=payload.file_bytes,
        version=str(root["version"]),
        target=_properties(root)["target"],
        licence=str(root["licenses"][0]["expression"]),
        bill=bill,
        notices={name: payload.read(name) for name in names},
        runtime=runtime,
        demo_sha256=None if demo is None else demo.sha256,
        publisher=parse_publisher(payload.read(PUBLISHER), f"{path}: {PUBLISHER_NAME}"),
        tools={name: str(by_key[key]["version"]) for name, key in _TOOLS.items() if key in by_key},
        sources=_sources(root),
    )


_TOOLS: Final = {"cpython": "cpython", "nuitka": "nuitka", "zig": "compiler-rt"}
"""Components whose versions are those of the tools that they come with."""


def _properties(root: Json) -> Mapping[str, str]:
    """What a build notes of the whole program, by the name behind `mindnano-infer:`."""
    return {str(entry["name"]).removeprefix(f"{NAME}:"): str(entry["value"]) for entry in root["properties"]}


def _sources(root: Json) -> str | None:
    found = _properties(root).get("source-sha256")
    if found is not None and not _DIGEST.fullmatch(found):
        raise ValueError(f"source-sha256 is {found!r}, no SHA-256")
    return found


def _runtime(by_key: Mapping[str, Json], sha256: str) -> Runtime:
    entry = by_key.get(RUNTIME_COMPONENT)
    if entry is None:
        raise PackageError("program-bill", f"it carries {RKNN_RUNTIME}, which its {SBOM} does not list")
    addresses = [str(one["url"]) for one in entry.get("externalReferences", []) if one["type"] == "website"]
    return Runtime(
        licence=str(entry["licenses"][0]["expression"]),
        version=str(entry["version"]),
        sha256=sha256,
        homepage=addresses[0] if addresses else str(entry["purl"]),
    )
