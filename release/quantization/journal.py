"""What an interrupted conversion has finished: one line per tensor, on the disk before the next one counts.

The first line names what is converted and how. A line is believed only if the file that it speaks of still has the
size and the SHA-256 that it states.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

from release.layouts.quantizer import Figures

FILE_NAME: Final = "journal.jsonl"
DRAFT: Final = "journal.new"
"""What it is called until its first lines are on the disk."""

_SCHEMA: Final = "mindnano-quantize-journal"
_VERSION: Final = 1
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A finished tensor.

    Attributes:
        name: of the package tensor.
        bytes: size of its file.
        source_sha256: of the stored bytes that it was made from, in the order in which they were read.
        sha256: of its file.
        figures: what rounding cost.
    """

    name: str
    bytes: int
    source_sha256: str
    sha256: str
    figures: Figures


class Journal:
    """The journal in a folder, open for further entries. Close it, or use it as a context manager.

    Args:
        folder: where the tensors are written.
        key: a digest of everything that the tensors depend on; a journal with another key is not continued.
    """

    def __init__(self, folder: Path, key: str) -> None:
        self._path = folder / FILE_NAME
        self._key = key
        self._file: BinaryIO | None = None

    def read(self) -> tuple[Entry, ...] | None:
        """The entries that are there, or None where there is no journal with this key."""
        try:
            lines = self._path.read_bytes().split(b"\n")
            if json.loads(lines[0]) != self._head():
                return None
        except (OSError, ValueError, RecursionError):
            return None
        entries = []
        for line in lines[1:]:
            try:
                entries.append(_parse(json.loads(line)))
            except (ValueError, KeyError, TypeError, RecursionError):
                break  # the line that was being written when the power went
        return tuple(entries)

    def start(self, entries: tuple[Entry, ...]) -> None:
        """Writes a journal of these entries, in one step, and opens it for more."""
        partial = self._path.with_name(DRAFT)
        with partial.open("wb") as file:
            file.write(_line(self._head()))
            for entry in entries:
                file.write(_line(asdict(entry)))
            file.flush()
            os.fsync(file.fileno())
        partial.replace(self._path)
        self._file = self._path.open("ab")

    def record(self, entry: Entry) -> None:
        """Adds an entry and returns when it is on the disk."""
        if self._file is None:
            raise AssertionError("the journal is not started")
        self._file.write(_line(asdict(entry)))
        self._file.flush()
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Closes the file; it stays where it is."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _head(self) -> dict[str, Any]:
        return {"schema": _SCHEMA, "version": _VERSION, "key": self._key}


def still_valid(
    entries: tuple[Entry, ...], paths: Mapping[str, Path], advance: Callable[[int], None]
) -> tuple[Entry, ...]:
    """The entries whose file is what they say; reads all of them. `advance` receives the bytes read."""
    kept = []
    for entry in entries:
        path = paths.get(entry.name)
        if path is not None and _has_digest(path, entry, advance):
            kept.append(entry)
    return tuple(kept)


def _has_digest(path: Path, entry: Entry, advance: Callable[[int], None]) -> bool:
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(_CHUNK))
    try:
        with path.open("rb", buffering=0) as file:
            if os.fstat(file.fileno()).st_size != entry.bytes:
                return False
            while count := file.readinto(buffer):
                digest.update(buffer[:count])
                advance(count)
    except OSError:
        return False
    return digest.hexdigest() == entry.sha256


def _parse(value: dict[str, Any]) -> Entry:
    entry = Entry(**{**value, "figures": Figures(**value["figures"])})
    texts = (entry.name, entry.source_sha256, entry.sha256)
    figures = value["figures"].values()
    if type(entry.bytes) is not int or not all(isinstance(text, str) for text in texts):
        raise TypeError("an entry has something else than texts and a size")
    if not all(isinstance(figure, float) for figure in figures):
        raise TypeError("a figure is no number")
    return entry


def _line(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode() + b"\n"
