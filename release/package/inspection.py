"""`mindnano inspect`: what a package holds, read through the engine's own reader."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from launcher.engine import Package
from launcher.engine_types import Section, TensorInfo
from launcher.errors import PackageError
from launcher.integrity.release_files import printable
from launcher.progress import Progress, format_bytes

SCHEMA: Final = "mindnano-package"
VERSION: Final = 1
_GROUPS: Final = ("trunk", "mtp")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageReport:
    """What `inspect` knows about a package; `verified` is whether every byte was hashed."""

    file: str
    bytes: int
    config: Mapping[str, Any]
    features: tuple[str, ...]
    sections: Mapping[str, int]
    metadata: Mapping[str, Any]
    tensors: tuple[TensorInfo, ...]
    has_mtp: bool
    verified: bool

    def totals(self) -> dict[str, dict[str, int]]:
        """Tensors, values and bytes of each layout."""
        result: dict[str, dict[str, int]] = {}
        for tensor in self.tensors:
            total = result.setdefault(tensor.dtype.name, {"tensors": 0, "values": 0, "bytes": 0})
            values = 1
            for size in tensor.shape:
                values *= size
            total["tensors"] += 1
            total["values"] += values
            total["bytes"] += tensor.length
        return result

    def to_json(self) -> str:
        """One JSON document with `schema` and `version`."""
        document = {
            "schema": SCHEMA,
            "version": VERSION,
            "file": self.file,
            "bytes": self.bytes,
            "verified": self.verified,
            "has_mtp": self.has_mtp,
            "config": dict(self.config),
            "features": list(self.features),
            "sections": dict(self.sections),
            "metadata": dict(self.metadata),
            "totals": self.totals(),
            "tensors": [
                {
                    "name": tensor.name,
                    "dtype": tensor.dtype.name,
                    "shape": list(tensor.shape),
                    "group": _GROUPS[tensor.group],
                    "offset": tensor.offset,
                    "bytes": tensor.length,
                    "sha256": tensor.sha256.hex(),
                }
                for tensor in self.tensors
            ],
        }
        return json.dumps(document, indent=1, ensure_ascii=False)

    def to_text(self) -> str:
        """Several paragraphs for a reader."""
        proof = "  every SHA-256 is right" if self.verified else ""
        lines = [f"{printable(self.file)}  {format_bytes(self.bytes)}{proof}"]
        lines += ["", *_provenance(self.metadata)]
        lines += ["", "Config", *(f"  {name:<26} {_plain(value)}" for name, value in self.config.items())]
        lines += ["", "Features", *(f"  {printable(feature)}" for feature in self.features)]
        lines += ["", "Sections", *(f"  {name:<26} {format_bytes(size):>12}" for name, size in self.sections.items())]
        lines += ["", f"Tensors ({len(self.tensors)}, MTP layer {'present' if self.has_mtp else 'absent'})"]
        lines += [_tensor_line(tensor) for tensor in self.tensors]
        lines += ["", "Totals"]
        for name, total in self.totals().items():
            size = format_bytes(total["bytes"])
            lines.append(f"  {name:<7} {total['tensors']:>6} tensors {total['values']:>16,} values {size:>12}")
        return "\n".join(lines)


def inspect_package(path: Path, *, verify: bool) -> PackageReport:
    """Opens a package and reports what it holds; with `verify` hashes all of it.

    Raises:
        PackageError: missing, damaged or unsupported.
        EngineError: the engine library could not be loaded.
    """
    with Package(path) as package:
        size = path.stat().st_size
        if verify:
            with Progress(f"Hashing {path.name}", size) as progress:
                try:
                    package.verify(lambda done, total: progress.update(done * size // max(total, 1)))
                except PackageError as error:
                    raise error.about(path) from error
        sections = {kind.name.lower(): package.section(kind) for kind in Section}
        return PackageReport(
            file=path.name,
            bytes=size,
            config=asdict(package.config),
            features=tuple(_text(sections["features"]).split()),
            sections={name: len(data) for name, data in sections.items() if data is not None},
            metadata=_metadata(sections["metadata"]),
            tensors=tuple(package.tensors()),
            has_mtp=package.has_mtp,
            verified=verify,
        )


def _metadata(data: bytes | None) -> dict[str, Any]:
    try:
        metadata = json.loads(_text(data))
    except (ValueError, RecursionError) as error:
        raise PackageError("package-damaged", f"the metadata section is not valid JSON: {error}") from error
    if not isinstance(metadata, dict):
        raise PackageError("package-damaged", "the metadata section is not a JSON object")
    return metadata


def _text(data: bytes | None) -> str:
    try:
        return (data or b"").decode("utf-8")
    except UnicodeDecodeError as error:
        raise PackageError("package-damaged", f"a text section is not UTF-8: {error}") from error


def _provenance(metadata: Mapping[str, Any]) -> list[str]:
    source = metadata.get("source") if isinstance(metadata.get("source"), dict) else {}
    quantization = metadata.get("quantization") if isinstance(metadata.get("quantization"), dict) else {}
    assert isinstance(source, dict)
    assert isinstance(quantization, dict)
    facts = {
        "name": metadata.get("name"),
        "created by": metadata.get("created_by"),
        "licence": metadata.get("license"),
        "repository": source.get("repository"),
        "revision": source.get("revision"),
        "recipe": quantization.get("recipe"),
        "calibration": quantization.get("calibration"),
        "MTP layer": quantization.get("mtp"),
    }
    lines = ["Provenance", *(f"  {name:<26} {_plain(value)}" for name, value in facts.items())]
    files = source.get("files")
    for file in files if isinstance(files, list) else []:
        if isinstance(file, dict):
            path, size, digest = (printable(str(file.get(key))) for key in ("path", "bytes", "sha256"))
            lines.append(f"  {path:<26} {size:>14}  {digest}")
    return lines


def _plain(value: object) -> str:
    if isinstance(value, tuple | list):
        return printable(", ".join(str(item) for item in value))
    return "-" if value is None else printable(str(value))


def _tensor_line(tensor: TensorInfo) -> str:
    shape = " x ".join(str(size) for size in tensor.shape)
    size = format_bytes(tensor.length)
    return f"  {tensor.name:<58} {tensor.dtype.name:<7} {shape:>18} {size:>10}  {_GROUPS[tensor.group]}"
