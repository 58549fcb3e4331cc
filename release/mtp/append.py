"""`mindnano mtp append` and `strip`: an MTP layer joins a finished package, or leaves it.

Only what precedes the weights changes: directory, config (its number of MTP layers) and metadata. The trunk's extents
keep their bytes and their distances. `strip` makes the trunk's file again bit for bit: a package lies where `plan_file`
puts it, and the metadata keep what was replaced.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, BinaryIO, Final

from launcher.engine import Package
from launcher.engine_types import ModelConfig, Section, TensorInfo
from launcher.errors import PackageError, UsageError
from launcher.progress import Progress
from release.mtp.record import (
    APPENDED,
    MtpRecord,
    Trunk,
    TrunkFile,
    mtp_state,
    read_record,
    trunk_of,
    with_mtp_layers,
)
from release.output import partial_file, require_free_space
from release.package.l3r import FilePlan, SectionPart, TensorPart, plan_file, write_file
from release.package.reader import PackageFile, damaged_tensors, hash_tensors, opened, read_package, tensor_copier

_MAY_DIFFER: Final = {"mtp_layer_count", "max_position", "max_context", "stop_ids", "bos_id", "eos_id", "pad_id"}
"""What of a config does not reach the MTP layer's arithmetic."""

Part = tuple[PackageFile, TensorInfo]
"""A tensor and the file that it is copied from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AppendOptions:
    """A package without an MTP layer, a side-car or package that has one, and the new file."""

    trunk: Path
    donor: Path
    output: Path
    any_trunk: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StripOptions:
    """A package with an MTP layer, and the new file."""

    package: Path
    output: Path


def append(options: AppendOptions) -> Path:
    """Writes trunk and MTP layer as one package, which gets its name after every byte was read back and compared.

    Raises:
        UsageError: the output exists, or the trunk has an MTP layer.
        PackageError: a file is missing or damaged, or the layer is not one for this trunk.
        ResourceError: too little disk space.
        EngineError: the engine library could not be loaded.
    """
    refuse_existing(options.output)
    trunk = read_model(options.trunk)
    donor = read_donor(options.donor)
    if trunk.mtp:
        raise UsageError(
            "mtp-present",
            f"{trunk.path} has an MTP layer ({mtp_state(trunk.metadata)})",
            hint="Take it out first: mindnano mtp strip.",
        )
    record = read_record(donor)
    check_same_dimensions(trunk, donor.config, _data(donor, Section.FEATURES), donor.path)
    if not options.any_trunk:
        _check_pin(trunk, donor, record.trunk)
    _check_layout(trunk)
    whole = hashlib.sha256()
    verify(trunk, whole)
    verify(donor)
    record = MtpRecord(
        donor=record.donor,
        layer=record.layer,
        trunk=record.trunk,
        appended_to=trunk_of(trunk),
        trunk_file=TrunkFile(
            bytes=trunk.bytes,
            sha256=whole.hexdigest(),
            mtp_layer_count=trunk.config.mtp_layer_count,
            metadata=_data(trunk, Section.METADATA).decode("utf-8"),
        ),
    )
    sections = {
        **{section.kind: section.data for section in trunk.sections},
        Section.CONFIG: with_mtp_layers(_data(trunk, Section.CONFIG), 1),
        Section.METADATA: metadata_section(_appended_metadata(trunk.metadata, record, donor.mtp)),
    }
    parts = [*((trunk, tensor) for tensor in trunk.trunk), *((donor, tensor) for tensor in donor.mtp)]
    _write(options.output, _plan(sections, parts), sections, parts, lambda path: _audit(path, trunk, donor))
    return options.output


def strip(options: StripOptions) -> Path:
    """Writes the package without its MTP layer. An appended layer leaves the very file that it was appended to; one
    that the converter kept leaves the file that --drop-mtp would have made.

    Raises:
        UsageError: the output exists, or the package has no MTP layer.
        PackageError: the package is missing or damaged, or its record does not lead back to the trunk's file.
        ResourceError: too little disk space.
    """
    refuse_existing(options.output)
    package = read_package(options.package)
    if package.is_sidecar or not package.mtp:
        kind = "is a side-car" if package.is_sidecar else "has no MTP layer"
        raise UsageError("mtp-absent", f"{package.path} {kind}: there is nothing to strip")
    record = read_record(package)
    verify(package)
    sections = {section.kind: section.data for section in package.sections}
    expected = record.trunk_file
    if expected is not None:
        sections[Section.CONFIG] = with_mtp_layers(sections[Section.CONFIG], expected.mtp_layer_count)
        sections[Section.METADATA] = expected.metadata.encode()
    else:
        sections[Section.METADATA] = metadata_section(_with_state(package.metadata, "dropped"))
    parts = [(package, tensor) for tensor in package.trunk]
    plan = _plan(sections, parts)
    if expected is not None and plan.file_bytes != expected.bytes:
        raise _not_the_trunk(package, f"it would have {plan.file_bytes:,} bytes instead of {expected.bytes:,}")
    _write(options.output, plan, sections, parts, lambda path: _check_stripped(path, package, expected))
    return options.output


def read_model(path: Path) -> PackageFile:
    """A package that the engine opens.

    Raises:
        PackageError: missing, damaged, unsupported, or a side-car.
        EngineError: the engine library could not be loaded.
    """
    package = read_package(path)
    if package.is_sidecar:
        raise PackageError(
            "mtp-sidecar",
            f"{path} is a side-car, not a model",
            hint="Give the trunk's package first, then the side-car.",
        )
    Package(path).close()
    return package


def read_donor(path: Path) -> PackageFile:
    """A side-car, or a package with an MTP layer.

    Raises:
        PackageError: missing, damaged, or without an MTP layer.
    """
    donor = read_package(path)
    if not donor.mtp:
        raise PackageError(
            "mtp-absent",
            f"{path} has no MTP layer ({mtp_state(donor.metadata)})",
            hint="Give a side-car made by mindnano mtp extract, or a package that holds the layer.",
        )
    return donor


def refuse_existing(path: Path) -> None:
    """No command of `mtp` replaces a file.

    Raises:
        UsageError: there is something under this name.
    """
    if path.exists() or path.is_symlink():
        raise UsageError("output-exists", f"{path} exists", hint="Give another name.")


def check_same_dimensions(trunk: PackageFile, config: ModelConfig, features: bytes, donor: Path) -> None:
    """Everything of the config that the MTP layer's arithmetic depends on must agree.

    Args:
        trunk: the package that the layer is for.
        config: that of the donor.
        features: likewise, its features section.
        donor: the donor's name in the error.

    Raises:
        PackageError: something differs; all of it is named.
    """
    names = [field.name for field in fields(config) if field.name not in _MAY_DIFFER]
    pairs = {name: (getattr(trunk.config, name), getattr(config, name)) for name in names}
    wrong = [f"{name} {found[1]} instead of {found[0]}" for name, found in pairs.items() if found[0] != found[1]]
    if _data(trunk, Section.FEATURES) != features:
        wrong.append("other features")
    if wrong:
        raise PackageError(
            "mtp-donor-differs",
            f"the MTP layer of {donor} does not fit {trunk.path}: it has {', '.join(wrong)}",
            hint="Take the layer from the base model of the same size and version.",
        )


def verify(package: PackageFile, whole: Any = None) -> None:
    """Hashes every tensor.

    Raises:
        PackageError: a tensor is not what the directory says.
    """
    with Progress(f"Hashing {package.path.name}", package.bytes) as progress:
        damaged = damaged_tensors(package, hash_tensors(package, progress.advance, whole=whole))
    if damaged:
        raise PackageError(
            "package-damaged",
            f"{package.path}: tensor {damaged[0]} is damaged: its SHA-256 does not match the directory",
            hint="Copy or download the file again.",
        )


def metadata_section(document: Mapping[str, Any]) -> bytes:
    """The bytes of a metadata section, as the converter writes them."""
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def tensor_parts(tensors: Sequence[TensorInfo]) -> list[TensorPart]:
    """Entries to write with the same contents."""
    return [
        TensorPart(
            name=tensor.name,
            dtype=tensor.dtype,
            shape=tensor.shape,
            group=tensor.group,
            length=tensor.length,
            sha256=tensor.sha256,
        )
        for tensor in tensors
    ]


def section_parts(sections: Mapping[Section, bytes]) -> list[SectionPart]:
    """Entries of sections with these contents."""
    return [
        SectionPart(kind=kind, length=len(data), sha256=hashlib.sha256(data).digest())
        for kind, data in sections.items()
    ]


def _plan(sections: Mapping[Section, bytes], parts: Sequence[Part]) -> FilePlan:
    return plan_file(section_parts(sections), tensor_parts([tensor for _, tensor in parts]))


def _check_pin(trunk: PackageFile, donor: PackageFile, pinned: Trunk) -> None:
    found = trunk_of(trunk)
    if found.identity != pinned.identity:
        raise PackageError(
            "mtp-other-trunk",
            f"the MTP layer of {donor.path} is for the trunk {pinned.identity[:16]} ({pinned.name or 'no name'});"
            f" {trunk.path} holds {found.identity[:16]} ({found.name or 'no name'})",
            hint="Extract it again with --trunk for this package, or append it all the same with --any-trunk.",
        )
    if found.vocabulary != pinned.vocabulary:
        raise PackageError(
            "mtp-other-vocabulary",
            f"the MTP layer of {donor.path} is for another tokenizer than that of {trunk.path}",
            hint="Extract it again with --trunk for this package, or append it all the same with --any-trunk.",
        )


def _check_layout(trunk: PackageFile) -> None:
    """What lies elsewhere than the writer puts it could not be made again."""
    sections = {section.kind: section.data for section in trunk.sections}
    plan = _plan(sections, [(trunk, tensor) for tensor in trunk.trunk])
    placed = tuple(section.offset for section in trunk.sections), tuple(tensor.offset for tensor in trunk.trunk)
    if placed != (plan.section_offsets, plan.tensor_offsets):
        raise PackageError(
            "package-layout-foreign",
            f"{trunk.path} does not lie as mindnano pack lays packages out, so that strip could not restore it",
            hint="Pack it again with mindnano pack.",
        )


def _appended_metadata(metadata: Mapping[str, Any], record: MtpRecord, tensors: Sequence[TensorInfo]) -> dict[str, Any]:
    return {**_with_state(metadata, APPENDED), "mtp": record.to_json(tensors)}


def _with_state(metadata: Mapping[str, Any], state: str) -> dict[str, Any]:
    quantization = metadata.get("quantization")
    return {**metadata, "quantization": {**(quantization if isinstance(quantization, dict) else {}), "mtp": state}}


def _write(
    path: Path,
    plan: FilePlan,
    sections: Mapping[Section, bytes],
    parts: Sequence[Part],
    check: Callable[[Path], None],
) -> None:
    """Writes the file under a preliminary name; it gets its own when `check` has accepted it."""
    require_free_space(path, plan.file_bytes)
    total = sum(tensor.length for _, tensor in parts)
    with partial_file(path, force=False) as file:
        with Progress("Writing", total) as progress:
            write_file(file, plan, _writers(sections, parts, progress.advance))
        file.flush()
        check(Path(file.name))
        refuse_existing(path)


def _writers(
    sections: Mapping[Section, bytes], parts: Sequence[Part], advance: Callable[[int], None]
) -> Iterator[Callable[[BinaryIO], None]]:
    for data in sections.values():
        yield section_writer(data)
    for package, tensor in parts:
        yield tensor_copier(package, tensor, advance)


def section_writer(data: bytes) -> Callable[[BinaryIO], None]:
    """Writes these bytes to the file it is called with."""

    def write(target: BinaryIO) -> None:
        target.write(data)

    return write


def _audit(path: Path, trunk: PackageFile, donor: PackageFile) -> None:
    """The engine opens the result; its tensors are those of trunk and donor; strip would make the trunk again."""
    with Package(path) as model:
        has_mtp = model.has_mtp
    result = read_package(path)
    with Progress("Auditing", result.bytes) as progress:
        digests = hash_tensors(result, progress.advance)
    expected = [*trunk.trunk, *donor.mtp]
    for wanted, found in zip(expected, result.tensors, strict=True):
        if digests[found.name] != wanted.sha256 or _face(found) != _face(wanted):
            raise _audit_failed(path, f"tensor {wanted.name} is not the one that was copied")
    record = read_record(result)
    if not has_mtp or record.appended_to != trunk_of(result) or record.trunk_file is None:
        raise _audit_failed(path, "its record does not describe it")


def _face(tensor: TensorInfo) -> tuple[object, ...]:
    return tensor.name, tensor.dtype, tensor.shape, tensor.group, tensor.sha256


def _check_stripped(path: Path, package: PackageFile, expected: TrunkFile | None) -> None:
    if expected is None:
        verify(read_package(path))
        return
    digest = hashlib.sha256()
    with opened(path) as file, Progress("Comparing", expected.bytes) as progress:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
            progress.advance(len(chunk))
    if digest.hexdigest() != expected.sha256:
        raise _not_the_trunk(package, f"its SHA-256 would be {digest.hexdigest()} instead of {expected.sha256}")


def _not_the_trunk(package: PackageFile, problem: str) -> PackageError:
    return PackageError(
        "mtp-trunk-differs",
        f"{package.path} does not lead back to the file that its MTP layer was appended to: {problem}",
        hint="Copy or download the package again.",
    )


def _audit_failed(path: Path, problem: str) -> PackageError:
    return PackageError("mtp-audit-failed", f"{path} was written wrongly: {problem}", hint="Check the disk.")


def _data(package: PackageFile, kind: Section) -> bytes:
    section = package.section(kind)
    if section is None:
        raise PackageError("package-damaged", f"{package.path} has no {kind.name.lower()} section")
    return section.data
