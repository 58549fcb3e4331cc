"""What an exported session says of itself, and the errors of one that cannot be used."""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from ctypes import byref
from dataclasses import dataclass
from typing import Any

from launcher import engine_abi as abi
from launcher.engine_library import Library, readable_block
from launcher.engine_types import KvType
from launcher.errors import PackageError, UsageError

_ID_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportInfo:
    """An exported session: its length in tokens, its ids, and the position of each used checkpoint by slot.

    `identity` is that of the package it was made with; `mtp` says whether it holds the MTP cache.
    """

    position: int
    kv_type: KvType
    mtp: bool
    identity: bytes
    tokens: array[int]
    checkpoints: Mapping[int, int]


def read_export(library: Library, buffer: Any) -> ExportInfo:
    """Checks the structure of what `Session.export_into` wrote, bytes or a writable buffer, and says what it is.

    Raises:
        UsageError: it is damaged, cut short or of another version.
    """
    block = readable_block(buffer)
    info = abi.CExportInfo()
    with as_export_errors():
        library.call("l3_export_read", block, len(block), byref(info))
    position, offset = int(info.position), int(info.tokens_offset)
    return ExportInfo(
        position=position,
        kv_type=KvType(info.kv_type),
        mtp=bool(info.mtp),
        identity=bytes(info.identity),
        tokens=array("i", ctypes.string_at(ctypes.addressof(block) + offset, _ID_BYTES * position)),
        checkpoints=_checkpoints(library, block, int(info.checkpoint_count)),
    )


@contextmanager
def as_export_errors() -> Iterator[None]:
    """What the engine says of damage is about the exported session here, not about the package."""
    try:
        yield
    except PackageError as error:
        raise UsageError("session-export", error.message, hint="evaluate the tokens again") from error


def _checkpoints(library: Library, block: Any, count: int) -> dict[int, int]:
    found: dict[int, int] = {}
    for slot in range(abi.MAX_CHECKPOINTS):
        if len(found) == count:
            break
        position = int(library.functions.l3_export_checkpoint(block, len(block), slot))
        if position != abi.EMPTY_SLOT:
            found[slot] = position
    return found
