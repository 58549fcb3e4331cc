"""Damaged tokenizer tables are refused with their reason and never read past their end."""

from __future__ import annotations

import re
import struct
import subprocess
from pathlib import Path

import pytest

from engine.build import build_executable, build_library
from engine.errors import BuildError
from launcher.engine import Package
from launcher.engine_library import Library
from launcher.errors import PackageError
from release.package.tokenizer_tables import TokenizerTables, build_tables
from tests.support.availability import unavailable
from tests.support.reference_tokenizers import train
from tests.support.texts import random_texts
from tests.support.tokenizer_package import tokenizer_package

HARNESS = Path(__file__).with_name("tokenizer_corruption.c")
TEXT = "Hello, 世界! 123 <|role_end|> the\n\n  end"
OFFSETS = {
    "the bytes of the tokens": 28,
    "the offsets of the tokens": 36,
    "the flags of the tokens": 40,
    "the byte tokens": 44,
    "the merges": 48,
    "the slots of the tokens": 52,
    "the added tokens": 56,
}


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(build_library())


@pytest.fixture(scope="module")
def tables() -> TokenizerTables:
    return build_tables(train(512).to_str().encode())


def patched(section: bytes, at: int, value: int) -> bytes:
    return section[:at] + struct.pack("<I", value & 0xFFFFFFFF) + section[at + 4 :]


def field(section: bytes, at: int) -> int:
    return int(struct.unpack_from("<I", section, at)[0])


def refuse(section: bytes, tables: TokenizerTables, folder: Path, library: Library, match: str) -> None:
    path = tokenizer_package(folder / "t.l3r", section, tables.token_count)
    with Package(path, library=library) as package, pytest.raises(PackageError, match=match):
        package.tokenize(TEXT)


@pytest.mark.parametrize(
    ("at", "change", "match"),
    [
        (0, lambda old: old + 1, "does not begin with BPE1"),
        (4, lambda old: old + 1, r"has \d+ tokens, the config says"),
        (8, lambda old: 1 << 31, "the merge table has .* entries"),
        (12, lambda old: 0xFFFFFFFF, "are added ones"),
        (16, lambda old: old + 1, "power of two"),
        (16, lambda old: 0, "power of two"),
        (16, lambda old: 1 << 31, "the merges lie at offset"),
        (20, lambda old: old - 1, "power of two"),
        (20, lambda old: 1 << 31, "the slots of the tokens lie at offset"),
        (24, lambda old: 2, "unknown flags 0x2"),
        (32, lambda old: 0xFFFFFFFF, "the bytes of the tokens lie at offset"),
        (60, lambda old: 1, "or 0x1 where 0 is expected"),
    ],
)
def test_damaged_header_fields_are_named(
    at: int, change: object, match: str, tables: TokenizerTables, library: Library, tmp_path: Path
) -> None:
    assert callable(change)
    section = patched(tables.section, at, change(field(tables.section, at)))
    refuse(section, tables, tmp_path, library, match)


@pytest.mark.parametrize("name", OFFSETS)
@pytest.mark.parametrize("offset", [0, 60, 66, 0xFFFFFFFC, 0x80000000])
def test_misplaced_arrays_are_named(
    name: str, offset: int, tables: TokenizerTables, library: Library, tmp_path: Path
) -> None:
    refuse(patched(tables.section, OFFSETS[name], offset), tables, tmp_path, library, f"{name} lie at offset {offset}")


@pytest.mark.parametrize("name", OFFSETS)
def test_a_section_cut_inside_an_array_is_refused(
    name: str, tables: TokenizerTables, library: Library, tmp_path: Path
) -> None:
    section = tables.section[: field(tables.section, OFFSETS[name])]
    refuse(section, tables, tmp_path, library, r"lie at offset \d+ with \d+ bytes; the section has")


@pytest.mark.parametrize("length", [1, 4, 63])
def test_a_section_shorter_than_its_header_is_refused(
    length: int, tables: TokenizerTables, library: Library, tmp_path: Path
) -> None:
    refuse(tables.section[:length], tables, tmp_path, library, "fewer than its header")


def test_entries_that_name_no_token_are_refused(tables: TokenizerTables, library: Library, tmp_path: Path) -> None:
    section = tables.section
    count = tables.token_count
    byte_token = field(section, 44) + 4 * ord("H")
    for value in (count, 0xFFFFFFFF, 0x80000000):
        refuse(patched(section, byte_token, value), tables, tmp_path, library, "a byte names token")
        refuse(patched(section, field(section, 56), value), tables, tmp_path, library, "added token 0 is")
    results = section
    for slot in range(field(section, 16)):
        results = patched(results, field(section, 48) + 16 * slot + 12, count)
    refuse(results, tables, tmp_path, library, f"a merge names token {count}")
    token_offset = field(section, 36) + 4 * next(iter(tables.ids.values()))
    for value in (field(section, 32) + 1, 0xFFFFFFFF):
        refuse(patched(section, token_offset, value), tables, tmp_path, library, r"lies at \d+ to \d+ of")


def test_tables_without_an_empty_slot_end_the_search(tables: TokenizerTables, library: Library, tmp_path: Path) -> None:
    section = tables.section
    begin, slots = field(section, 48), field(section, 16)
    full = section[:begin] + bytes(16 * slots) + section[begin + 16 * slots :]
    refuse(full, tables, tmp_path, library, "merge table has no empty slot")


def test_damaged_sections_are_never_read_past_their_end(tables: TokenizerTables, tmp_path: Path) -> None:
    try:
        program = build_executable([HARNESS], "tokenizer_corruption", sanitize=("address", "undefined"), out=tmp_path)
    except BuildError as error:
        if "needs gcc" not in error.message:
            raise
        unavailable(error.message)
    section, text = tmp_path / "section", tmp_path / "text"
    section.write_bytes(tables.section)
    text.write_text("".join(random_texts(60, seed=8)), encoding="utf-8", newline="")
    result = subprocess.run([program, section, text, "1", "3000"], capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    used, refused = map(int, re.findall(r"\d+", result.stdout))
    # Both ways through the code were taken often.
    assert used > 100
    assert refused > 1000
