"""A session as the body of a request or an answer: the file of `session_format`, without a disk.

What leaves names no owner, so that another server's caller can take it in under a key of its own. What comes is checked
in two steps: the header before there is any memory for it, everything else before it is anybody's conversation.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from launcher.errors import MindnanoError, PackageError, RequestError
from launcher.server.session_entries import Entry, Key
from launcher.server.session_file import PIECE
from launcher.server.session_format import (
    DIGEST_BYTES,
    ID_BYTES,
    MAGIC,
    MAX_HEADER,
    PREFIX,
    Header,
    Origin,
    decode_header,
    decode_ids,
    encode_ids,
    header_length,
)

_SENT_AT_ONCE: Final = 256 << 10
_ORIGIN: Final[Mapping[str, str]] = {
    "identity": "model",
    "template": "chat template",
    "kv": "kind of attention cache",
    "engine": "engine",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspected:
    """What an engine's export says of itself; `kv` as in `Origin`."""

    identity: bytes
    kv: str
    ids: array[int]
    checkpoints: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class StateRules:
    """What a state must be so that this server can go on with it.

    Attributes:
        origin: what makes the sessions of this server.
        context: most tokens.
        budget: most bytes of an export; 0 takes and gives none.
        inspect: reads an export's own description.
    """

    origin: Origin
    context: int
    budget: int
    inspect: Callable[[Any], Inspected]

    @property
    def limit(self) -> int:
        """Bytes that a whole state can have at most."""
        return PREFIX.size + MAX_HEADER + ID_BYTES * self.context + self.budget + DIGEST_BYTES

    def require_cache(self) -> None:
        """Makes sure that states can be kept at all.

        Raises:
            RequestError: 501.
        """
        if self.budget <= 0:
            raise RequestError(
                "session_cache_off",
                "this server keeps no sessions: its session cache has 0 bytes; start it with --session-cache-mib MIB",
                status=501,
                kind="server_error",
            )

    def check_length(self, length: int) -> None:
        """Whether so many bytes can be a state.

        Raises:
            RequestError: 413.
        """
        if length > self.limit:
            raise RequestError(
                "request_too_large",
                f"the state has {length} bytes; this server takes {self.limit} at most, "
                f"with {self.budget} bytes of session cache",
                status=413,
            )

    def check_header(self, header: Header, owner: str) -> None:
        """Whether this server could go on with it, as far as the header tells.

        Raises:
            RequestError: 400 or 413 it could not, 403 it is another caller's.
        """
        expected = self.origin.fields()
        for field, what in _ORIGIN.items():
            if header.origin[field] != expected[field]:
                raise _foreign(f"another {what}: {header.origin[field]}, expected {expected[field]}")
        if header.key.owner not in ("", owner):
            raise RequestError(
                "session_state_owner",
                f"the state names {header.key.owner!r} as its owner, expected none or the caller's own digest; "
                "GET /v1/sessions/{id}/state gives it without one",
                status=403,
                kind="permission_error",
            )
        if header.tokens > self.context:
            raise _foreign(f"a longer context: {header.tokens} tokens, expected {self.context} at most")
        if header.export_bytes > self.budget:
            raise RequestError(
                "request_too_large",
                f"the state has {header.export_bytes} bytes; the session cache holds {self.budget} at most",
                status=413,
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StateFile:
    """A state that leaves. `checksum` ends it; `digest` is the SHA-256 of all of it."""

    head: bytes
    memory: Any
    checksum: bytes
    digest: bytes

    @property
    def length(self) -> int:
        """Of the whole file in bytes."""
        return len(self.head) + len(self.memory) + len(self.checksum)

    def pieces(self) -> Iterator[bytes]:
        """The bytes, a few at a time."""
        yield self.head
        for offset in range(0, len(self.memory), _SENT_AT_ONCE):
            yield self.memory[offset : offset + _SENT_AT_ONCE]
        yield self.checksum


def state_file(entry: Entry, origin: Origin) -> StateFile:
    """The state of a conversation that has a name. Reads all of its memory."""
    header = Header(
        key=Key(owner="", name=entry.key.name),
        origin=origin.fields(),
        tokens=len(entry.ids),
        export_bytes=entry.block.size,
        checkpoints=entry.checkpoints,
    )
    head = header.encode() + encode_ids(entry.ids)
    digest = _digest(head, entry.block.memory)
    checksum = digest.digest()
    digest.update(checksum)
    return StateFile(head=head, memory=entry.block.memory, checksum=checksum, digest=digest.digest())


def check_prefix(prefix: bytes) -> int:
    """Length of the header behind the first bytes.

    Raises:
        RequestError: 400, they are of no state.
    """
    if not prefix.startswith(MAGIC):
        found = prefix[: len(MAGIC)].hex(" ")
        raise damaged_state(f"it begins with {found}, expected {MAGIC.hex(' ')}")
    try:
        return header_length(prefix)
    except PackageError as error:
        raise damaged_state(f"{error.message}, expected 1 to {MAX_HEADER}") from error


def check_header(text: bytes) -> Header:
    """The header.

    Raises:
        RequestError: 400, it is none.
    """
    try:
        return decode_header(text)
    except PackageError as error:
        raise damaged_state(error.message) from error


def check_state(head: bytes, header: Header, memory: Any, checksum: bytes, rules: StateRules) -> array[int]:
    """Checks all of a state; `head` is everything before the export. Reads all of its memory.

    Returns:
        The token ids.

    Raises:
        RequestError: 400, it is damaged, or its parts are not of one session of this server's model.
    """
    expected = _digest(head, memory).digest()
    if checksum != expected:
        raise damaged_state(f"its checksum is {checksum.hex()}, its bytes give {expected.hex()}")
    ids = decode_ids(head[len(head) - ID_BYTES * header.tokens :])
    try:
        found = rules.inspect(memory)
    except MindnanoError as error:
        raise damaged_state(error.message) from error
    if found.identity != rules.origin.identity:
        raise _foreign(f"another model: {found.identity.hex()}, expected {rules.origin.identity.hex()}")
    if found.kv != rules.origin.kv:
        raise _foreign(f"another kind of attention cache: {found.kv}, expected {rules.origin.kv}")
    if found.ids != ids or dict(found.checkpoints) != dict(header.checkpoints):
        raise damaged_state(
            f"its header tells of {header.tokens} tokens with checkpoints {dict(header.checkpoints)}, "
            f"the engine's part of {'others' if len(found.ids) == header.tokens else len(found.ids)} "
            f"with {dict(found.checkpoints)}"
        )
    return ids


def damaged_state(fault: str) -> RequestError:
    """The error for a body that is no whole state."""
    return RequestError("session_state_damaged", f"the state cannot be used: {fault}", param="body")


def _foreign(fault: str) -> RequestError:
    return RequestError("session_state_foreign", f"the state is of {fault}", param="body")


def _digest(head: bytes, memory: Any) -> Any:
    digest = hashlib.sha256(head)
    with memoryview(memory) as view:
        for offset in range(0, len(view), PIECE):
            with view[offset : offset + PIECE] as piece:
                digest.update(piece)
    return digest
