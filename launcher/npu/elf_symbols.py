"""The dynamic symbols of a shared library, read from its bytes; nothing is loaded and nothing in it is believed."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final

_HEADER: Final = struct.Struct("<16sHHIQQQIHHHHHH")
_SECTION: Final = struct.Struct("<IIQQQQIIQQ")
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_DYNAMIC_SYMBOLS: Final = 11
_MAX_SECTIONS: Final = 4096
_MAX_SYMBOLS: Final = 200_000
_MAX_NAME: Final = 512
_MACHINES: Final = {183: "aarch64", 62: "x86_64", 40: "arm", 243: "riscv", 3: "i386"}


class NotALibrary(ValueError):
    """The bytes are no 64-bit little-endian ELF shared library with dynamic symbols; the text says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfLibrary:
    """Machine as ``uname -m`` names it, and the names that the library defines."""

    machine: str
    symbols: frozenset[str]


def read_elf(data: bytes) -> ElfLibrary:
    """Reads the header, the section table and the dynamic symbols.

    Raises:
        NotALibrary: a part is missing or points outside the file.
    """
    if len(data) < _HEADER.size or data[:4] != b"\x7fELF":
        raise NotALibrary("it is no ELF file")
    ident, kind, machine, _, _, _, table, _, _, _, _, entry, count, _ = _HEADER.unpack_from(data)
    if ident[4] != 2 or ident[5] != 1:
        raise NotALibrary("it is no 64-bit little-endian ELF file")
    if kind != 3:
        raise NotALibrary("it is no shared library")
    if entry != _SECTION.size or not 0 < count <= _MAX_SECTIONS:
        raise NotALibrary("it has no section table")
    if table + count * entry > len(data):
        raise NotALibrary("it is cut short")
    sections = [_SECTION.unpack_from(data, table + index * entry) for index in range(count)]
    symbols = next((section for section in sections if section[1] == _DYNAMIC_SYMBOLS), None)
    if symbols is None or symbols[6] >= count:
        raise NotALibrary("it has no dynamic symbols")
    names = _part(data, sections[symbols[6]])
    return ElfLibrary(
        machine=_MACHINES.get(machine, f"machine {machine}"), symbols=_defined(_part(data, symbols), names)
    )


def _part(data: bytes, section: tuple[int, ...]) -> bytes:
    offset, size = section[4], section[5]
    if offset + size > len(data):
        raise NotALibrary("it is cut short")
    return data[offset : offset + size]


def _defined(table: bytes, names: bytes) -> frozenset[str]:
    count = len(table) // _SYMBOL.size
    if count > _MAX_SYMBOLS:
        raise NotALibrary(f"it has {count} dynamic symbols")
    found = set()
    for name, _, _, section, _, _ in _SYMBOL.iter_unpack(table[: count * _SYMBOL.size]):
        end = names.find(b"\0", name, name + _MAX_NAME)
        if section != 0 and end > name:
            found.add(names[name:end].decode("ascii", "replace"))
    return frozenset(found)
