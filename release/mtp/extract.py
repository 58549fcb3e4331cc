"""`mindnano mtp extract`: the MTP layer of a checkpoint or a package as a side-car `NAME.mtp.l3r`."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

from launcher.engine_types import Dtype, ModelConfig, Section, TensorInfo
from launcher.errors import PackageError, UsageError
from launcher.progress import Progress
from release.checkpoint.config import FEATURES, check_supported, config_section, parse_config_section, read_config
from release.checkpoint.files import Checkpoint, SourceFile, checkpoint_name, open_checkpoint
from release.checkpoint.safetensors_reader import TensorLocation, TensorReader, unreadable
from release.checkpoint.special_tokens import resolve_special_tokens
from release.checkpoint.tensors import GROUP_MTP, PackageTensor, check_closed_world, package_tensors
from release.layouts.quantizer import Float32Array
from release.layouts.weights import tensor_bytes
from release.mtp.append import (
    check_same_dimensions,
    metadata_section,
    read_donor,
    read_model,
    refuse_existing,
    section_parts,
    section_writer,
    tensor_parts,
    verify,
)
from release.mtp.record import Donor, MtpRecord, Trunk, read_record, trunk_of
from release.output import partial_file, require_free_space
from release.package.l3r import plan_file, write_file
from release.package.reader import (
    SIDECAR_FORMAT,
    PackageFile,
    damaged_tensors,
    hash_tensors,
    read_package,
    tensor_copier,
)
from release.package.tokenizer_tables import build_tables
from release.quantization.assemble import Fold
from release.quantization.encoding import Encoded, Task, encoding_jobs
from release.quantization.quantize import CREATED_BY
from release.quantization.recipe import RECIPES, Recipe
from release.quantization.scales import Calibration, read_calibration

SUFFIX: Final = ".mtp.l3r"
DEFAULT_RECIPE: Final = "w8a8"
"""Heads in four bits are reported to lose much of their acceptance; the layer is small beside the trunk."""

_CHUNK: Final = 1 << 20
_ITEM_BYTES: Final = {"F32": 4, "F16": 2, "BF16": 2}


@dataclass(frozen=True, slots=True, kw_only=True)
class ExtractOptions:
    """Where the layer is, the new file, the trunk it is for, and provenance that the source does not tell."""

    source: Path
    output: Path
    trunk: Path | None = None
    recipe: str | None = None
    calibration_scales: Path | None = None
    name: str | None = None
    license: str | None = None
    repository: str | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Planned:
    """A tensor to convert, and what it becomes."""

    tensor: PackageTensor
    dtype: Dtype
    length: int
    fold: Fold | None
    importance: Float32Array | None


def extract(options: ExtractOptions) -> Path:
    """Writes the side-car. The same source, trunk and options give the same bytes.

    Raises:
        UsageError: the output exists or has another suffix, or an option does not go with the source.
        PackageError: the source has no MTP layer, or source or trunk are missing, damaged or do not fit each other.
        ResourceError: too little disk space.
    """
    if not options.output.name.endswith(SUFFIX) or options.output.name == SUFFIX:
        raise UsageError(
            "mtp-name", f"{options.output} is no name for a side-car", hint=f"Give one that ends in {SUFFIX}."
        )
    refuse_existing(options.output)
    trunk = None if options.trunk is None else read_model(options.trunk)
    if options.source.is_dir():
        _from_checkpoint(options, trunk)
    else:
        _from_package(options, trunk)
    return options.output


def source_digests(
    checkpoint: Checkpoint, tensors: tuple[PackageTensor, ...], advance: Callable[[int], None]
) -> dict[str, str]:
    """SHA-256 of the stored bytes of every source tensor, by name.

    Raises:
        PackageError: a file cannot be read.
    """
    names = sorted({source.name for tensor in tensors for source in tensor.sources})
    return {name: _hash_stored(checkpoint.tensors[name], advance) for name in names}


def stored_bytes(checkpoint: Checkpoint, tensors: tuple[PackageTensor, ...]) -> int:
    """Bytes that `source_digests` reads."""
    names = {source.name for tensor in tensors for source in tensor.sources}
    return sum(_size(checkpoint.tensors[name]) for name in names)


def checkpoint_mtp(checkpoint: Checkpoint) -> tuple[ModelConfig, bytes, tuple[PackageTensor, ...]]:
    """Config, tokenizer section and MTP tensors of a base checkpoint.

    Raises:
        PackageError: it is not supported, incomplete, or has no MTP layer.
    """
    check_supported(checkpoint.config)
    tables = build_tables(checkpoint.tokenizer_json)
    special = resolve_special_tokens(
        checkpoint.config, checkpoint.generation_config, checkpoint.tokenizer_config, tables.ids, tables.token_count
    )
    config = read_config(checkpoint.config, special=special, token_count=tables.token_count, max_context=None)
    if config.mtp_layer_count == 0:
        raise PackageError(
            "mtp-absent",
            f"{checkpoint.folder} has no MTP layer: its config.json says num_nextn_predict_layers 0",
            hint="The chat models have none; give the base model.",
        )
    every = package_tensors(config, with_mtp=True)
    check_closed_world(every, {name: location.shape for name, location in checkpoint.tensors.items()})
    return config, tables.section, tuple(tensor for tensor in every if tensor.group == GROUP_MTP)


def _from_checkpoint(options: ExtractOptions, trunk: PackageFile | None) -> None:
    recipe = RECIPES.get(options.recipe or DEFAULT_RECIPE)
    if recipe is None:
        raise UsageError(
            "recipe-unknown", f"there is no recipe {options.recipe!r}", hint=f"Choose from {', '.join(RECIPES)}."
        )
    if trunk is None:
        raise UsageError(
            "mtp-trunk-missing",
            f"{options.source} is a checkpoint, and nothing says which package its MTP layer is for",
            hint="Give the package that it will be appended to as --trunk.",
        )
    checkpoint = open_checkpoint(options.source)
    config, vocabulary, tensors = checkpoint_mtp(checkpoint)
    stored = parse_config_section(config_section(config))  # its numbers are float32
    check_same_dimensions(trunk, stored, _features(), options.source)
    pin = trunk_of(trunk)
    if hashlib.sha256(vocabulary).hexdigest() != pin.vocabulary:
        raise PackageError(
            "mtp-other-vocabulary",
            f"{options.source} has another tokenizer than {trunk.path}: the layer would speak of other tokens",
            hint="Take the layer from the base model of the same version.",
        )
    calibration = None
    if options.calibration_scales is not None:
        trunk_tensors = [one for one in package_tensors(config, with_mtp=True) if one.group != GROUP_MTP]
        calibration = read_calibration(options.calibration_scales, tensors, others=trunk_tensors)
    planned = [_planned(tensor, recipe, calibration) for tensor in tensors]
    with Progress("Hashing the source", stored_bytes(checkpoint, tensors)) as progress:
        digests = source_digests(checkpoint, tensors, progress.advance)
    donor = Donor(
        name=checkpoint_name(options.source, options.name),
        repository=options.repository,
        revision=options.revision,
        license=options.license,
        recipe=recipe.name,
        calibration=None if calibration is None else calibration.sha256,
        files=_small_files(checkpoint),
        sources=digests,
    )
    record = MtpRecord(donor=donor, layer=config.layer_count, trunk=pin)
    head_shape = (config.qk_nope_head_dim, config.v_head_dim)
    infos = [_info(plan, bytes(32)) for plan in planned]
    sections = _sections(config_section(config), _features(), record, infos)
    plan = plan_file(section_parts(sections), tensor_parts(infos), has_trunk=False)
    require_free_space(options.output, plan.file_bytes)
    with partial_file(options.output, force=False) as file:
        with (
            TensorReader(checkpoint.tensors) as reader,
            Progress("Converting", sum(info.length for info in infos)) as progress,
        ):
            for index, (item, offset) in enumerate(zip(planned, plan.tensor_offsets, strict=True)):
                file.seek(offset)
                task = Task(
                    tensor=item.tensor,
                    dtype=item.dtype,
                    group_format=recipe.formats.get(item.dtype),
                    fold=item.fold,
                    importance=item.importance,
                )
                jobs = encoding_jobs(task, reader, head_shape=head_shape)
                digest = _convert(file, jobs, progress.advance)
                infos[index] = _info(item, digest)
        # Digests have the length of the zeros that stood for them, so everything keeps its place.
        sections = _sections(config_section(config), _features(), record, infos)
        plan = plan_file(section_parts(sections), tensor_parts(infos), has_trunk=False)
        file.seek(0)
        skip = [partial(_skip, info.length) for info in infos]
        write_file(file, plan, [*(section_writer(data) for data in sections.values()), *skip])
        _finish(file, options.output)


def _planned(tensor: PackageTensor, recipe: Recipe, calibration: Calibration | None) -> _Planned:
    dtype = recipe.dtype(tensor)
    return _Planned(
        tensor=tensor,
        dtype=dtype,
        length=tensor_bytes(dtype, tensor.shape),
        fold=None if calibration is None else calibration.folds.get(tensor.name),
        importance=None if calibration is None else calibration.importance.get(tensor.name),
    )


def _from_package(options: ExtractOptions, trunk: PackageFile | None) -> None:
    unused = "--recipe" if options.recipe is not None else "--calibration-scales"
    if options.recipe is not None or options.calibration_scales is not None:
        raise UsageError(
            "mtp-recipe-unused",
            f"{options.source} is a package: its layer is copied as it is, so that {unused} says nothing",
            hint="Give the checkpoint folder to convert the layer anew.",
        )
    package = read_donor(options.source)
    record = read_record(package)
    given = {name: getattr(options, name) for name in ("name", "license", "repository", "revision")}
    record = MtpRecord(
        donor=replace(record.donor, **{name: value for name, value in given.items() if value is not None}),
        layer=record.layer,
        trunk=_pin(package, record, trunk),
    )
    contents = {section.kind: section.data for section in package.sections}
    if trunk is not None:
        check_same_dimensions(trunk, package.config, contents[Section.FEATURES], package.path)
    verify(package)
    sections = _sections(contents[Section.CONFIG], contents[Section.FEATURES], record, package.mtp)
    plan = plan_file(section_parts(sections), tensor_parts(package.mtp), has_trunk=False)
    require_free_space(options.output, plan.file_bytes)
    total = sum(tensor.length for tensor in package.mtp)
    with partial_file(options.output, force=False) as file:
        with Progress("Writing", total) as progress:
            copiers = [tensor_copier(package, tensor, progress.advance) for tensor in package.mtp]
            write_file(file, plan, [*(section_writer(data) for data in sections.values()), *copiers])
        _finish(file, options.output)


def _pin(package: PackageFile, record: MtpRecord, trunk: PackageFile | None) -> Trunk:
    if trunk is not None:
        return trunk_of(trunk)
    return record.trunk if package.is_sidecar else trunk_of(package)


def _sections(
    config: bytes, features: bytes, record: MtpRecord, tensors: Sequence[TensorInfo]
) -> Mapping[Section, bytes]:
    document = {
        "format": SIDECAR_FORMAT,
        "version": 1,
        "name": record.donor.name,
        "created_by": CREATED_BY,
        "license": record.donor.license,
        "mtp": record.to_json(tensors),
    }
    return {Section.CONFIG: config, Section.FEATURES: features, Section.METADATA: metadata_section(document)}


def _finish(file: BinaryIO, output: Path) -> None:
    """Reads the side-car back before it gets its name."""
    file.flush()
    written = read_package(Path(file.name))
    read_record(written)
    with Progress("Auditing", written.bytes) as progress:
        damaged = damaged_tensors(written, hash_tensors(written, progress.advance))
    if damaged:
        raise PackageError("mtp-audit-failed", f"{output} was written wrongly: {damaged[0]}", hint="Check the disk.")
    refuse_existing(output)


def _convert(file: BinaryIO, jobs: Iterator[Callable[[], Encoded]], advance: Callable[[int], None]) -> bytes:
    digest = hashlib.sha256()
    for job in jobs:
        data = job().data
        digest.update(data.data)
        file.write(data.data)
        advance(data.nbytes)
    return digest.digest()


def _skip(length: int, file: BinaryIO) -> None:
    file.seek(length, 1)


def _info(item: _Planned, sha256: bytes) -> TensorInfo:
    return TensorInfo(
        name=item.tensor.name,
        dtype=item.dtype,
        shape=item.tensor.shape,
        offset=0,
        length=item.length,
        group=GROUP_MTP,
        sha256=sha256,
    )


def _features() -> bytes:
    return "".join(f"{feature}\n" for feature in FEATURES).encode()


def _small_files(checkpoint: Checkpoint) -> tuple[SourceFile, ...]:
    """The files beside the weights: of those, the digests of the tensors say more."""
    names = tuple(name for name in checkpoint.file_names if not name.endswith(".safetensors"))
    return replace(checkpoint, file_names=names).hash_files(lambda _count: None)


def _hash_stored(location: TensorLocation, advance: Callable[[int], None]) -> str:
    digest = hashlib.sha256()
    left = _size(location)
    try:
        with location.path.open("rb", buffering=0) as file:
            file.seek(location.offset)
            while left:
                chunk = file.read(min(left, _CHUNK))
                if not chunk:
                    raise PackageError(
                        "checkpoint-malformed",
                        f"{location.path} became shorter while it was read",
                        hint="Run it again when nothing else writes this file.",
                    )
                digest.update(chunk)
                left -= len(chunk)
                advance(len(chunk))
    except OSError as error:
        raise unreadable(location.path, error) from error
    return digest.hexdigest()


def _size(location: TensorLocation) -> int:
    size = _ITEM_BYTES[location.dtype]
    for count in location.shape:
        size *= count
    return size
