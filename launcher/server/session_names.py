"""What a client calls its conversation: names that it gives, and hints that make one."""

from __future__ import annotations

import hashlib
import re
from typing import Final
from urllib.parse import unquote_to_bytes

from launcher.errors import RequestError
from launcher.server.protocol.limits import LABEL, MAX_NAME_CHARACTERS
from launcher.server.protocol.requests import Common

_LABEL: Final = re.compile(LABEL)
_NOT_ENCODED: Final = re.compile(rb"%(?![0-9A-Fa-f]{2})")


def session_name(request: Common, header: str | None) -> str | None:
    """The client's name for its conversation: the first of session_id, X-Session-Id, metadata.session_id,
    prompt_cache_key and user that is there and not empty.

    The last two are hints: one that cannot be a name is taken for its digest.

    Raises:
        RequestError: one of the others is not 1 to 256 printable characters.
    """
    named: tuple[tuple[str, object], ...] = (
        ("session_id", request.session_id),
        ("X-Session-Id", header),
        ("metadata.session_id", (request.metadata or {}).get("session_id")),
    )
    given = [(field, value) for field, value in named if value not in (None, "")]
    for field, value in given:
        if not isinstance(value, str) or not _LABEL.search(value):
            message = f"{field} is not 1 to {MAX_NAME_CHARACTERS} printable characters"
            raise RequestError("invalid_value", message, param=field)
    if given:
        return str(given[0][1])
    hint = request.prompt_cache_key or request.user
    if not hint or _LABEL.search(hint):
        return hint or None
    return f"sha256-{hashlib.sha256(hint.encode()).hexdigest()}"


def name_in_header(value: str) -> str:
    """The name in X-Session-Id, which comes decoded as Latin-1: UTF-8, percent-encoded as in answers or not at all.

    What is no percent-encoding of a name stands for itself, and what is no UTF-8 is Latin-1.
    """
    raw = value.encode("latin-1")
    plain = _utf8(raw)
    if b"%" in raw and not _NOT_ENCODED.search(raw):
        name = _utf8(unquote_to_bytes(raw))
        if name is not None and _LABEL.search(name):
            return name
    return value if plain is None else plain


def _utf8(data: bytes) -> str | None:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return None
