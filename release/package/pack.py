"""`mindnano pack`: joins the assets of `mindnano quantize` to one `.l3r` file."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

from launcher.engine_types import Section
from launcher.errors import PackageError
from launcher.progress import Progress
from release.checkpoint.config import parse_config_section
from release.checkpoint.tensors import GROUP_MTP, package_tensors
from release.layouts.weights import tensor_bytes
from release.output import partial_file, require_free_space
from release.package.l3r import SectionPart, TensorPart, plan_file, write_file
from release.package.manifest import Manifest, SectionAsset, TensorAsset, read_manifest
from release.stages import Stage, Stages, peak_memory, stage_table

_CHUNK: Final = 1 << 20
_REQUIRED: Final = {Section.CONFIG, Section.FEATURES, Section.TOKENIZER, Section.METADATA}


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """What to join, where to, and whether an existing package may be replaced."""

    manifest: Path
    output: Path
    force: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """What writing a package took: largest resident memory and size of the file in bytes, and the stages."""

    bytes: int
    peak: int
    stages: tuple[Stage, ...]

    def to_json(self) -> str:
        """One JSON document."""
        document = {
            "schema": "mindnano-pack-report",
            "version": 1,
            "bytes": self.bytes,
            "peak_memory_bytes": self.peak,
            "stages": [stage.to_json() for stage in self.stages],
        }
        return json.dumps(document, indent=1) + "\n"

    def to_text(self) -> str:
        """A table."""
        return "\n".join([*stage_table(self.stages, self.peak), f"package {self.bytes:,} bytes"])


def pack(options: PackOptions) -> Path:
    """Writes the package and returns its path; see `pack_with_report`."""
    pack_with_report(options)
    return options.output


def pack_with_report(options: PackOptions) -> PackReport:
    """Writes the package from front to back, checking every asset's SHA-256; equal assets give equal bytes.

    Raises:
        UsageError: the manifest does not exist, or the output does.
        PackageError: the manifest is malformed or incomplete, or an asset is missing or changed.
        ResourceError: too little disk space.
    """
    manifest = read_manifest(options.manifest)
    folder = options.manifest.parent
    _check_sizes(folder, manifest)
    _check_tensors(folder, manifest)
    plan = plan_file(
        [
            SectionPart(kind=asset.kind, length=asset.bytes, sha256=bytes.fromhex(asset.sha256))
            for asset in manifest.sections
        ],
        [
            TensorPart(
                name=asset.name,
                dtype=asset.dtype,
                shape=asset.shape,
                group=asset.group,
                length=asset.bytes,
                sha256=bytes.fromhex(asset.sha256),
            )
            for asset in manifest.tensors
        ],
    )
    require_free_space(options.output, plan.file_bytes)
    total = sum(asset.bytes for asset in _assets(manifest))
    stages = Stages()
    with (
        stages.measure("packing", total),
        partial_file(options.output, force=options.force) as file,
        Progress("Packing", total) as progress,
    ):
        write_file(file, plan, _writers(folder, manifest, progress.advance))
    return PackReport(bytes=plan.file_bytes, peak=peak_memory(), stages=stages.finish())


def _assets(manifest: Manifest) -> list[SectionAsset | TensorAsset]:
    return [*manifest.sections, *manifest.tensors]


def _check_sizes(folder: Path, manifest: Manifest) -> None:
    for asset in _assets(manifest):
        path = folder / asset.path
        size = path.stat().st_size if path.is_file() else None
        if size != asset.bytes:
            found = "is missing" if size is None else f"has {size:,} bytes"
            raise _changed(path, f"{found}; the manifest says {asset.bytes:,} bytes")


def _check_tensors(folder: Path, manifest: Manifest) -> None:
    """The tensors must be those that the config section describes, in order, with the size of type and shape."""
    paths = {asset.kind: asset.path for asset in manifest.sections}
    if not set(paths) >= _REQUIRED or len(paths) != len(manifest.sections):
        raise _incomplete("it lacks a required section or lists one twice")
    config = parse_config_section((folder / paths[Section.CONFIG]).read_bytes())
    with_mtp = any(asset.group == GROUP_MTP for asset in manifest.tensors)
    expected = [(tensor.name, tensor.shape, tensor.group) for tensor in package_tensors(config, with_mtp=with_mtp)]
    listed = [(asset.name, asset.shape, asset.group) for asset in manifest.tensors]
    if listed != expected:
        difference = next((pair for pair in zip(expected, listed, strict=False) if pair[0] != pair[1]), None)
        detail = f"{len(listed)} tensors instead of {len(expected)}"
        if difference is not None:
            detail = f"{_describe(difference[1])} where {_describe(difference[0])} belongs"
        raise _incomplete(detail)
    for asset in manifest.tensors:
        try:
            length = tensor_bytes(asset.dtype, asset.shape)
        except ValueError as error:
            raise _incomplete(f"tensor {asset.name}: {error}") from error
        if asset.bytes != length:
            raise _incomplete(f"tensor {asset.name} has {asset.bytes:,} bytes, type and shape give {length:,}")


def _describe(tensor: tuple[str, tuple[int, ...], int]) -> str:
    name, shape, group = tensor
    return f"{name} {list(shape)} of group {group}"


def _writers(folder: Path, manifest: Manifest, advance: Callable[[int], None]) -> Iterator[Callable[[BinaryIO], None]]:
    for asset in _assets(manifest):
        yield _copier(folder, asset, advance)


def _copier(
    folder: Path, asset: SectionAsset | TensorAsset, advance: Callable[[int], None]
) -> Callable[[BinaryIO], None]:
    def copy(target: BinaryIO) -> None:
        path = folder / asset.path
        digest = hashlib.sha256()
        buffer = memoryview(bytearray(_CHUNK))
        copied = 0
        with path.open("rb", buffering=0) as source:
            while count := source.readinto(buffer):
                digest.update(buffer[:count])
                target.write(buffer[:count])
                copied += count
                advance(count)
        if copied != asset.bytes or digest.hexdigest() != asset.sha256:
            raise _changed(path, "its SHA-256 is not the one in the manifest")

    return copy


def _changed(path: Path, problem: str) -> PackageError:
    return PackageError("asset-changed", f"{path}: {problem}", hint="Run mindnano quantize again.")


def _incomplete(problem: str) -> PackageError:
    return PackageError("manifest-malformed", f"the manifest does not describe a package: {problem}")
