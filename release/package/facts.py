"""What a release says of its weights, taken from the package itself: sizes, digests, provenance, a known answer."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, Final

from launcher.engine import Engine, Package, Session
from launcher.engine_types import EngineOptions, KvType, ModelConfig, Section, SessionOptions, TensorInfo
from launcher.errors import PackageError
from launcher.integrity.hashing import sha256_file
from launcher.integrity.model_info import BaseModel, Donor, KnownAnswer, MemoryFigures, PackageFile, Quantization
from launcher.integrity.release_files import portable_path_fault
from launcher.progress import Progress
from release.checkpoint.tensors import GROUP_MTP
from release.package.memory import memory_of
from release.package.stated import Stated, read_stated

PROMPT: Final = "1, 2, 3, 4,"
ANSWER_TOKENS: Final = 3
_RECIPE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")
_PROGRAM: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9 ._+()/-]{0,99}")
_SHA256: Final = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file that the weights were converted from. `bytes` is its length."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageFacts:
    """A package.

    Attributes:
        path: the file.
        size: its bytes.
        name: of the model, as its metadata has it.
        created_by: program and version that converted it.
        licence: of the weights, as its metadata has it, or None.
        base: repository and revision that it was made from, None where it names none.
        donor: likewise of an MTP layer that was appended, None where there is none such.
        sources: files that it was converted from.
        config: dimensions.
        quantization: recipe, digest of the recipe as it was carried out, and digest of the calibration.
        layouts: number of values by layout of the tensors.
        architecture: the first of the features that the package asks for.
        shapes: sizes by name.
        has_mtp: whether it holds the MTP layer.
        memory: what sessions of it cost, as the engine plans them.
        tokenizer_sha256, template_sha256: digests of sections.
    """

    path: Path
    size: int
    name: str
    created_by: str
    licence: str | None
    base: BaseModel | None
    donor: Donor | None
    sources: tuple[SourceFile, ...]
    config: ModelConfig
    quantization: Quantization
    layouts: Mapping[str, int]
    architecture: str
    shapes: Mapping[str, int]
    has_mtp: bool
    memory: MemoryFigures
    tokenizer_sha256: str
    template_sha256: str

    def file(self, name: str, sha256: str) -> PackageFile:
        """The package as a release calls it. `sha256` is that of the whole file."""
        return PackageFile(path=name, size=self.size, sha256=sha256)


def read_package_facts(path: Path, *, label: str = "the package") -> tuple[PackageFacts | None, list[str]]:
    """Reads a package and hashes every section and tensor of it.

    Returns:
        What it says, or None and everything that is missing or wrong, one sentence each.

    Raises:
        EngineError: the engine could not be loaded.
        ResourceError: there is not enough memory.
    """
    if not path.is_file():
        return None, [f"{label}: there is no file {path}"]
    try:
        with Package(path) as package:
            size = path.stat().st_size
            with Progress(f"Checking {path.name}", size) as progress:
                try:
                    package.verify(lambda done, total: progress.update(done * size // max(total, 1)))
                    facts, gaps = _facts(path, package)
                except PackageError as error:
                    raise error.about(path) from error
            return facts, [f"{label}: {path}: {gap}" for gap in gaps]
    except PackageError as error:
        return None, [f"{label}: {error.message}"]


def read_stated_of(path: Path) -> Stated | None:
    """What a package states of origin and terms although something else of it is wrong; None where it does not open.

    Raises:
        EngineError: the engine could not be loaded.
        ResourceError: there is not enough memory.
    """
    try:
        with Package(path) as package:
            return read_stated(_metadata(package), has_mtp=package.has_mtp)
    except PackageError:
        return None


def hash_file(path: Path) -> str:
    """SHA-256 of a whole file, with progress.

    Raises:
        PackageError: it cannot be read.
    """
    try:
        with path.open("rb") as file, Progress(f"Hashing {path.name}", path.stat().st_size) as progress:

            def follow(done: int, _size: int) -> bool:
                progress.update(done)
                return False

            return sha256_file(file.fileno(), progress=follow).digest
    except OSError as error:
        raise PackageError("package-unreadable", f"cannot read {path}: {error.strerror}") from error


def ask(path: Path, prompt: tuple[int, ...] | None = None) -> KnownAnswer:
    """What the weights say at temperature 0, computed by the engine.

    Args:
        prompt: token ids; by default those of a fixed text.

    Raises:
        MindnanoError: as the engine says.
    """
    with Package(path) as package:
        ids = tuple(package.tokenize(PROMPT)) if prompt is None else prompt
        options = SessionOptions(context=len(ids) + ANSWER_TOKENS, kv_type=KvType.F32)
        with Engine(package, EngineOptions()) as engine, Session(engine, options) as session:
            found: list[int] = []
            step = ids
            for _ in range(ANSWER_TOKENS):
                session.eval(step)
                logits = session.logits()
                found.append(max(range(package.config.token_count), key=logits.__getitem__))
                step = (found[-1],)
    return KnownAnswer(prompt=ids, continuation=tuple(found))


def _facts(path: Path, package: Package) -> tuple[PackageFacts | None, list[str]]:
    metadata = _metadata(package)
    gaps: list[str] = []
    name = metadata.get("name")
    if not isinstance(name, str) or not name:
        gaps.append("its metadata names no model; convert it again with --name")
    template = package.section(Section.CHAT_TEMPLATE)
    if template is None:
        gaps.append("it has no chat template")
    stated = read_stated(metadata, has_mtp=package.has_mtp)
    gaps += stated.faults
    quantization = metadata.get("quantization")
    recipe = quantization.get("recipe") if isinstance(quantization, dict) else None
    if not isinstance(quantization, dict) or not isinstance(recipe, str) or not _RECIPE.fullmatch(recipe):
        gaps.append(f"its metadata names the recipe {recipe!r:.80}, expected a word such as w4a8")
    calibration = quantization.get("calibration") if isinstance(quantization, dict) else None
    if calibration is not None and not (isinstance(calibration, str) and _SHA256.fullmatch(calibration)):
        gaps.append(f"its metadata name the calibration {calibration!r:.80}, expected a SHA-256")
    if gaps:
        return None, gaps
    assert template is not None
    tensors = package.tensors()
    created_by = metadata.get("created_by")
    facts = PackageFacts(
        path=path,
        size=path.stat().st_size,
        name=str(name),
        created_by=created_by if isinstance(created_by, str) and _PROGRAM.fullmatch(created_by) else "unknown",
        licence=stated.licence,
        base=stated.base,
        donor=stated.donor,
        sources=sources_of(metadata),
        memory=memory_of(package),
        config=package.config,
        quantization=Quantization(
            recipe=str(recipe),
            recipe_sha256=_recipe_sha256(str(recipe), tensors),
            calibration_sha256=calibration,
        ),
        layouts=_layouts(tensors),
        architecture=(package.section(Section.FEATURES) or b"").decode().split()[0],
        shapes=_shapes(package.config, tensors),
        has_mtp=package.has_mtp,
        tokenizer_sha256=hashlib.sha256(package.section(Section.TOKENIZER) or b"").hexdigest(),
        template_sha256=hashlib.sha256(template).hexdigest(),
    )
    return facts, []


def _metadata(package: Package) -> dict[str, Any]:
    try:
        metadata = json.loads(package.section(Section.METADATA) or b"")
    except (ValueError, RecursionError) as error:
        raise PackageError("package-damaged", f"the metadata section is not valid JSON: {error}") from error
    if not isinstance(metadata, dict):
        raise PackageError("package-damaged", "the metadata section is not a JSON object")
    return metadata


def sources_of(metadata: Mapping[str, Any]) -> tuple[SourceFile, ...]:
    """The files that a package was converted from; entries that are none are left out."""
    source = metadata.get("source")
    files = source.get("files") if isinstance(source, dict) else None
    return tuple(
        SourceFile(path=file["path"], bytes=file["bytes"], sha256=file["sha256"])
        for file in (files if isinstance(files, list) else [])
        if isinstance(file, dict) and _is_source(file)
    )


def _is_source(entry: Mapping[str, Any]) -> bool:
    path, size, digest = entry.get("path"), entry.get("bytes"), entry.get("sha256")
    return (
        isinstance(path, str)
        and portable_path_fault(path) is None
        and type(size) is int
        and size >= 0
        and isinstance(digest, str)
        and _SHA256.fullmatch(digest) is not None
    )


def checkpoint_sha256(sources: Sequence[SourceFile]) -> str | None:
    """One digest for a checkpoint: that of the list of its files as `sha256sum` prints it. None for no files."""
    lines = sorted(f"{file.sha256}  {file.path}\n" for file in sources)
    return hashlib.sha256("".join(lines).encode()).hexdigest() if lines else None


def _recipe_sha256(recipe: str, tensors: list[TensorInfo]) -> str:
    """Digest of the recipe as it was carried out: its name and the layout of every tensor, in the order of names."""
    lines = sorted(f"{tensor.name} {tensor.dtype.name}\n" for tensor in tensors)
    return hashlib.sha256("".join([f"{recipe}\n", *lines]).encode()).hexdigest()


def _layouts(tensors: list[TensorInfo]) -> Mapping[str, int]:
    found: dict[str, int] = {}
    for tensor in tensors:
        found[tensor.dtype.name] = found.get(tensor.dtype.name, 0) + prod(tensor.shape)
    return dict(sorted(found.items(), key=lambda entry: (-entry[1], entry[0])))


def _shapes(config: ModelConfig, tensors: list[TensorInfo]) -> Mapping[str, int]:
    return {
        "layers": config.layer_count,
        "hidden": config.hidden_size,
        "heads": config.head_count,
        "experts": config.expert_count,
        "experts_per_token": config.experts_per_token,
        "vocabulary": config.vocab_size,
        "parameters": sum(prod(tensor.shape) for tensor in tensors),
        "mtp_parameters": sum(prod(tensor.shape) for tensor in tensors if tensor.group == GROUP_MTP),
    }
