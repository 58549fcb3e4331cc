"""SHA256SUMS, the format of ``sha256sum``: written byte for byte, read with tolerance for harmless differences only.

What is tolerated is reported, since coreutils would fail on some of it: with CRLF it finds no file, with a BOM it
loses the first line. An empty, short or otherwise wrong digest is never skipped.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from launcher.errors import PackageError
from launcher.integrity.release_files import clashing_paths, path_fault, printable, read_capped

FILE_NAME: Final = "SHA256SUMS"
PUBLIC_FILE_NAME: Final = "SHA256SUMS.PUBLIC"
MAX_BYTES: Final = 8 << 20
MAX_FILES: Final = 16_384
_LINE: Final = re.compile(r"(\\?)([0-9A-Fa-f]*)( [ *]| ?)(.*)", re.DOTALL)
_TAGGED: Final = re.compile(r"\\?([A-Z0-9-]+) ?\(.*\) ?= ?[0-9A-Za-z+/=]+", re.DOTALL)
_DIGITS: Final = 64
_OTHER_LENGTHS: Final = {8: "CRC-32", 32: "MD5", 40: "SHA-1", 56: "SHA-224", 96: "SHA-384", 128: "SHA-512"}
_BOM: Final = b"\xef\xbb\xbf"
_ESCAPES: Final = {"\\": "\\", "n": "\n", "r": "\r"}
_SHOWN: Final = 60


class Tolerated(Enum):
    """Differences from what ``sha256sum`` writes that do not change the meaning."""

    BOM = "bom"
    CRLF = "crlf"
    BLANK_LINES = "blank-lines"
    COMMENTS = "comments"
    NO_FINAL_NEWLINE = "no-final-newline"
    BINARY_MARKER = "binary-marker"
    SINGLE_SPACE = "single-space"
    UPPER_CASE = "upper-case"
    DOT_SLASH = "dot-slash"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChecksumList:
    """SHA-256 (64 lower-case hexadecimal digits) by name, and what was tolerated in the file, in a fixed order."""

    digests: Mapping[str, str]
    tolerated: tuple[Tolerated, ...] = ()


def format_checksums(digests: Mapping[str, str]) -> bytes:
    """The bytes that ``sha256sum`` prints for these files, sorted by the bytes of their names.

    Raises:
        PackageError: a name or a digest is not one that the reader accepts.
    """
    lines = []
    for path in sorted(digests, key=lambda name: name.encode(errors="surrogatepass")):
        fault = path_fault(path)
        if fault is not None:
            raise _invalid(FILE_NAME, f"the name {_shown(path)} cannot be listed: {fault}")
        digest = digests[path]
        if len(digest) != _DIGITS or not set(digest) <= set("0123456789abcdef"):
            raise _invalid(FILE_NAME, f"{_shown(digest)} of {_shown(path)} is not a SHA-256")
        escaped = path.replace("\\", "\\\\").replace("\n", "\\n").replace("\r", "\\r")
        mark = "\\" if escaped != path else ""
        lines.append(f"{mark}{digest}  {escaped}\n")
    return "".join(lines).encode()


def parse_checksums(data: bytes, *, where: str = FILE_NAME) -> ChecksumList:
    """The list in these bytes.

    Raises:
        PackageError: a line is no digest with a name, a digest is no SHA-256, a name leaves the folder or occurs
            twice, nothing is listed, or there is too much of it.
    """
    if len(data) > MAX_BYTES:
        raise _invalid(where, f"it has {len(data)} bytes, expected at most {MAX_BYTES}")
    reader = _Reader(where)
    return reader.read(data)


def read_checksums(path: Path) -> ChecksumList | None:
    """The list in this file, or None where there is no such file.

    Raises:
        PackageError: as `parse_checksums`; it cannot be read.
    """
    data = read_capped(path, MAX_BYTES)
    return None if data is None else parse_checksums(data, where=str(path))


class _Reader:
    def __init__(self, where: str) -> None:
        self._where = where
        self._seen: set[Tolerated] = set()
        self._digests: dict[str, str] = {}

    def read(self, data: bytes) -> ChecksumList:
        if data.startswith(_BOM):
            self._seen.add(Tolerated.BOM)
            data = data[len(_BOM) :]
        try:
            text = data.decode()
        except UnicodeDecodeError as error:
            raise _invalid(self._where, f"it is not UTF-8 text: {error}") from error
        lines = text.split("\n")
        if lines[-1] == "":
            lines.pop()
        else:
            self._seen.add(Tolerated.NO_FINAL_NEWLINE)
        for number, line in enumerate(lines, start=1):
            self._line(number, line)
        if not self._digests:
            raise _invalid(self._where, "it lists no file")
        clash = clashing_paths(sorted(self._digests))
        if clash is not None:
            raise _invalid(self._where, f"{_shown(clash[0])} and {_shown(clash[1])} cannot both exist in one folder")
        return ChecksumList(
            digests=dict(self._digests), tolerated=tuple(kind for kind in Tolerated if kind in self._seen)
        )

    def _line(self, number: int, line: str) -> None:
        if line.endswith("\r"):
            self._seen.add(Tolerated.CRLF)
            line = line[:-1]
        if not line.strip(" \t"):
            self._seen.add(Tolerated.BLANK_LINES)
            return
        if line.startswith("#"):
            self._seen.add(Tolerated.COMMENTS)
            return
        tagged = _TAGGED.fullmatch(line)
        if tagged is not None:
            raise self._fault(number, f"it is in the style of BSD ({tagged[1]}), expected a SHA-256 and a name")
        match = _LINE.fullmatch(line)
        escape, digest, gap, name = ("", "", "", line) if match is None else match.groups()
        self._require_digest(number, digest, name)
        if not gap or not name:
            raise self._fault(number, "there is a digest and no name of a file")
        if gap == " ":
            self._seen.add(Tolerated.SINGLE_SPACE)
        elif gap == " *":
            self._seen.add(Tolerated.BINARY_MARKER)
        if digest != digest.lower():
            self._seen.add(Tolerated.UPPER_CASE)
        self._add(number, self._unescaped(number, name) if escape else name, digest.lower())

    def _require_digest(self, number: int, digest: str, rest: str) -> None:
        if not digest:
            raise self._fault(number, f"{_shown(rest)} has no digest")
        if len(digest) == _DIGITS:
            return
        other = _OTHER_LENGTHS.get(len(digest))
        guess = f", the length of {other}" if other else ""
        raise self._fault(number, f"the digest has {len(digest)} hexadecimal digits{guess}; a SHA-256 has {_DIGITS}")

    def _unescaped(self, number: int, name: str) -> str:
        parts = []
        characters = iter(name)
        for character in characters:
            if character != "\\":
                parts.append(character)
                continue
            following = next(characters, "")
            if following not in _ESCAPES:
                raise self._fault(number, f"the name {_shown(name)} has a backslash that escapes nothing")
            parts.append(_ESCAPES[following])
        return "".join(parts)

    def _add(self, number: int, name: str, digest: str) -> None:
        if name.startswith("./"):
            self._seen.add(Tolerated.DOT_SLASH)
            name = name[2:]
        fault = path_fault(name)
        if fault is not None:
            raise self._fault(number, f"the name {_shown(name)} is not one of a file in this folder: {fault}")
        if name in self._digests:
            raise self._fault(number, f"{_shown(name)} is listed twice")
        if len(self._digests) >= MAX_FILES:
            raise self._fault(number, f"more than {MAX_FILES} files are listed")
        self._digests[name] = digest

    def _fault(self, number: int, fault: str) -> PackageError:
        return _invalid(self._where, f"line {number}: {fault}")


def _invalid(where: str, fault: str) -> PackageError:
    return PackageError("sums-invalid", f"{where}: {fault}", hint="fetch the release again from its publisher")


def _shown(text: str) -> str:
    shown = printable(text)
    return repr(shown if len(shown) <= _SHOWN else shown[: _SHOWN - 1] + "…")
