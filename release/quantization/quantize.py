"""`mindnano quantize`: from a checkpoint folder to encoded assets and manifest.json, tensor by tensor.

An interrupted conversion goes on where it was: `release.quantization.journal` says which tensors are finished.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import launcher
from launcher.engine_types import ModelConfig, Section
from launcher.errors import UsageError
from launcher.progress import Progress, format_bytes
from release.checkpoint.config import FEATURES, check_supported, config_section, read_config
from release.checkpoint.files import Checkpoint, SourceFile, checkpoint_name, open_checkpoint
from release.checkpoint.safetensors_reader import TensorReader
from release.checkpoint.special_tokens import SpecialTokens, resolve_special_tokens
from release.checkpoint.tensors import GROUP_MTP, PackageTensor, check_closed_world, package_tensors
from release.layouts.quantizer import native_quantizer
from release.layouts.weights import tensor_bytes
from release.output import check_output_folder, require_free_space, resumable_folder
from release.package.manifest import FILE_NAME, Manifest, SectionAsset, TensorAsset
from release.package.tokenizer_tables import TokenizerTables, build_tables
from release.quantization.conversion import TENSORS as _TENSORS
from release.quantization.conversion import convert_tensors, tensor_path
from release.quantization.encoding import Task
from release.quantization.journal import DRAFT as JOURNAL_DRAFT
from release.quantization.journal import FILE_NAME as JOURNAL_NAME
from release.quantization.journal import Entry, Journal, still_valid
from release.quantization.recipe import RECIPES, Recipe
from release.quantization.report import QuantizeReport, TensorReport
from release.quantization.scales import Calibration, read_calibration
from release.stages import Stages, peak_memory

CREATED_BY: Final = f"mindnano {launcher.__version__}"
_GENERATION_KEYS: Final = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
_MOST: Final = 1e9
"""Beyond it no sampling default makes sense; JSON has no infinity, and no NaN, which is in no range either."""
_SECTION_FILES: Final[Mapping[Section, str]] = {
    Section.CONFIG: "config.bin",
    Section.FEATURES: "features.txt",
    Section.TOKENIZER: "tokenizer.bin",
    Section.CHAT_TEMPLATE: "chat_template.jinja",
    Section.METADATA: "metadata.json",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizeOptions:
    """What to convert and how; provenance that the folder does not tell is given here or stays unknown.

    `threads` 0 takes every processor that this process may use.
    """

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
    threads: int = 0
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
    tasks: tuple[Task, ...]

    def weight_bytes(self) -> int:
        return sum(task_bytes(task) for task in self.tasks)


def task_bytes(task: Task) -> int:
    """Size of a tensor in the package."""
    return tensor_bytes(task.dtype, task.tensor.shape)


def quantize(options: QuantizeOptions) -> Path:
    """Writes the assets and returns the path of manifest.json; see `quantize_with_report`."""
    return quantize_with_report(options)[0]


def quantize_with_report(options: QuantizeOptions) -> tuple[Path, QuantizeReport]:
    """Writes the assets; returns the path of manifest.json and what it took. The same source gives the same bytes.

    Raises:
        UsageError: an option contradicts another one, the output exists or lies in the source, or another process is
            writing it.
        PackageError: the checkpoint is incomplete, damaged or not supported.
        ResourceError: too little disk space. What is finished is kept for the next run.
    """
    if options.recipe not in RECIPES:
        raise UsageError(
            "recipe-unknown", f"there is no recipe {options.recipe!r}", hint=f"Choose from {', '.join(RECIPES)}."
        )
    check_output_folder(options.output, marker=FILE_NAME, force=options.force)
    if options.output.resolve().is_relative_to(options.source.resolve()):
        raise UsageError(
            "output-inside-source",
            f"{options.output} lies in the checkpoint {options.source}, which is only to be read",
            hint="Give a folder elsewhere as --output.",
        )
    threads = options.threads or len(os.sched_getaffinity(0))
    name = checkpoint_name(options.source, options.name)
    stages = Stages()
    with stages.measure("reading the headers", 0):
        conversion = _prepare(options, RECIPES[options.recipe])
    total = conversion.checkpoint.total_bytes()
    with stages.measure("hashing the source", total), Progress("Hashing the source", total) as progress:
        files = conversion.checkpoint.hash_files(progress.advance, threads=threads)
    with resumable_folder(options.output, marker=FILE_NAME, is_own=_is_own, force=options.force) as folder:
        journal = Journal(folder, _key(conversion, files))
        kept = _kept(folder, conversion, journal, stages)
        done = sum(entry.bytes for entry in kept)
        require_free_space(options.output, conversion.weight_bytes() - done + len(conversion.tables.section))
        try:
            journal.start(kept)
            entries = _convert(folder, conversion, journal, kept, threads, stages)
        finally:
            journal.close()
        with stages.measure("finishing", 0):
            _finish(folder, conversion, entries, _metadata(options, conversion, files, name))
    (options.output / JOURNAL_NAME).unlink()  # not before the result has its name
    report = QuantizeReport(
        recipe=options.recipe,
        threads=threads,
        reused=len(kept),
        peak=peak_memory(),
        stages=stages.finish(),
        tensors=tuple(
            TensorReport(tensor=task.tensor, dtype=task.dtype, entry=entry)
            for task, entry in zip(conversion.tasks, entries, strict=True)
        ),
    )
    return options.output / FILE_NAME, report


def _is_own(name: str) -> bool:
    """Whether a conversion, complete or not, may have something of this name at the top of its folder."""
    return name in {_TENSORS, JOURNAL_NAME, JOURNAL_DRAFT, FILE_NAME, *_SECTION_FILES.values()}


def _key(conversion: _Conversion, files: tuple[SourceFile, ...]) -> str:
    """A digest of everything that the bytes of the tensors depend on."""
    calibration = conversion.calibration
    parts = {
        "created_by": CREATED_BY,
        "quantizer": native_quantizer().sha256,
        "files": [[file.path, file.bytes, file.sha256] for file in files],
        "calibration": None if calibration is None else calibration.sha256,
        "tensors": [[task.tensor.name, task.dtype.name, repr(task.group_format)] for task in conversion.tasks],
    }
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _kept(folder: Path, conversion: _Conversion, journal: Journal, stages: Stages) -> tuple[Entry, ...]:
    """What an interrupted run of the same conversion finished. Everything else goes from the folder."""
    entries = journal.read() or ()
    paths = {task.tensor.name: tensor_path(folder, task.tensor.name) for task in conversion.tasks}
    total = sum(entry.bytes for entry in entries)
    if entries:
        with stages.measure("checking what is there", total), Progress("Checking what is there", total) as progress:
            entries = still_valid(entries, paths, progress.advance)
        size = format_bytes(sum(entry.bytes for entry in entries))
        verb = "is" if len(entries) == 1 else "are"
        print(f"Going on: {len(entries)} of {len(paths)} tensors ({size}) {verb} finished.", file=sys.stderr)
    wanted = {folder / JOURNAL_NAME, *(paths[entry.name] for entry in entries)}
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink():
            if path != folder / _TENSORS:
                path.rmdir()
        elif path not in wanted:
            path.unlink()
    (folder / _TENSORS).mkdir(exist_ok=True)
    return entries


def _convert(
    folder: Path,
    conversion: _Conversion,
    journal: Journal,
    kept: tuple[Entry, ...],
    threads: int,
    stages: Stages,
) -> tuple[Entry, ...]:
    """Encodes what is not finished; returns the entries of all tensors in package order."""
    finished = {entry.name: entry for entry in kept}
    tasks = [task for task in conversion.tasks if task.tensor.name not in finished]
    locations = conversion.checkpoint.tensors
    read = sum(locations[name].bytes for name in {source.name for task in tasks for source in task.tensor.sources})
    with (
        stages.measure("converting", read),
        TensorReader(locations) as reader,
        Progress("Converting", sum(task_bytes(task) for task in tasks)) as progress,
    ):
        entries = convert_tensors(
            tasks,
            reader,
            folder,
            journal,
            head_shape=(conversion.config.qk_nope_head_dim, conversion.config.v_head_dim),
            threads=threads,
            advance=progress.advance,
        )
    finished |= {entry.name: entry for entry in entries}
    return tuple(finished[task.tensor.name] for task in conversion.tasks)


def _finish(folder: Path, conversion: _Conversion, entries: tuple[Entry, ...], metadata: bytes) -> None:
    """Everything beside the tensors, the manifest last."""
    sections = _write_sections(folder, conversion, metadata)
    tensors = tuple(
        TensorAsset(
            name=entry.name,
            dtype=task.dtype,
            shape=task.tensor.shape,
            group=task.tensor.group,
            path=str(tensor_path(Path(), entry.name)),
            bytes=entry.bytes,
            sha256=entry.sha256,
        )
        for task, entry in zip(conversion.tasks, entries, strict=True)
    )
    manifest = Manifest(created_by=CREATED_BY, sections=sections, tensors=tensors)
    _write_flushed(folder / FILE_NAME, manifest.to_json().encode())


def _write_flushed(path: Path, data: bytes) -> None:
    with path.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


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
        every = package_tensors(config, with_mtp=config.mtp_layer_count > 0)
        left_out = [tensor for tensor in every if tensor not in tensors]
        calibration = read_calibration(options.calibration_scales, tensors, others=left_out)
    return _Conversion(
        checkpoint=checkpoint,
        config=config,
        tables=tables,
        special=special,
        mtp=mtp,
        calibration=calibration,
        tasks=tuple(_task(tensor, recipe, calibration) for tensor in tensors),
    )


def _task(tensor: PackageTensor, recipe: Recipe, calibration: Calibration | None) -> Task:
    dtype = recipe.dtype(tensor)
    return Task(
        tensor=tensor,
        dtype=dtype,
        group_format=recipe.formats.get(dtype),
        fold=None if calibration is None else calibration.folds.get(tensor.name),
        importance=None if calibration is None else calibration.importance.get(tensor.name),
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
        _write_flushed(folder / _SECTION_FILES[kind], data)
        digest = hashlib.sha256(data).hexdigest()
        assets.append(SectionAsset(kind=kind, path=_SECTION_FILES[kind], bytes=len(data), sha256=digest))
    return tuple(assets)


def _metadata(options: QuantizeOptions, conversion: _Conversion, files: tuple[SourceFile, ...], name: str) -> bytes:
    names = {token: text for text, token in conversion.tables.ids.items()}
    special = conversion.special
    generation = conversion.checkpoint.generation_config
    document: dict[str, Any] = {
        "format": "l3r",
        "version": 1,
        "name": name,
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
    return isinstance(value, int | float) and not isinstance(value, bool) and -_MOST <= value <= _MOST
