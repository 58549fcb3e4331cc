"""`mindnano quantize`: from a checkpoint folder to encoded assets and manifest.json, tensor by tensor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import launcher
from launcher.engine_types import Dtype, ModelConfig, Section
from launcher.errors import PackageError, UsageError
from launcher.progress import Progress
from release.assemble import Fold, Reader, blocks
from release.calibration import Calibration, read_calibration
from release.checkpoint import Checkpoint, SourceFile, open_checkpoint
from release.config import FEATURES, check_supported, config_section, read_config
from release.layout import encode, tensor_bytes
from release.manifest import FILE_NAME, Manifest, SectionAsset, TensorAsset
from release.output import check_output_folder, partial_folder, require_free_space, writing
from release.quantization import GroupFormat, ScaleOverflow
from release.recipe import RECIPES, Recipe
from release.safetensors_reader import TensorReader
from release.special_tokens import SpecialTokens, resolve_special_tokens
from release.tensors import GROUP_MTP, PackageTensor, check_closed_world, package_tensors
from release.tokenizer_tables import TokenizerTables, build_tables

CREATED_BY: Final = f"mindnano {launcher.__version__}"
_GENERATION_KEYS: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_SECTION_FILES: Final[Mapping[Section, str]] = {
    Section.CONFIG: "config.bin",
    Section.FEATURES: "features.txt",
    Section.TOKENIZER: "tokenizer.bin",
    Section.CHAT_TEMPLATE: "chat_template.jinja",
    Section.METADATA: "metadata.json",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeOptions:
    """What to convert and how; provenance that the folder does not tell is given here or stays unknown."""

    source: Path
    output: Path
    recipe: str = "w4a8"
    max_context: int | None = None
    calibration_scales: Path | None = None
    drop_mtp: bool = False
    name: str | None = None
    license: str | None = None
    repository: str | None = None
    revision: str | None = None
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Conversion:
    """Everything that is decided before the first weight is read."""

    checkpoint: Checkpoint
    config: ModelConfig
    tables: TokenizerTables
    special: SpecialTokens
    mtp: str
    calibration: Calibration | None
    formats: Mapping[Dtype, GroupFormat]
    tensors: tuple[tuple[PackageTensor, Dtype, int], ...]

    def weight_bytes(self) -> int:
        return sum(size for _, _, size in self.tensors)


def quantize(options: QuantizeOptions) -> Path:
    """Writes the assets and returns the path of manifest.json. The same source gives the same bytes.

    Raises:
        UsageError: an option contradicts another one, or the output exists.
        PackageError: the checkpoint is incomplete, damaged or not supported.
        ResourceError: too little disk space.
    """
    if options.recipe not in RECIPES:
        raise UsageError(
            "recipe-unknown", f"there is no recipe {options.recipe!r}", hint=f"Choose from {', '.join(RECIPES)}."
        )
    check_output_folder(options.output, marker=FILE_NAME, force=options.force)
    conversion = _prepare(options, RECIPES[options.recipe])
    require_free_space(options.output, conversion.weight_bytes() + len(conversion.tables.section))
    with Progress("Hashing the source", conversion.checkpoint.total_bytes()) as progress:
        files = conversion.checkpoint.hash_files(progress.advance)
    with partial_folder(options.output, marker=FILE_NAME, force=options.force) as folder:
        sections = _write_sections(folder, conversion, _metadata(options, conversion, files))
        tensors = _write_tensors(folder, conversion)
        manifest = Manifest(created_by=CREATED_BY, sections=sections, tensors=tensors)
        (folder / FILE_NAME).write_text(manifest.to_json(), encoding="utf-8")
    return options.output / FILE_NAME


def _prepare(options: QuantizeOptions, recipe: Recipe) -> _Conversion:
    checkpoint = open_checkpoint(options.source)
    check_supported(checkpoint.config)
    tables = build_tables(checkpoint.tokenizer_json)
    special = resolve_special_tokens(
        checkpoint.config, checkpoint.generation_config, checkpoint.tokenizer_config, tables.ids, tables.token_count
    )
    config = read_config(
        checkpoint.config, special=special, token_count=tables.token_count, max_context=options.max_context
    )
    tensors, mtp = _choose_tensors(config, checkpoint, drop_mtp=options.drop_mtp)
    calibration = None
    if options.calibration_scales is not None:
        calibration = read_calibration(options.calibration_scales, tensors)
    typed = [(tensor, recipe.dtype(tensor)) for tensor in tensors]
    return _Conversion(
        checkpoint=checkpoint,
        config=config,
        tables=tables,
        special=special,
        mtp=mtp,
        calibration=calibration,
        formats=recipe.formats,
        tensors=tuple((tensor, dtype, tensor_bytes(dtype, tensor.shape)) for tensor, dtype in typed),
    )


def _choose_tensors(
    config: ModelConfig, checkpoint: Checkpoint, *, drop_mtp: bool
) -> tuple[tuple[PackageTensor, ...], str]:
    """The tensors to write, and whether the MTP layer is kept, absent or dropped."""
    found = {name: location.shape for name, location in checkpoint.tensors.items()}
    has_mtp = config.mtp_layer_count > 0
    every = package_tensors(config, with_mtp=has_mtp)
    if not has_mtp:
        check_closed_world(every, found)
        return every, "absent"
    if not drop_mtp:
        check_closed_world(every, found)
        return every, "kept"
    kept = tuple(tensor for tensor in every if tensor.group != GROUP_MTP)
    dropped = tuple(tensor for tensor in every if tensor.group == GROUP_MTP)
    check_closed_world(kept, found, dropped=dropped)
    has_any = any(source.name in found for tensor in dropped for source in tensor.sources)
    return kept, "dropped" if has_any else "absent"


def _write_sections(folder: Path, conversion: _Conversion, metadata: bytes) -> tuple[SectionAsset, ...]:
    template = conversion.checkpoint.chat_template
    contents = {
        Section.CONFIG: config_section(conversion.config),
        Section.FEATURES: "".join(f"{feature}\n" for feature in FEATURES).encode(),
        Section.TOKENIZER: conversion.tables.section,
        Section.CHAT_TEMPLATE: None if template is None else template.encode(),
        Section.METADATA: metadata,
    }
    assets = []
    for kind, data in contents.items():
        if data is None:
            continue
        (folder / _SECTION_FILES[kind]).write_bytes(data)
        digest = hashlib.sha256(data).hexdigest()
        assets.append(SectionAsset(kind=kind, path=_SECTION_FILES[kind], bytes=len(data), sha256=digest))
    return tuple(assets)


def _write_tensors(folder: Path, conversion: _Conversion) -> tuple[TensorAsset, ...]:
    (folder / "tensors").mkdir()
    head_shape = (conversion.config.qk_nope_head_dim, conversion.config.v_head_dim)
    assets = []
    with (
        TensorReader(conversion.checkpoint.tensors) as reader,
        Progress("Converting", conversion.weight_bytes()) as progress,
    ):
        for tensor, dtype, size in conversion.tensors:
            fold = conversion.calibration.folds.get(tensor.name) if conversion.calibration is not None else None
            path = f"tensors/{tensor.name}.bin"
            digest = _write_tensor(
                folder / path, tensor, dtype, reader, head_shape, fold, conversion.formats, progress.advance
            )
            assets.append(
                TensorAsset(
                    name=tensor.name,
                    dtype=dtype,
                    shape=tensor.shape,
                    group=tensor.group,
                    path=path,
                    bytes=size,
                    sha256=digest,
                )
            )
    return tuple(assets)


def _write_tensor(
    path: Path,
    tensor: PackageTensor,
    dtype: Dtype,
    reader: Reader,
    head_shape: tuple[int, int],
    fold: Fold | None,
    formats: Mapping[Dtype, GroupFormat],
    advance: Callable[[int], None],
) -> str:
    digest = hashlib.sha256()
    with writing(path), path.open("wb") as file:
        for block in blocks(tensor, reader, head_shape=head_shape, fold=fold):
            try:
                data = encode(dtype, block, formats=formats)
            except (ScaleOverflow, OverflowError) as error:
                raise PackageError(
                    "tensor-too-large",
                    f"tensor {tensor.name} cannot be stored as {dtype.name}: {error}",
                    hint="Use --recipe f32, or check the checkpoint.",
                ) from error
            digest.update(data)
            file.write(data)
            advance(len(data))
    return digest.hexdigest()


def _metadata(options: QuantizeOptions, conversion: _Conversion, files: tuple[SourceFile, ...]) -> bytes:
    names = {token: text for text, token in conversion.tables.ids.items()}
    special = conversion.special
    generation = conversion.checkpoint.generation_config
    document: dict[str, Any] = {
        "format": "l3r",
        "version": 1,
        "name": options.name or options.source.resolve().name,
        "created_by": CREATED_BY,
        "source": {
            "repository": options.repository,
            "revision": options.revision,
            "files": [{"path": file.path, "bytes": file.bytes, "sha256": file.sha256} for file in files],
        },
        "quantization": {
            "recipe": options.recipe,
            "calibration": conversion.calibration.sha256 if conversion.calibration is not None else None,
            "mtp": conversion.mtp,
        },
        "license": options.license,
        "generation": {key: generation[key] for key in _GENERATION_KEYS if _is_number(generation.get(key))},
        "special_tokens": {
            "bos": names.get(special.bos) if special.bos is not None else None,
            "eos": names.get(special.eos) if special.eos is not None else None,
            "pad": names.get(special.pad) if special.pad is not None else None,
        },
    }
    return (json.dumps(document, indent=1, ensure_ascii=False) + "\n").encode()


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
