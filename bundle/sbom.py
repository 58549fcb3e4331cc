"""The bill of materials of a portable file: CycloneDX 1.6 as JSON, made from the same ownership as the notices.

It depends on its input alone: the serial number is derived from the content, the time is that of SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from notices.collect import Kind, Owned, Ownership, Part
from notices.components import PROJECT, Crate, read_texts

NAME: Final = "sbom.cdx.json"
ROOT: Final = "mindnano-infer"
"""Key of the component that is the program itself."""

_NAMESPACE: Final = uuid.UUID("6f1c2f0e-5b0f-5d1e-9a57-0c1f7a9f3b52")
_PROPERTY: Final = "mindnano-infer"
_CVE: Final = re.compile(r"CVE-\d{4}-\d{4,}")
_MODELS: Final = ".l3r"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """The linked program before the payload is put behind it.

    Attributes:
        size: bytes.
        sha256: of the file.
        sources: digest of the source that it was built from, as `bundle.program_sources` takes it.
    """

    size: int
    sha256: str
    sources: str


def bill_of_materials(
    ownership: Ownership,
    program: Program,
    *,
    epoch: int,
    supplied: Mapping[tuple[str, str], bytes] | None = None,
) -> Json:
    """The document as plain JSON values.

    Args:
        epoch: seconds since 1970 that count as the time of the build.
        supplied: licence texts that are no part of the repository, as in `notices.components.read_texts`.

    Raises:
        NoticeError: the text of terms that SPDX does not know is missing or is not the expected one.
    """
    root = _component(ownership[ROOT], supplied)
    root["type"] = "application"
    root["hashes"] = _sha256(program.sha256)
    root["properties"] = [
        _property("target", ownership.target),
        _property("program-bytes", str(program.size)),
        _property("source-sha256", program.sources),
        *root.get("properties", []),
    ]
    nested: dict[str, list[Json]] = {}
    for owned in ownership.owned:
        if owned.component.within:
            nested.setdefault(owned.component.within, []).append(_component(owned, supplied))
    others = [owned for owned in ownership.owned if owned.component.key != ROOT and not owned.component.within]
    components = [_component(owned, supplied) for owned in others]
    for entry in [root, *components]:
        if entry["bom-ref"] in nested:
            entry.setdefault("components", []).extend(nested[entry["bom-ref"]])
    document: Json = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": "",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch, UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lifecycles": [{"phase": "build"}],
            "component": root,
        },
        "components": components,
        "dependencies": [
            {"ref": ROOT, "dependsOn": [entry["bom-ref"] for entry in components]},
            *({"ref": entry["bom-ref"]} for entry in components),
        ],
    }
    document["serialNumber"] = f"urn:uuid:{uuid.uuid5(_NAMESPACE, _text(document))}"
    return document


def to_bytes(document: Json) -> bytes:
    """The document as it is written: UTF-8, two spaces, keys in the order given, a line end at the end."""
    return (json.dumps(document, indent=2, ensure_ascii=False) + "\n").encode()


def _text(document: Json) -> str:
    return json.dumps(document, ensure_ascii=True, sort_keys=True)


def _component(owned: Owned, supplied: Mapping[tuple[str, str], bytes] | None) -> Json:
    component = owned.component
    entry: Json = {
        "type": "machine-learning-model" if _is_model(owned) else "library",
        "bom-ref": component.key,
        "name": component.name,
        "version": owned.version,
        "description": component.part,
        "copyright": "\n".join(component.copyright),
        "purl": _purl(owned),
        "licenses": [{"expression": component.license}],
    }
    files = [part for part in owned.parts if part.sha256]
    if len(files) == 1:
        entry["hashes"] = _sha256(files[0].sha256)
    references = _references(owned)
    if references:
        entry["externalReferences"] = references
    if owned.origin.patches:
        entry["pedigree"] = {"patches": [_patch(name) for name in owned.origin.patches]}
    evidence = _evidence(owned, supplied)
    if evidence:
        entry["evidence"] = evidence
    if component.crates:
        entry["components"] = [_crate(crate) for crate in component.crates]
    if len(files) > 1:
        entry["properties"] = [_property(f"sha256 {_location(part)}", part.sha256) for part in files]
    return entry


def _crate(crate: Crate) -> Json:
    purl = f"pkg:cargo/{crate.name}@{crate.version}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": crate.name,
        "version": crate.version,
        "purl": purl,
        "licenses": [{"expression": crate.license}],
    }


def _is_model(owned: Owned) -> bool:
    return any(part.kind is Kind.PAYLOAD and part.name.endswith(_MODELS) for part in owned.parts)


def _purl(owned: Owned) -> str:
    """Package URL: that of the description, or that of the distribution, with the version of what was taken."""
    base = owned.component.purl
    if not base:
        kind, _, name = owned.component.source.rpartition(":")
        base = f"pkg:pypi/{name}" if kind == "pypi" else f"pkg:generic/{owned.component.key}"
    path, _, fragment = base.partition("#")
    return f"{path}@{owned.origin.version}" + (f"#{fragment}" if fragment else "")


def _references(owned: Owned) -> list[Json]:
    component = owned.component
    references: list[Json] = []
    if component.homepage:
        references.append({"type": "website", "url": component.homepage})
    origin = owned.origin
    if origin.sha256 and component.source != PROJECT:
        kind = "distribution" if component.source.startswith("pypi:") else "source-distribution"
        reference: Json = {"type": kind, "url": origin.url or _purl_of_file(owned), "hashes": _sha256(origin.sha256)}
        if origin.file:
            reference["comment"] = origin.file
        references.append(reference)
    return references


def _purl_of_file(owned: Owned) -> str:
    """An address of the origin that names no host, for what any index or mirror may serve."""
    path = _purl(owned).partition("#")[0]
    return f"{path}?file_name={owned.origin.file}" if owned.origin.file else path


def _patch(name: str) -> Json:
    patch: Json = {"type": "backport", "diff": {"url": name}}
    found = _CVE.search(name)
    if found:
        patch["resolves"] = [{"type": "security", "id": found.group()}]
    return patch


def _evidence(owned: Owned, supplied: Mapping[tuple[str, str], bytes] | None) -> Json:
    """Where the component is in the file, and the full text of terms that SPDX has no name for."""
    evidence: Json = {}
    if owned.parts:
        evidence["occurrences"] = [{"location": _location(part)} for part in owned.parts]
    if owned.component.references:
        evidence["licenses"] = [
            {"license": {"name": text.reference, "text": {"contentType": "text/plain", "content": content}}}
            for text, content in read_texts(owned.component, supplied)
            if text.reference
        ]
    if owned.component.copyright:
        evidence["copyright"] = [{"text": line} for line in owned.component.copyright]
    return evidence


def _location(part: Part) -> str:
    """Where a part is: a path in the payload, or a name of the link or of the compilation below `program/`."""
    if part.kind is Kind.PAYLOAD:
        return part.name
    folder = {
        Kind.ARCHIVE: "archives",
        Kind.MEMBER: "archives",
        Kind.OBJECT: "objects",
        Kind.MODULE: "python",
        Kind.METADATA: "python-metadata",
    }[part.kind]
    return f"program/{folder}/{part.name}"


def _sha256(digest: str) -> list[Json]:
    return [{"alg": "SHA-256", "content": digest}]


def _property(name: str, value: str) -> Json:
    return {"name": f"{_PROPERTY}:{name}", "value": value}
