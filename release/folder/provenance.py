"""How a release came about: a statement of in-toto 1 with SLSA's provenance 1 as predicate.

https://in-toto.io/Statement/v1 and https://slsa.dev/provenance/v1 describe the fields. No clock and no name of a
machine is in it, so equal inputs give equal bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from launcher.integrity.manifest import Manifest
from launcher.integrity.model_info import BaseModel, Donor, ModelInfo
from launcher.integrity.strict_json import to_bytes
from release.folder.bom import ReleaseFacts
from release.folder.program_facts import ProgramFacts
from release.package.facts import PackageFacts

NAME: Final = "provenance.intoto.json"
MAX_BYTES: Final = 8 << 20
STATEMENT: Final = "https://in-toto.io/Statement/v1"
PREDICATE: Final = "https://slsa.dev/provenance/v1"
BUILD_TYPE: Final = "urn:mindnano-infer:finalize:1"
SOURCE: Final = "urn:mindnano-infer:source"
PROGRAM_SOURCES: Final = "urn:mindnano-infer:program-sources"
"""The list of the files that the program was built from, as `bundle.program_sources` writes it."""
BUILDER: Final = "urn:mindnano-infer:source-checkout"
"""Whoever has the source can do it; the statement says from which commit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """Where a release was made: commit of the source (None where it was not committed), version of this program."""

    commit: str | None
    version: str


def statement(
    subjects: Mapping[str, str],
    *,
    release: ReleaseFacts,
    origin: Origin,
    program: ProgramFacts,
    package: PackageFacts,
    info: ModelInfo,
    reports: Mapping[str, str],
) -> bytes:
    """The statement about these files (SHA-256 by name).

    Args:
        info: MODEL.json.
        reports: SHA-256 of the reports of fidelity by their names.
    """
    dependencies: list[dict[str, Any]] = []
    if origin.commit is not None:
        kind = "gitCommit" if len(origin.commit) == 40 else "sha256"
        dependencies.append({"uri": SOURCE, "digest": {kind: origin.commit}})
    if program.sources is not None:
        dependencies.append({"uri": PROGRAM_SOURCES, "digest": {"sha256": program.sources}})
    if info.base is not None:
        dependencies.append(_repository("base-model", info.base, package.licence))
    if info.mtp_donor is not None:
        dependencies.append(_repository("mtp-donor", info.mtp_donor, info.mtp_donor.licence))
    calibration = info.quantization.calibration_sha256
    if calibration is not None:
        dependencies.append({"name": "calibration", "digest": {"sha256": calibration}})
    dependencies += [
        {"name": f"checkpoint/{file.path}", "digest": {"sha256": file.sha256}, "annotations": {"bytes": file.bytes}}
        for file in package.sources
    ]
    dependencies += [{"name": f"fidelity/{name}", "digest": {"sha256": reports[name]}} for name in sorted(reports)]
    if program.runtime is not None:
        dependencies.append(
            {"name": "librknnrt.so", "uri": program.runtime.homepage, "digest": {"sha256": program.runtime.sha256}}
        )
    return to_bytes(
        {
            "_type": STATEMENT,
            "subject": [{"name": name, "digest": {"sha256": subjects[name]}} for name in sorted(subjects)],
            "predicateType": PREDICATE,
            "predicate": {
                "buildDefinition": {
                    "buildType": BUILD_TYPE,
                    "externalParameters": {
                        "model": release.model,
                        "version": release.version,
                        "target": program.target,
                        "weightsLicense": info.licence,
                    },
                    "internalParameters": {
                        "sourceDateEpoch": release.epoch,
                        "recipe": package.quantization.recipe,
                        "createdBy": package.created_by,
                    },
                    "resolvedDependencies": dependencies,
                },
                "runDetails": {
                    "builder": {"id": BUILDER, "version": {"mindnano": origin.version, **dict(program.tools)}},
                    "metadata": {},
                },
            },
        }
    )


def provenance_faults(data: bytes, described: Manifest, info: ModelInfo) -> list[str]:
    """What is wrong with a statement, one sentence each.

    Args:
        described: the release's manifest, whose files the statement must be about.
        info: the release's description of its weights.
    """
    try:
        document = json.loads(data)
        faults = [
            f"its {name} is {document.get(name)!r}, expected {value!r}"
            for name, value in (("_type", STATEMENT), ("predicateType", PREDICATE))
            if document.get(name) != value
        ]
        subjects = {str(entry["name"]): str(entry["digest"]["sha256"]) for entry in document["subject"]}
        definition = document["predicate"]["buildDefinition"]
        for text in (definition["buildType"], document["predicate"]["runDetails"]["builder"]["id"]):
            if ":" not in text:
                faults.append(f"{text!r} is no address")
        inputs = definition["resolvedDependencies"]
        origins = {entry.get("uri"): dict(entry["digest"]) for entry in inputs}
        named = {entry.get("name"): (entry.get("uri"), dict(entry["digest"])) for entry in inputs}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        return [f"it is no statement with SLSA's provenance: {error!r}"]
    digests = {file.path: file.sha256 for file in described.files if file.path != NAME}
    faults += [f"it is not about {name}" for name in sorted(digests.keys() - subjects.keys())]
    faults += [
        f"it is about {name}, which the manifest does not list" for name in sorted(subjects.keys() - digests.keys())
    ]
    for name in sorted(digests.keys() & subjects.keys()):
        if digests[name] != subjects[name]:
            faults.append(f"it gives {name} the SHA-256 {subjects[name]}, the manifest {digests[name]}")
    for name, origin in (("base-model", info.base), ("mtp-donor", info.mtp_donor)):
        uri, digest = named.get(name, (None, {}))
        found = "none" if uri is None else f"{uri} at {digest.get('gitCommit')}"
        wanted = "none" if origin is None else f"{_address(origin)} at {origin.revision}"
        if found != wanted:
            faults.append(f"it gives the {name} as {found}, MODEL.json as {wanted}")
    calibration = named.get("calibration", (None, {}))[1].get("sha256")
    if calibration != info.quantization.calibration_sha256:
        faults.append(
            f"it gives the calibration as {calibration}, MODEL.json as {info.quantization.calibration_sha256}"
        )
    for what, address, expected in (
        ("commit", SOURCE, described.commit),
        ("digest of the program's source", PROGRAM_SOURCES, described.source_sha256),
    ):
        said = next(iter(origins.get(address, {}).values()), None)
        if said != expected:
            faults.append(f"it gives the {what} as {said}, the manifest as {expected}")
    return faults


def _repository(name: str, origin: BaseModel | Donor, licence: str | None) -> dict[str, Any]:
    """A repository at a revision; the licence is the one that it was published under."""
    entry: dict[str, Any] = {"name": name, "uri": _address(origin), "digest": {"gitCommit": origin.revision}}
    return entry if licence is None else {**entry, "annotations": {"license": licence}}


def _address(origin: BaseModel | Donor) -> str:
    return f"https://huggingface.co/{origin.repository}"
