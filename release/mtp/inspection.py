"""`mindnano mtp inspect`: what a side-car or a package says of its MTP layer."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Final

from launcher.engine_types import TensorInfo
from launcher.progress import format_bytes
from release.mtp.record import MtpRecord, Trunk, mtp_state, read_record, tensor_json
from release.package.reader import read_package

SCHEMA: Final = "mindnano-mtp"
VERSION: Final = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpReport:
    """The layer of one file; without one, `record` is None and there are no tensors.

    Attributes:
        kind: side-car or package.
        state: kept, appended, absent or dropped; "not stated" in files that do not say; of a side-car, extracted.
    """

    file: str
    kind: str
    state: str
    record: MtpRecord | None
    tensors: tuple[TensorInfo, ...]

    def totals(self) -> dict[str, dict[str, int]]:
        """Tensors, values and bytes of each layout."""
        result: dict[str, dict[str, int]] = {}
        for tensor in self.tensors:
            total = result.setdefault(tensor.dtype.name, {"tensors": 0, "values": 0, "bytes": 0})
            total["tensors"] += 1
            total["values"] += prod(tensor.shape)
            total["bytes"] += tensor.length
        return result

    def to_json(self) -> str:
        """One JSON document with `schema` and `version`."""
        document = {
            "schema": SCHEMA,
            "version": VERSION,
            "file": self.file,
            "kind": self.kind,
            "state": self.state,
            "present": bool(self.tensors),
            "bytes": sum(tensor.length for tensor in self.tensors),
            "totals": self.totals(),
            "record": None if self.record is None else self.record.to_json(self.tensors),
        }
        return json.dumps(document, indent=1, ensure_ascii=False)

    def to_text(self) -> str:
        """Several paragraphs for a reader."""
        size = sum(tensor.length for tensor in self.tensors)
        lines = [f"{self.file}  {self.kind}", f"  {'MTP layer':<26} {self.state}"]
        record = self.record
        if record is None:
            return "\n".join(lines)
        lines += [f"  {'layer':<26} {record.layer}", f"  {'tensors':<26} {len(self.tensors)}, {format_bytes(size)}"]
        donor = record.donor
        names = ("name", "repository", "revision", "license", "recipe", "calibration")
        lines += ["", "Donor", *(f"  {name:<26} {getattr(donor, name) or '-'}" for name in names)]
        lines += [f"  {file.path:<26} {file.bytes:>14}  {file.sha256}" for file in donor.files]
        if donor.sources:
            lines.append(f"  {'source tensors':<26} {len(donor.sources)}, each with its SHA-256")
        lines += ["", "Made for the trunk", *_trunk(record.trunk)]
        if record.appended_to is not None and record.trunk_file is not None:
            lines += ["", "Appended to the trunk", *_trunk(record.appended_to)]
            lines.append(f"  {'file':<26} {record.trunk_file.bytes:>14}  {record.trunk_file.sha256}")
            if record.appended_to != record.trunk:
                lines.append("  This is another trunk than the one that the layer was made for (--any-trunk).")
        lines += ["", "Tensors", *(_tensor(tensor) for tensor in self.tensors), "", "Totals"]
        for name, total in self.totals().items():
            held = format_bytes(total["bytes"])
            lines.append(f"  {name:<7} {total['tensors']:>6} tensors {total['values']:>16,} values {held:>12}")
        return "\n".join(lines)


def inspect_mtp(path: Path) -> MtpReport:
    """Reads what the file says; hashes no tensor.

    Raises:
        PackageError: missing or damaged, or the record is not about the tensors that the file holds.
    """
    package = read_package(path)
    return MtpReport(
        file=path.name,
        kind="side-car" if package.is_sidecar else "package",
        state="extracted" if package.is_sidecar else mtp_state(package.metadata),
        record=read_record(package) if package.mtp else None,
        tensors=package.mtp,
    )


def _trunk(trunk: Trunk) -> list[str]:
    facts = {"name": trunk.name, "identity": trunk.identity, "vocabulary": trunk.vocabulary}
    return [f"  {name:<26} {value or '-'}" for name, value in facts.items()]


def _tensor(tensor: TensorInfo) -> str:
    document = tensor_json(tensor)
    shape = " x ".join(str(size) for size in tensor.shape)
    return f"  {document['name']:<58} {document['dtype']:<7} {shape:>18}  {document['sha256']}"
