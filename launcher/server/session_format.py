"""The file of a saved session: magic, length of the header, header, token ids, the engine's export, SHA-256.

8   magic, with the version of this format
4   length of the header, little-endian
n   header: JSON
4k  the k token ids, little-endian int32
b   the engine's export
32  SHA-256 over everything before
"""

from __future__ import annotations

import hashlib
import json
import struct
import sys
from array import array
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from launcher.errors import PackageError, ResourceError
from launcher.integrity.strict_json import Fields, parse_object
from launcher.server.session_entries import Key

MAGIC: Final = b"MNSESS\x00\x01"
PREFIX: Final = struct.Struct("<8sI")
MAX_HEADER: Final = 64 << 10
MAX_NAME: Final = 1024
MAX_TOKENS: Final = 1 << 24
MAX_SLOTS: Final = 1024
MAX_EXPORT: Final = 1 << 40
DIGEST_BYTES: Final = 32
ID_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What made a session; only the same can go on with it.

    Attributes:
        identity: `Package.identity()`.
        template_sha256: of the chat template's source.
        kv: how the engine keeps its caches, as a label; also whether it keeps the MTP cache.
        engine: name and version.
    """

    identity: bytes
    template_sha256: bytes
    kv: str
    engine: str

    def fields(self) -> dict[str, str]:
        """As they stand in a header."""
        return {
            "identity": self.identity.hex(),
            "template": self.template_sha256.hex(),
            "kv": self.kv,
            "engine": self.engine,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a file says of itself; `checkpoints` is slot -> position, sizes in bytes, `private` see `Entry`."""

    key: Key
    origin: Mapping[str, str]
    tokens: int
    export_bytes: int
    checkpoints: Mapping[int, int]
    private: bool = False

    def encode(self) -> bytes:
        """Everything before the token ids.

        Raises:
            ResourceError: it is longer than a reader would take.
        """
        document = {
            **self.origin,
            "owner": self.key.owner,
            "name": self.key.name,
            "tokens": self.tokens,
            "bytes": self.export_bytes,
            "checkpoints": sorted(self.checkpoints.items()),
            **({"private": True} if self.private else {}),
        }
        text = json.dumps(document, separators=(",", ":"), allow_nan=False).encode()
        if len(text) > MAX_HEADER or max(len(self.key.owner), len(self.key.name or "")) > MAX_NAME:
            raise ResourceError("session-unsaved", f"a session with a name of {len(text)} bytes cannot be saved")
        return PREFIX.pack(MAGIC, len(text)) + text

    def body_bytes(self) -> int:
        """Length of everything after the header."""
        return ID_BYTES * self.tokens + self.export_bytes + DIGEST_BYTES


def damaged(fault: str) -> PackageError:
    """The error for a file that is not what this format says."""
    return PackageError("session-refused", fault, hint="the request runs without it")


def header_length(prefix: bytes) -> int:
    """Length of the JSON text that follows these first bytes of a file.

    Raises:
        PackageError: they are of no such file.
    """
    if len(prefix) != PREFIX.size:
        raise damaged("it ends within its first bytes")
    magic, length = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise damaged("it does not begin as a saved session of this version does")
    if not 0 < length <= MAX_HEADER:
        raise damaged(f"its header would have {length} bytes")
    return int(length)


def decode_header(text: bytes) -> Header:
    """The header in this JSON text.

    Raises:
        PackageError: a key is missing, unknown, twice there, of another type or out of range.
    """
    try:
        fields = parse_object(text, "header")
        origin = {
            "identity": fields.digest("identity"),
            "template": fields.digest("template"),
            "kv": fields.text("kv"),
            "engine": fields.text("engine"),
        }
        header = Header(
            key=Key(owner=_name(fields, "owner"), name=_name(fields, "name")),
            origin=origin,
            tokens=fields.integer("tokens", low=1, high=MAX_TOKENS),
            export_bytes=fields.integer("bytes", low=1, high=MAX_EXPORT),
            checkpoints=_checkpoints(fields),
            private=fields.has("private") and fields.boolean("private"),
        )
        fields.finish()
    except PackageError as error:
        raise damaged(error.message) from error
    if any(position > header.tokens for position in header.checkpoints.values()):
        raise damaged("a checkpoint lies beyond its end")
    return header


def encode_ids(ids: array[int]) -> bytes:
    """Token ids as they stand in the file."""
    if sys.byteorder == "little":
        return ids.tobytes()
    swapped = array("i", ids)
    swapped.byteswap()
    return swapped.tobytes()


def decode_ids(data: bytes) -> array[int]:
    """The reverse."""
    ids = array("i", data)
    if sys.byteorder != "little":
        ids.byteswap()
    return ids


def file_name(key: Key, origin: Mapping[str, str]) -> str:
    """Where a session is: no name of a client becomes a path, and sessions of another model keep their files."""
    name = hashlib.sha256(json.dumps([key.owner, key.name]).encode()).hexdigest()
    made_by = hashlib.sha256(json.dumps(dict(sorted(origin.items()))).encode()).hexdigest()
    return f"{name}-{made_by[:16]}"


def _name(fields: Fields, key: str) -> str:
    value = fields.take(key)
    if not isinstance(value, str) or len(value) > MAX_NAME:
        raise fields.fail(key, f"text of at most {MAX_NAME} characters")
    return value


def _checkpoints(fields: Fields) -> dict[int, int]:
    result: dict[int, int] = {}
    for pair in fields.array("checkpoints", limit=MAX_SLOTS):
        if not isinstance(pair, list) or [type(number) for number in pair] != [int, int]:
            raise fields.fail("checkpoints", "pairs of a slot and a position")
        slot, position = pair
        if not 0 <= slot < MAX_SLOTS or slot in result or not 0 < position <= MAX_TOKENS:
            raise fields.fail("checkpoints", "slots and positions in range, each slot once")
        result[slot] = position
    return result
