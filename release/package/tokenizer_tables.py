"""The tokenizer section of a `.l3r` file, made from a `tokenizer.json` (docs/l3r-format.md, "Tokenizer section")."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from release.checkpoint.tokenizer_json import BpeTokenizer, invalid, read_tokenizer_json, refuse

_MAGIC: Final = b"BPE1"
_HEADER: Final = struct.Struct("<4s15I")
_MERGE: Final = struct.Struct("<4I")
_EMPTY: Final = 0xFFFFFFFF
_IGNORE_MERGES: Final = 1
_FLAG_ADDED: Final = 1
_FLAG_SPECIAL: Final = 2
_FLAG_HOLE: Final = 4
_MASK: Final = 0xFFFFFFFF
# The section's offsets are 32 bits wide; the largest array must stay far below that.
_MAX_TOKENS: Final = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerTables:
    """The section's bytes, the number of ids (the largest one plus 1), and ids of the added tokens by their text."""

    section: bytes
    token_count: int
    ids: Mapping[str, int]


def build_tables(tokenizer_json: bytes) -> TokenizerTables:
    """Packs a tokenizer. The same input gives the same bytes.

    Raises:
        PackageError: the file is damaged or needs something that the engine does not implement, which is named.
    """
    tokenizer = read_tokenizer_json(tokenizer_json)
    token_bytes, flags = _tokens(tokenizer)
    longest_first = sorted(tokenizer.added, key=lambda token: (-len(token.content.encode()), token.id))
    offsets = _running_sum(len(data) for data in token_bytes)
    merge_slots, merge_table = _merge_table(tokenizer)
    token_slots, token_table = _token_table(token_bytes, flags)
    arrays = (
        b"".join(token_bytes),
        _u32(offsets),
        bytes(flags),
        _i32(_byte_tokens(tokenizer.vocabulary)),
        merge_table,
        token_table,
        _i32([token.id for token in longest_first]),
    )
    places: list[int] = []
    end = _HEADER.size
    for part in arrays:
        places.append(end)
        end += _aligned(len(part))
    if end > _MASK:
        refuse(f"{len(token_bytes)} tokens need tables of {end} bytes; 32-bit offsets reach {_MASK}")
    header = _HEADER.pack(
        _MAGIC,
        len(token_bytes),
        len(tokenizer.merges),
        len(tokenizer.added),
        merge_slots,
        token_slots,
        _IGNORE_MERGES if tokenizer.ignore_merges else 0,
        places[0],
        len(arrays[0]),
        *places[1:],
        0,
    )
    section = header + b"".join(part.ljust(_aligned(len(part)), b"\0") for part in arrays)
    ids = {token.content: token.id for token in tokenizer.added}
    return TokenizerTables(section=section, token_count=len(token_bytes), ids=ids)


def byte_alphabet() -> dict[str, int]:
    """The byte that each character of the byte-level alphabet stands for.

    Printable characters of Latin-1 stand for themselves; the other bytes take the characters from U+0100 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in set(printable)]
    return {chr(byte): byte for byte in printable} | {chr(0x100 + i): byte for i, byte in enumerate(others)}


def merge_slot(left: int, right: int) -> int:
    """Hash of a pair of ids, before masking."""
    h = (left * 0x9E3779B1 + right * 0x85EBCA77) & _MASK
    return h ^ (h >> 15)


def token_slot(data: bytes) -> int:
    """Hash of a token's bytes, before masking."""
    h = 0x811C9DC5
    for byte in data:
        h = ((h ^ byte) * 0x01000193) & _MASK
    return h ^ (h >> 15)


def _tokens(tokenizer: BpeTokenizer) -> tuple[list[bytes], bytearray]:
    """Bytes and flags of every id."""
    last = max([*tokenizer.vocabulary.values(), *(token.id for token in tokenizer.added)])
    if last >= _MAX_TOKENS:
        refuse(f"the largest id is {last}; ids below {_MAX_TOKENS} are supported")
    token_bytes = [b""] * (last + 1)
    flags = bytearray([_FLAG_HOLE]) * (last + 1)
    for token in tokenizer.added:
        token_bytes[token.id] = token.content.encode()
        flags[token.id] = _FLAG_ADDED | (_FLAG_SPECIAL if token.special else 0)
    alphabet = byte_alphabet()
    for text, token_id in tokenizer.vocabulary.items():
        if flags[token_id] & _FLAG_ADDED:
            continue  # spelled as it stands in the text
        try:
            token_bytes[token_id] = bytes([alphabet[character] for character in text])
        except KeyError as error:
            refuse(f"token {token_id} ({text!r}) has the character {error.args[0]!r}, which stands for no byte")
        flags[token_id] = 0
    return token_bytes, flags


def _byte_tokens(vocabulary: Mapping[str, int]) -> list[int]:
    result = [0] * 256
    for character, byte in byte_alphabet().items():
        if character not in vocabulary:
            invalid(f"there is no token for the byte 0x{byte:02x} ({character!r})")
        result[byte] = vocabulary[character]
    return result


def _merge_table(tokenizer: BpeTokenizer) -> tuple[int, bytes]:
    slots = _slots(len(tokenizer.merges))
    table = bytearray(_MERGE.pack(_EMPTY, 0, 0, 0) * slots)
    used = bytearray(slots)
    vocabulary = tokenizer.vocabulary
    for rank, (left_text, right_text) in enumerate(tokenizer.merges):
        left, right = vocabulary[left_text], vocabulary[right_text]
        slot = _free(used, merge_slot(left, right))
        _MERGE.pack_into(table, slot * _MERGE.size, left, right, rank, vocabulary[left_text + right_text])
    return slots, bytes(table)


def _token_table(token_bytes: Sequence[bytes], flags: bytearray) -> tuple[int, bytes]:
    slots = _slots(len(token_bytes))
    table = [-1] * slots
    used = bytearray(slots)
    # Where an added token and another have the same bytes, the one that comes first is found.
    order = sorted(range(len(token_bytes)), key=lambda token: (not flags[token] & _FLAG_ADDED, token))
    for token in order:
        if not flags[token] & _FLAG_HOLE:
            table[_free(used, token_slot(token_bytes[token]))] = token
    return slots, _i32(table)


def _free(used: bytearray, hashed: int) -> int:
    """Takes the first free slot from the hash on."""
    mask = len(used) - 1
    slot = hashed & mask
    while used[slot]:
        slot = (slot + 1) & mask
    used[slot] = 1
    return slot


def _slots(entries: int) -> int:
    """The power of two that is at least twice as large, and at least 2."""
    return 1 << max(1, (2 * entries - 1).bit_length())


def _running_sum(lengths: Iterable[int]) -> list[int]:
    result = [0]
    for length in lengths:
        result.append(result[-1] + length)
    return result


def _aligned(length: int) -> int:
    return (length + 3) // 4 * 4


def _u32(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}I", *values)


def _i32(values: Sequence[int]) -> bytes:
    return struct.pack(f"<{len(values)}i", *values)
