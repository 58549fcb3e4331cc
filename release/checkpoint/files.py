"""A checkpoint folder in Hugging Face layout: which files it has, and what they say."""

from __future__ import annotations

import hashlib
import stat
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Lock
from typing import Any

from launcher.errors import PackageError, UsageError
from launcher.integrity.release_files import path_fault
from release.checkpoint.json_text import parse_json
from release.checkpoint.safetensors_reader import TensorLocation, read_header, unreadable

_INDEX = "model.safetensors.index.json"
_SINGLE = "model.safetensors"
_MAX_JSON_BYTES = 256 * 1024 * 1024
_HASH_CHUNK = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A file that the package is made from: name in the folder, size in bytes, SHA-256 in hex."""

    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """An opened folder. Weights stay on disk; `tensors` says where each lies."""

    folder: Path
    config: Mapping[str, Any]
    tokenizer_json: bytes
    tokenizer_config: Mapping[str, Any]
    generation_config: Mapping[str, Any]
    chat_template: str | None
    tensors: Mapping[str, TensorLocation]
    file_names: tuple[str, ...]

    def total_bytes(self) -> int:
        """Bytes of all files that the package is made from."""
        return sum((self.folder / name).stat().st_size for name in self.file_names)

    def hash_files(self, advance: Callable[[int], None], *, threads: int = 1) -> tuple[SourceFile, ...]:
        """Size and SHA-256 of every file, in order of name; `advance` receives the bytes read, one call at a time.

        Raises:
            PackageError: a file cannot be read.
        """
        lock = Lock()
        stopped = Event()

        def advance_alone(count: int) -> None:
            if stopped.is_set():
                raise CancelledError
            with lock:
                advance(count)

        with ThreadPoolExecutor(threads) as pool:
            try:
                return tuple(pool.map(lambda name: _hash_file(self.folder, name, advance_alone), self.file_names))
            except BaseException:
                stopped.set()  # an interrupt does not wait for the rest of a long file
                raise


def open_checkpoint(folder: Path) -> Checkpoint:
    """Reads configuration, tokenizer files and the headers of all weight files.

    Raises:
        PackageError: the folder or a file of it is missing, or one is malformed or disagrees with another one.
    """
    if not folder.is_dir():
        raise PackageError("source-missing", f"{folder} is not a folder", hint="Give the folder of a checkpoint.")
    names = ["config.json", "tokenizer.json"]
    config = _read_json(folder / "config.json")
    tokenizer_json = _read_bytes(folder / "tokenizer.json")
    tokenizer_config = _read_optional(folder, "tokenizer_config.json", names)
    generation_config = _read_optional(folder, "generation_config.json", names)
    chat_template = _read_chat_template(folder, tokenizer_config, names)
    tensors = _read_weights(folder, names)
    return Checkpoint(
        folder=folder,
        config=config,
        tokenizer_json=tokenizer_json,
        tokenizer_config=tokenizer_config,
        generation_config=generation_config,
        chat_template=chat_template,
        tensors=tensors,
        file_names=tuple(sorted(names)),
    )


def checkpoint_name(folder: Path, given: str | None) -> str:
    """What a checkpoint is called: as given, else as its folder.

    Raises:
        UsageError: that has characters that cannot be shown.
    """
    name = given or folder.resolve().name
    if not name or not name.isprintable():
        raise UsageError("name-invalid", f"{name!r} cannot be a model's name", hint="Give --name.")
    return name


def _read_optional(folder: Path, name: str, names: list[str]) -> dict[str, Any]:
    if not (folder / name).is_file():
        return {}
    names.append(name)
    return _read_json(folder / name)


def _read_chat_template(folder: Path, tokenizer_config: Mapping[str, Any], names: list[str]) -> str | None:
    """The template's own file wins over the entry in tokenizer_config.json, as in transformers."""
    path = folder / "chat_template.jinja"
    if path.is_file():
        names.append(path.name)
        try:
            return _read_bytes(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise _malformed(path, f"it is not UTF-8: {error}") from error
    template = tokenizer_config.get("chat_template")
    if template is None or isinstance(template, str):
        return template
    if isinstance(template, list):
        for entry in template:
            if isinstance(entry, dict) and entry.get("name") == "default" and isinstance(entry.get("template"), str):
                return str(entry["template"])
    raise _malformed(folder / "tokenizer_config.json", "chat_template is neither a text nor a list with a default")


def _read_weights(folder: Path, names: list[str]) -> dict[str, TensorLocation]:
    if (folder / _INDEX).is_file():
        names.append(_INDEX)
        return _read_shards(folder, names)
    if (folder / _SINGLE).is_file():
        names.append(_SINGLE)
        return read_header(folder / _SINGLE)
    raise PackageError(
        "checkpoint-incomplete",
        f"{folder} has neither {_INDEX} nor {_SINGLE}",
        hint="Only safetensors weights are read; download the complete checkpoint.",
    )


def _read_shards(folder: Path, names: list[str]) -> dict[str, TensorLocation]:
    weight_map = _read_json(folder / _INDEX).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise _malformed(folder / _INDEX, "it has no weight_map")
    shards = sorted({str(shard) for shard in weight_map.values()})
    for shard in shards:
        if Path(shard).name != shard or path_fault(shard) is not None:
            raise _malformed(folder / _INDEX, f"shard {shard!r} is not a plain file name")
    missing = [shard for shard in shards if not (folder / shard).is_file()]
    if missing:
        shards_missing = f"{len(missing)} shards that are missing" if len(missing) > 1 else "a shard that is missing"
        raise PackageError(
            "checkpoint-incomplete",
            f"{folder / _INDEX} names {shards_missing}: {', '.join(missing[:5])}",
            hint="Download the complete checkpoint.",
        )
    names.extend(shards)
    tensors: dict[str, TensorLocation] = {}
    for shard in shards:
        for name, location in read_header(folder / shard).items():
            if weight_map.get(name) != shard:
                place = weight_map.get(name, "nowhere")
                raise _malformed(folder / _INDEX, f"tensor {name} lies in {shard}, the index says {place}")
            tensors[name] = location
    absent = sorted(set(weight_map) - set(tensors))
    if absent:
        raise _malformed(folder / _INDEX, f"tensor {absent[0]} is not in {weight_map[absent[0]]}")
    return tensors


def _read_bytes(path: Path) -> bytes:
    try:
        found = path.stat()
        if not stat.S_ISREG(found.st_mode):  # a pipe would hold us up, a device may never end
            raise _malformed(path, "it is not a plain file")
        if found.st_size > _MAX_JSON_BYTES:
            raise _malformed(path, f"it is larger than {_MAX_JSON_BYTES:,} bytes")
        return path.read_bytes()
    except FileNotFoundError as error:
        raise PackageError(
            "checkpoint-incomplete", f"{path} is missing", hint="Download the complete checkpoint."
        ) from error
    except OSError as error:
        raise unreadable(path, error) from error


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = parse_json(_read_bytes(path))
    except ValueError as error:
        raise _malformed(path, f"it is not valid JSON: {error}") from error
    if not isinstance(value, dict):
        raise _malformed(path, "it is not a JSON object")
    return value


def _hash_file(folder: Path, name: str, advance: Callable[[int], None]) -> SourceFile:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_HASH_CHUNK))
    size = 0
    try:
        with (folder / name).open("rb", buffering=0) as file:
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
                size += count
                advance(count)
    except OSError as error:
        raise unreadable(folder / name, error) from error
    return SourceFile(path=name, bytes=size, sha256=digest.hexdigest())


def _malformed(path: Path, problem: str) -> PackageError:
    return PackageError(
        "checkpoint-malformed",
        f"{path} cannot be used: {problem}",
        hint="Download the file again and compare its size and SHA-256 with the source.",
    )
