"""What a file says of its MTP layer: where it comes from, which trunk it is for, how the trunk was without it.

A side-car and a package with an appended layer have an `mtp` object in their metadata; docs/mtp.md describes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from launcher.engine_abi import CConfig
from launcher.engine_types import Section, TensorInfo
from launcher.errors import PackageError
from launcher.integrity.strict_json import Fields
from release.checkpoint.files import SourceFile
from release.checkpoint.tensors import GROUP_TRUNK
from release.package.manifest import read_manifest
from release.package.reader import PackageFile

APPENDED: Final = "appended"
"""`quantization.mtp` of a package whose layer was appended; the converter writes kept, absent or dropped."""

_IDENTITY_DOMAIN: Final = b"ling3 package identity 1\0"
_MAX_TENSORS: Final = 65536
_MAX_FILES: Final = 4096
_MAX_METADATA: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Donor:
    """Where an MTP layer comes from; None where nobody said.

    Attributes:
        files: the donor checkpoint's files; without its weight files where the layer was taken from them directly.
        sources: SHA-256 of the stored bytes of each tensor of the checkpoint that the layer was made from.
    """

    name: str | None = None
    repository: str | None = None
    revision: str | None = None
    license: str | None = None
    recipe: str | None = None
    calibration: str | None = None
    files: tuple[SourceFile, ...] = ()
    sources: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trunk:
    """The trunk that a layer is for: digest of its tensors, its name, digest of its tokenizer section."""

    identity: str
    name: str | None
    vocabulary: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TrunkFile:
    """What was replaced in the trunk's file: with it the file is made again bit for bit."""

    bytes: int
    sha256: str
    mtp_layer_count: int
    metadata: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpRecord:
    """The `mtp` object of the metadata section.

    Attributes:
        donor: where the layer comes from.
        layer: its number.
        trunk: the trunk that the layer was extracted for.
        appended_to: in a package with an appended layer: the trunk that it holds.
        trunk_file: likewise, the file that it was appended to.
    """

    donor: Donor
    layer: int
    trunk: Trunk
    appended_to: Trunk | None = None
    trunk_file: TrunkFile | None = None

    def to_json(self, tensors: Sequence[TensorInfo]) -> dict[str, Any]:
        """The object; equal records and tensors give equal text."""
        document: dict[str, Any] = {
            "layer": self.layer,
            "donor": {**asdict(self.donor), "files": [asdict(file) for file in self.donor.files]},
            "trunk": asdict(self.trunk),
        }
        if self.appended_to is not None and self.trunk_file is not None:
            document["appended_to"] = asdict(self.appended_to)
            document["trunk_file"] = asdict(self.trunk_file)
        document["tensors"] = [tensor_json(tensor) for tensor in tensors]
        return document


def tensor_json(tensor: TensorInfo) -> dict[str, Any]:
    """Name, layout, shape, size and digest of a tensor."""
    return {
        "name": tensor.name,
        "dtype": tensor.dtype.name,
        "shape": list(tensor.shape),
        "bytes": tensor.length,
        "sha256": tensor.sha256.hex(),
    }


def trunk_identity(package: PackageFile) -> str:
    """Digest of what the trunk computes: config without the number of MTP layers, and every trunk tensor's directory
    entry but for its offset. For a trunk whose config names no MTP layer it is what `l3_package_identity` gives.
    """
    config = _section(package, Section.CONFIG)
    digest = hashlib.sha256(_IDENTITY_DOMAIN)
    digest.update(with_mtp_layers(config, 0))
    for tensor in package.trunk:
        shape = (*tensor.shape, *[0] * (4 - len(tensor.shape)))
        digest.update(tensor.name.encode() + b"\0")
        digest.update(int(tensor.dtype).to_bytes(4, "little") + len(tensor.shape).to_bytes(4, "little"))
        digest.update(b"".join(size.to_bytes(8, "little") for size in shape))
        digest.update(GROUP_TRUNK.to_bytes(4, "little") + tensor.sha256)
    return digest.hexdigest()


def with_mtp_layers(config: bytes, count: int) -> bytes:
    """A config section that differs in nothing but the number of MTP layers."""
    struct = CConfig.from_buffer_copy(config)
    struct.mtp_layer_count = count
    return bytes(struct)


def trunk_of(package: PackageFile) -> Trunk:
    """The trunk that a package holds.

    Raises:
        PackageError: it has no tokenizer.
    """
    tokenizer = _section(package, Section.TOKENIZER)
    name = package.metadata.get("name")
    return Trunk(
        identity=trunk_identity(package),
        name=name if isinstance(name, str) else None,
        vocabulary=hashlib.sha256(tokenizer).hexdigest(),
    )


def read_record(package: PackageFile) -> MtpRecord:
    """What a side-car or a package with an MTP layer says of the layer; a layer that was converted together with its
    trunk has both from the same source.

    Raises:
        PackageError: the record is malformed, or it is not about the tensors that the file holds.
    """
    if "mtp" not in package.metadata:
        return MtpRecord(donor=_donor_of(package.metadata), layer=package.config.layer_count, trunk=trunk_of(package))
    fields = Fields(package.metadata["mtp"], f"{package.path}: mtp")
    listed = fields.take("tensors")
    if listed != [tensor_json(tensor) for tensor in package.mtp]:
        raise PackageError(
            "mtp-record-invalid",
            f"{package.path}: the list of MTP tensors in the metadata is not the one in the directory",
            hint="Copy or download the file again.",
        )
    record = MtpRecord(
        donor=_read_donor(fields.fields("donor")),
        layer=fields.integer("layer", high=512),
        trunk=_read_trunk(fields.fields("trunk")),
        appended_to=_read_trunk(fields.fields("appended_to")) if fields.has("appended_to") else None,
        trunk_file=_read_trunk_file(fields.fields("trunk_file")) if fields.has("trunk_file") else None,
    )
    fields.finish()
    return record


def mtp_state(metadata: Mapping[str, Any]) -> str:
    """kept, absent, dropped or appended, as the metadata says; "not stated" in files of other makers."""
    quantization = metadata.get("quantization")
    state = quantization.get("mtp") if isinstance(quantization, dict) else None
    return state if isinstance(state, str) else "not stated"


def conversion_note(manifest: Path) -> str:
    """One line that says what a conversion did with the MTP layer.

    Args:
        manifest: the manifest.json that the conversion wrote.
    """
    assets = read_manifest(manifest).sections
    path = next(asset.path for asset in assets if asset.kind is Section.METADATA)
    state = mtp_state(json.loads((manifest.parent / path).read_bytes()))
    meaning = {
        "kept": "the package will hold it",
        "absent": "the checkpoint has none",
        "dropped": "left out as --drop-mtp asks",
    }
    return f"MTP layer: {state} ({meaning.get(state, 'unknown')})"


def _donor_of(metadata: Mapping[str, Any]) -> Donor:
    """The provenance of a converted package, as far as it is stated."""
    source = metadata.get("source")
    source = source if isinstance(source, dict) else {}
    quantization = metadata.get("quantization")
    quantization = quantization if isinstance(quantization, dict) else {}
    files = source.get("files")
    return Donor(
        name=_stated(metadata, "name"),
        repository=_stated(source, "repository"),
        revision=_stated(source, "revision"),
        license=_stated(metadata, "license"),
        recipe=_stated(quantization, "recipe"),
        calibration=_stated(quantization, "calibration"),
        files=_read_files(files, "source") if isinstance(files, list) else (),
        sources={},
    )


def _stated(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    return value if isinstance(value, str) else None


def _read_donor(fields: Fields) -> Donor:
    names = ("name", "repository", "revision", "license", "recipe", "calibration")
    texts = {name: fields.text(name) if fields.has(name) else None for name in names}
    files = _read_files(fields.array("files", limit=_MAX_FILES), "donor")
    sources = fields.take("sources")
    if not isinstance(sources, dict) or len(sources) > _MAX_TENSORS:
        raise fields.fail("sources", "an object of digests")
    entries = Fields(sources, "sources")
    digests = {name: entries.digest(name) for name in sources}
    fields.finish()
    return Donor(**texts, files=files, sources=digests)


def _read_files(values: Sequence[object], where: str) -> tuple[SourceFile, ...]:
    files = []
    for value in values:
        fields = Fields(value, f"{where}: files")
        files.append(
            SourceFile(path=fields.text("path"), bytes=fields.integer("bytes"), sha256=fields.digest("sha256"))
        )
        fields.finish()
    return tuple(files)


def _read_trunk(fields: Fields) -> Trunk:
    name = fields.text("name") if fields.has("name") else None
    trunk = Trunk(identity=fields.digest("identity"), name=name, vocabulary=fields.digest("vocabulary"))
    fields.finish()
    return trunk


def _read_trunk_file(fields: Fields) -> TrunkFile:
    metadata = fields.take("metadata")
    if not isinstance(metadata, str) or len(metadata) > _MAX_METADATA:
        raise fields.fail("metadata", "the text of a metadata section")
    file = TrunkFile(
        bytes=fields.integer("bytes"),
        sha256=fields.digest("sha256"),
        mtp_layer_count=fields.integer("mtp_layer_count", high=1),
        metadata=metadata,
    )
    fields.finish()
    return file


def _section(package: PackageFile, kind: Section) -> bytes:
    section = package.section(kind)
    if section is None:
        raise PackageError("package-damaged", f"{package.path} has no {kind.name.lower()} section")
    return section.data
