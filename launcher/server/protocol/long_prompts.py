"""Completions whose prompt is a list of very many token ids.

While the JSON library makes a list no other thread runs, so a list of millions of ids is read piece by piece.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import msgspec
from msgspec import Raw

from launcher.server.protocol.requests import CompletionRequest, TokenId

_MANY: Final = 1 << 18
_PIECE: Final = 1 << 16  # bytes


class UnreadPrompt(CompletionRequest, frozen=True, kw_only=True):
    """A completion whose prompt is JSON still."""

    prompt: Raw  # type: ignore[assignment]


_IDS: Final = msgspec.json.Decoder(list[TokenId])


def may_be_long(body: bytes) -> bool:
    """Whether there may be very many ids in it."""
    return body.count(b",") >= _MANY


def with_ids(unread: UnreadPrompt) -> CompletionRequest | None:
    """The completion, or None where the prompt is no list of ids: to be read at once, which also tells what it is."""
    listed = bytes(unread.prompt)
    if listed[:1] != b"[":
        return None
    ids: list[int] = []
    try:
        for piece in _pieces(listed[1:-1]):
            ids += _IDS.decode(b"[" + piece + b"]")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    fields = {name: getattr(unread, name) for name in CompletionRequest.__struct_fields__}
    return CompletionRequest(**fields | {"prompt": ids})


def _pieces(listed: bytes) -> Iterator[bytes]:
    """Cuts at commas. Where one of them is in a string or in another list, a piece is no list of ids."""
    start = 0
    while start < len(listed):
        comma = listed.find(b",", start + _PIECE)
        end = len(listed) if comma < 0 else comma
        yield listed[start:end]
        start = end + 1
