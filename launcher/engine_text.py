"""Text to token ids as the engine makes them, without a Python object for each id."""

from __future__ import annotations

import ctypes
from array import array
from ctypes import byref, c_int32, c_size_t

from launcher import engine_abi as abi
from launcher.engine_library import Library
from launcher.errors import UsageError


def token_ids(
    library: Library, package: ctypes.c_void_p, text: str, *, special: bool, most: int | None = None
) -> tuple[array[int], int]:
    """The first ids of a text, and how many there are in all.

    Megabytes of text have millions of ids. While as many Python integers are made or freed no other thread runs; the
    engine counts them without.

    Args:
        library: the engine.
        package: whose tokenizer.
        text: what is tokenised, all of it.
        special: whether added tokens that stand in the text are recognised.
        most: how many ids to give; None for all.

    Returns:
        The ids as int32, and the count.

    Raises:
        UsageError: the text holds a lone surrogate, which is no character.
    """
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise UsageError("text-encoding", f"the text is not valid Unicode: {error}") from error
    room = len(data) if most is None else min(most, len(data))  # a token covers at least one byte
    ids = (c_int32 * max(1, room))()
    count = c_size_t()
    flags = abi.TOKENIZE_SPECIAL if special else 0
    try:
        library.call("l3_tokenize", package, data, len(data), flags, ids, room, byref(count))
    except UsageError:
        if count.value <= room:
            raise
    found = array("i")
    found.frombytes(memoryview(ids).cast("B")[: found.itemsize * min(room, count.value)])
    return found, count.value
