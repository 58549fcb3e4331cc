"""The streaming detokeniser says what Python's decoder says, however the bytes are cut."""

from __future__ import annotations

import itertools
import random

import pytest

from engine.build import build_library
from launcher.engine_library import Library
from launcher.engine_sampling import Utf8Stream
from tests.support.texts import random_texts

# Every byte that begins a sequence with its own rule, every bound of a second byte, and plain ones.
EDGES = bytes.fromhex("41 7f 80 8f 90 9f a0 bf c0 c1 c2 df e0 e1 ec ed ee ef f0 f1 f3 f4 f5 ff")


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(build_library())


def stream(library: Library, chunks: list[bytes]) -> str:
    utf8 = Utf8Stream(library=library)
    return "".join([*map(utf8.push, chunks), utf8.finish()])


def cut(data: bytes, rng: random.Random) -> list[bytes]:
    chunks = []
    while data:
        size = rng.randint(0, 5)
        chunks.append(data[:size])
        data = data[size:]
    return chunks


def test_every_ill_formed_sequence_is_replaced_as_in_python(library: Library) -> None:
    for length in (1, 2, 3):
        for sequence in itertools.product(EDGES, repeat=length):
            data = bytes(sequence)
            expected = data.decode("utf-8", errors="replace")
            assert stream(library, [data]) == expected, data.hex(" ")
            assert stream(library, [bytes([byte]) for byte in data]) == expected, data.hex(" ")


def test_four_byte_sequences_are_replaced_as_in_python(library: Library) -> None:
    continuations = bytes.fromhex("41 80 8f 90 bf c2 f0")
    for lead in b"\xe0\xed\xf0\xf1\xf4\xf5":
        for rest in itertools.product(continuations, repeat=4):
            data = bytes([lead, *rest])
            assert stream(library, [data]) == data.decode("utf-8", errors="replace"), data.hex(" ")


def test_damaged_text_is_the_same_however_it_is_cut(library: Library) -> None:
    rng = random.Random(11)
    for text in random_texts(5_000, seed=11):
        data = bytearray(text.encode())
        for _ in range(rng.randint(0, 4)):
            data[rng.randrange(len(data))] = rng.choice(EDGES)
        expected = bytes(data).decode("utf-8", errors="replace")
        assert stream(library, cut(bytes(data), rng)) == expected, data.hex(" ")


def test_every_character_comes_back_from_single_bytes(library: Library) -> None:
    utf8 = Utf8Stream(library=library)
    for code in [*range(0x3000), 0xD7FF, 0xE000, 0xFFFD, 0xFFFF, 0x10000, 0x1F600, 0x10FFFF]:
        data = chr(code).encode()
        # Nothing is shown before the character is whole.
        assert [utf8.push(data[i : i + 1]) for i in range(len(data))] == [""] * (len(data) - 1) + [chr(code)]
    assert utf8.finish() == ""


def test_a_finished_stream_begins_anew(library: Library) -> None:
    utf8 = Utf8Stream(library=library)
    assert utf8.push(b"\xf0\x9f\x98") == ""
    assert utf8.finish() == "\ufffd"
    assert utf8.push(b"\x80ok") == "\ufffdok"
    assert utf8.finish() == ""
