"""manifest.json: what `mindnano quantize` wrote and `mindnano pack` joins."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

from launcher.engine_types import Dtype, Section
from launcher.errors import PackageError
from launcher.integrity.release_files import read_capped

SCHEMA: Final = "mindnano-assets"
VERSION: Final = 1
FILE_NAME: Final = "manifest.json"
MAX_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SectionAsset:
    """A section in its own file: path relative to the manifest, size in bytes, SHA-256 in hex."""

    kind: Section
    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorAsset:
    """An encoded tensor in its own file; `group` 0 trunk, 1 MTP."""

    name: str
    dtype: Dtype
    shape: tuple[int, ...]
    group: int
    path: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """Everything that goes into a package, in package order."""

    created_by: str
    sections: tuple[SectionAsset, ...]
    tensors: tuple[TensorAsset, ...]

    def to_json(self) -> str:
        """The text of the file; equal manifests give equal bytes."""
        sections = [
            {"kind": asset.kind.name.lower(), "path": asset.path, "bytes": asset.bytes, "sha256": asset.sha256}
            for asset in self.sections
        ]
        tensors = [
            {
                "name": asset.name,
                "dtype": asset.dtype.name,
                "shape": list(asset.shape),
                "group": asset.group,
                "path": asset.path,
                "bytes": asset.bytes,
                "sha256": asset.sha256,
            }
            for asset in self.tensors
        ]
        document = {
            "schema": SCHEMA,
            "version": VERSION,
            "created_by": self.created_by,
            "sections": sections,
            "tensors": tensors,
        }
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def read_manifest(path: Path) -> Manifest:
    """Reads and checks a manifest.

    Raises:
        PackageError: there is no such file, it is not a manifest of this version, or an entry is malformed.
    """
    try:
        data = read_capped(path, MAX_BYTES)
    except PackageError as error:
        raise _malformed(path, error.message) from error
    if data is None:
        raise PackageError(
            "manifest-missing", f"{path} does not exist", hint="Give the manifest.json of mindnano quantize."
        )
    try:
        document = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _malformed(path, f"it cannot be read as JSON: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise _malformed(path, f"its schema is not {SCHEMA}")
    if document.get("version") != VERSION:
        raise _malformed(path, f"its version is {document.get('version')!r}; this program reads {VERSION}")
    try:
        return Manifest(
            created_by=_typed(document["created_by"], str),
            sections=tuple(_section(entry) for entry in _typed(document["sections"], list)),
            tensors=tuple(_tensor(entry) for entry in _typed(document["tensors"], list)),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise _malformed(path, f"an entry is malformed: {error!r}") from error


def _section(entry: Any) -> SectionAsset:
    return SectionAsset(
        kind=Section[_typed(entry["kind"], str).upper()],
        path=_relative(entry["path"]),
        bytes=_count(entry["bytes"]),
        sha256=_digest(entry["sha256"]),
    )


def _tensor(entry: Any) -> TensorAsset:
    return TensorAsset(
        name=_typed(entry["name"], str),
        dtype=Dtype[_typed(entry["dtype"], str)],
        shape=tuple(_count(size) for size in _typed(entry["shape"], list)),
        group=_count(entry["group"]),
        path=_relative(entry["path"]),
        bytes=_count(entry["bytes"]),
        sha256=_digest(entry["sha256"]),
    )


def _typed(value: Any, kind: type[Any]) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{value!r} is not a {kind.__name__}")
    return value


def _count(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**63:
        raise ValueError(f"{value!r} is not a count")
    return value


def _digest(value: Any) -> str:
    text: str = _typed(value, str)
    if len(text) != 64 or text != text.lower():
        raise ValueError(f"{text!r} is not a SHA-256")
    bytes.fromhex(text)
    return text


def _relative(value: Any) -> str:
    """A path inside the manifest's folder; anything that could leave it is refused."""
    text: str = _typed(value, str)
    path = PurePosixPath(text)
    if path.is_absolute() or ".." in path.parts or not path.parts or "\\" in text or "\0" in text:
        raise ValueError(f"{text!r} is not a path inside the folder")
    return text


def _malformed(path: Path, problem: str) -> PackageError:
    return PackageError("manifest-malformed", f"{path} cannot be used: {problem}", hint="Run mindnano quantize again.")
