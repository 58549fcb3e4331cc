"""The bill of materials of a release, CycloneDX 1.6: the program with all that its own bill lists, and the package."""

from __future__ import annotations

import copy
import json
import re
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from launcher.integrity.model_info import BaseModel, Donor, ModelInfo
from release.folder.program_facts import MODEL_COMPONENT, Json, ProgramFacts, components
from release.folder.program_facts import NAME as PROGRAM
from release.folder.weights_licences import find_licence

NAME: Final = "bom.cdx.json"
RELEASE: Final = "release"
PACKAGE: Final = "package"
MAX_BYTES: Final = 16 << 20
_NAMESPACE: Final = uuid.UUID("3b0a7c55-8f4b-5c0e-8d2f-0b5c7a3f1e64")
_SERIAL: Final = re.compile(r"urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
_TIME: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}")
_TYPES: Final = frozenset({"application", "library", "machine-learning-model", "file", "data"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFacts:
    """What the whole release is called: model, version, and the seconds since 1970 that count as its time."""

    model: str
    version: str
    epoch: int


def release_bill(
    release: ReleaseFacts,
    program: ProgramFacts,
    program_sha256: str,
    info: ModelInfo,
    *,
    tool_version: str,
    own_licence: str | None = None,
) -> Json:
    """The document as plain JSON values; it depends on its input alone.

    Args:
        tool_version: of this program, which makes the document.
        own_licence: what the weights came under, None where that is unknown.
    """
    own = copy.deepcopy(program.bill)
    root = own["metadata"]["component"]
    # What a stranger can hash is the file; what the build hashed is the program before the payload was put behind it.
    root.setdefault("properties", []).extend(
        {"name": f"{PROGRAM}:program-{entry['alg'].lower()}", "value": entry["content"]} for entry in root["hashes"]
    )
    root["hashes"] = _sha256(program_sha256)
    inside = own.get("components", [])
    dependencies = own["dependencies"]
    package = _package(release, info, own_licence)
    if _is_listed_once(program, info):
        (built_in,) = (entry for entry in inside if entry["bom-ref"] == MODEL_COMPONENT)
        inside = [entry for entry in inside if entry is not built_in]
        dependencies = [_renamed(entry) for entry in dependencies if entry["ref"] != MODEL_COMPONENT]
        package |= {name: built_in[name] for name in ("copyright", "evidence") if name in built_in}
    supplier = _supplier(program)
    document: Json = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": "",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(release.epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lifecycles": [{"phase": "post-build"}],
            "tools": {"components": [{"type": "application", "name": "mindnano", "version": tool_version}]},
            **supplier,
            "component": {
                "type": "application",
                "bom-ref": RELEASE,
                "name": release.model,
                "version": release.version,
                "description": "a model package and the program that runs it",
                "licenses": [{"expression": _expression(program, info)}],
                **supplier,
            },
        },
        "components": [root, *inside, package],
        "dependencies": [
            {"ref": RELEASE, "dependsOn": [root["bom-ref"], PACKAGE]},
            *dependencies,
            {"ref": PACKAGE},
        ],
    }
    text = json.dumps(document, ensure_ascii=True, sort_keys=True)
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(_NAMESPACE, text)}"
    return document


def _expression(program: ProgramFacts, info: ModelInfo) -> str:
    """Under which terms the whole is: those of all of its files."""
    parts = [program.licence, info.licence]
    parts += [] if program.runtime is None else [program.runtime.licence]
    parts += [] if info.mtp_donor is None else [info.mtp_donor.licence]
    return " AND ".join(f"({part})" if " OR " in part else part for part in dict.fromkeys(parts))


def _supplier(program: ProgramFacts) -> Json:
    """Who publishes, where the program names one."""
    if program.publisher.repository is None:
        return {}
    organisation = program.publisher.repository.partition("/")[0]
    return {"supplier": {"name": organisation, "url": [f"https://huggingface.co/{organisation}"]}}


def _is_listed_once(program: ProgramFacts, info: ModelInfo) -> bool:
    """Whether the built-in model inside the program is the very package of the release, under the same terms."""
    if program.demo_sha256 != info.package.sha256:
        return False
    found = [entry for entry in program.bill.get("components", []) if entry["bom-ref"] == MODEL_COMPONENT]
    return len(found) == 1 and bool(found[0]["licenses"] == [{"expression": info.licence}])


def _renamed(dependency: Json) -> Json:
    """A dependency on the package instead of on the built-in model."""
    if "dependsOn" not in dependency:
        return dependency
    names = [PACKAGE if name == MODEL_COMPONENT else name for name in dependency["dependsOn"]]
    return {**dependency, "dependsOn": names}


def _package(release: ReleaseFacts, info: ModelInfo, own_licence: str | None) -> Json:
    entry: Json = {
        "type": "machine-learning-model",
        "bom-ref": PACKAGE,
        "name": info.package.path,
        "version": release.version,
        "description": f"weights of {info.name}, recipe {info.quantization.recipe}",
        "licenses": [{"expression": info.licence}],
        "hashes": _sha256(info.package.sha256),
        "purl": f"pkg:generic/{info.name}@{release.version}",
        "modelCard": {"modelParameters": {"modelArchitecture": info.architecture}},
        "properties": [{"name": f"{PROGRAM}:package-bytes", "value": str(info.package.size)}],
    }
    ancestors = []
    if info.base is not None:
        ancestors.append(_ancestor(info.base, own_licence))
    if info.mtp_donor is not None:
        ancestors.append({**_ancestor(info.mtp_donor, info.mtp_donor.licence), "description": "of the MTP layer"})
    if ancestors:
        entry["pedigree"] = {"ancestors": ancestors}
    return entry


def _ancestor(origin: BaseModel | Donor, licence: str | None) -> Json:
    """A repository at a revision. `licence` is the one that it was published under."""
    found = None if licence is None else find_licence(licence)
    return {
        "type": "machine-learning-model",
        "name": origin.repository,
        "version": origin.revision,
        **({} if found is None else {"licenses": [{"expression": found.spdx}]}),
        "purl": _purl(origin),
    }


def _purl(origin: BaseModel | Donor) -> str:
    return f"pkg:huggingface/{origin.repository}@{origin.revision}"


def bill_faults(document: object, program: ProgramFacts | None, program_sha256: str, info: ModelInfo) -> list[str]:
    """What is wrong with the bill of a release, one sentence each.

    Args:
        program: what the program's payload says, None where it could not be read.
        program_sha256: of the program's file.
        info: the package that the release describes.
    """
    if not isinstance(document, dict):
        return ["it is no JSON object"]
    try:
        faults = [*_shape_faults(document)]
        if faults:
            return faults
        listed = {entry["bom-ref"]: entry for entry in components(document)}
        faults += _part_faults(listed, PROGRAM, program_sha256)
        faults += _part_faults(listed, PACKAGE, info.package.sha256)
        if PACKAGE in listed and listed[PACKAGE]["licenses"] != [{"expression": info.licence}]:
            faults.append(f"it gives the package another licence than {info.licence}")
        ancestors = listed[PACKAGE].get("pedigree", {}).get("ancestors", []) if PACKAGE in listed else []
        origins = [origin for origin in (info.base, info.mtp_donor) if origin is not None]
        if PACKAGE in listed and [entry.get("purl") for entry in ancestors] != [_purl(origin) for origin in origins]:
            faults.append("it gives the package other ancestors than MODEL.json")
        if program is not None:
            faults += _missing_parts(listed, program, info)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        return [f"it is not what the format asks for: {error!r}"]
    return faults


def _shape_faults(document: dict[str, Any]) -> Iterator[str]:
    expected = {"bomFormat": "CycloneDX", "specVersion": "1.6", "version": 1}
    for name, value in expected.items():
        if document.get(name) != value:
            yield f"{name} is {document.get(name)!r}, expected {value!r}"
    if not _SERIAL.fullmatch(str(document.get("serialNumber"))):
        yield "its serialNumber is no urn:uuid"
    if not _TIME.fullmatch(str(document["metadata"].get("timestamp"))):
        yield "its timestamp is no time in UTC"
    seen: set[str] = set()
    for entry in components(document):
        reference = entry.get("bom-ref")
        if not isinstance(reference, str) or reference in seen:
            yield f"the reference {reference!r} is missing or stands twice"
            continue
        seen.add(reference)
        if entry.get("type") not in _TYPES or not entry.get("name") or not entry.get("version"):
            yield f"{reference} lacks a known type, a name or a version"
        if reference != RELEASE and not entry.get("licenses"):
            yield f"{reference} has no licence"
        for entry_hash in entry.get("hashes", []):
            if entry_hash.get("alg") != "SHA-256" or not _DIGEST.fullmatch(str(entry_hash.get("content"))):
                yield f"{reference} has a hash that is no SHA-256"
    for dependency in document["dependencies"]:
        for reference in (dependency["ref"], *dependency.get("dependsOn", [])):
            if reference not in seen:
                yield f"its dependencies name {reference}, which it does not list"


def _part_faults(listed: dict[str, Json], reference: str, sha256: str) -> Iterator[str]:
    if reference not in listed:
        yield f"it does not list {reference}"
    elif listed[reference].get("hashes") != _sha256(sha256):
        yield f"it gives {reference} another SHA-256 than {sha256}"


def _missing_parts(listed: dict[str, Json], program: ProgramFacts, info: ModelInfo) -> Iterator[str]:
    for entry in components(program.bill):
        reference = entry["bom-ref"]
        if reference == MODEL_COMPONENT and _is_listed_once(program, info):
            continue
        found = listed.get(reference)
        if found is None:
            yield f"it does not list {reference}, which is in the program"
        elif (found["version"], found["licenses"]) != (entry["version"], entry["licenses"]):
            yield f"it gives {reference} another version or licence than the program's own bill"


def _sha256(digest: str) -> list[Json]:
    return [{"alg": "SHA-256", "content": digest}]
