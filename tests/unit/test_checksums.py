"""A list that coreutils reads otherwise than we do; a digest that is skipped; a name that leaves the folder."""

from __future__ import annotations

import hashlib
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import PackageError
from launcher.integrity.checksums import (
    MAX_FILES,
    ChecksumList,
    Tolerated,
    format_checksums,
    parse_checksums,
    read_checksums,
)
from launcher.integrity.release_files import clashing_paths, path_fault

A, B = "a" * 64, "b" * 64
NAMES = [
    "plain",
    "with space",
    "  leading",
    "日本語/文件.txt",
    "a\\b",
    "new\nline",
    "car\rriage",
    "tab\tname",
    "*star",
    "Z",
    "é",
]


def coreutils(folder: Path, *words: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["sha256sum", *words], cwd=folder, capture_output=True, check=False)


def write_files(folder: Path) -> dict[str, str]:
    digests = {}
    for name in NAMES:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(name.encode())
        digests[name] = hashlib.sha256(name.encode()).hexdigest()
    return digests


def test_written_bytes_are_those_of_coreutils(tmp_path: Path) -> None:
    digests = write_files(tmp_path)
    ordered = sorted(NAMES, key=str.encode)
    assert format_checksums(digests) == coreutils(tmp_path, *ordered).stdout
    (tmp_path / "SUMS").write_bytes(format_checksums(digests))
    done = coreutils(tmp_path, "--strict", "-c", "SUMS")
    assert done.returncode == 0, done.stdout


def test_what_coreutils_writes_is_read(tmp_path: Path) -> None:
    digests = write_files(tmp_path)
    found = parse_checksums(coreutils(tmp_path, *NAMES).stdout)
    assert found == ChecksumList(digests=digests)
    assert parse_checksums(coreutils(tmp_path, "-b", *NAMES).stdout).tolerated == (Tolerated.BINARY_MARKER,)


names = st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), min_size=1, max_size=30).filter(
    lambda name: path_fault(name) is None
)


@given(st.dictionaries(names, st.binary(min_size=32, max_size=32).map(bytes.hex), min_size=1, max_size=5))
@settings(max_examples=150, deadline=None)
def test_written_list_reads_back_untouched(digests: dict[str, str]) -> None:
    if clashing_paths(sorted(digests)) is None and not any(name.endswith("\r") for name in digests):
        assert parse_checksums(format_checksums(digests)) == ChecksumList(digests=digests)


@pytest.mark.parametrize(
    ("data", "tolerated"),
    [
        (f"{A}  x\n", []),
        (f"{A}  x\r\n{B}  y\r\n", [Tolerated.CRLF]),
        (f"\ufeff{A}  x\n", [Tolerated.BOM]),
        (f"{A} *x\n", [Tolerated.BINARY_MARKER]),
        (f"{A}  x\n\n\n", [Tolerated.BLANK_LINES]),
        (f"{A}  x\n \t\n", [Tolerated.BLANK_LINES]),
        (f"{A}  x", [Tolerated.NO_FINAL_NEWLINE]),
        (f"{A} x\n", [Tolerated.SINGLE_SPACE]),
        (f"{A.upper()}  x\n", [Tolerated.UPPER_CASE]),
        (f"{A}  ./x\n", [Tolerated.DOT_SLASH]),
        (f"# comment\n{A}  x\n", [Tolerated.COMMENTS]),
        (f"\ufeff{A} x\r\n\r\n", [Tolerated.BOM, Tolerated.CRLF, Tolerated.BLANK_LINES, Tolerated.SINGLE_SPACE]),
    ],
)
def test_harmless_differences_are_read_and_reported(data: str, tolerated: list[Tolerated]) -> None:
    found = parse_checksums(data.encode())
    assert found.digests["x"] == A
    assert list(found.tolerated) == tolerated


@pytest.mark.parametrize(
    ("data", "fault"),
    [
        ("", "lists no file"),
        ("\n\n", "lists no file"),
        ("# only a comment\n", "lists no file"),
        ("  x\n", "has no digest"),
        ("x\n", "has no digest"),
        (f"{A}\n", "no name"),
        (f"{A}  \n", "no name"),
        (f"{'a' * 63}  x\n", "63 hexadecimal digits"),
        (f"{'a' * 65}  x\n", "65 hexadecimal digits"),
        (f"{'a' * 32}  x\n", "MD5"),
        (f"{'a' * 40}  x\n", "SHA-1"),
        (f"{'a' * 128}  x\n", "SHA-512"),
        (f"{'g' * 64}  x\n", "has no digest"),
        (f"SHA512 (x) = {'a' * 128}\n", r"BSD \(SHA512\)"),
        (f"SHA256 (x) = {A}\n", r"BSD \(SHA256\)"),
        (f"{A}\tx\n", "no name"),
        (f"{A}  x\n{B}  x\n", "listed twice"),
        (f"{A}  x\n{A}  ./x\n", "listed twice"),
        (f"{A}  x\n{B}  X\n", "cannot both exist"),
        (f"{A}  stra\u00dfe\n{B}  STRASSE\n", "cannot both exist"),
        (f"{A}  \u00e9\n{B}  e\u0301\n", "cannot both exist"),
        (f"{A}  x/y\n{B}  x\n", "cannot both exist"),
        (f"{A}  ../x\n", "'..'"),
        (f"{A}  a/../x\n", "'..'"),
        (f"{A}  a//x\n", "empty"),
        (f"{A}  a/./x\n", "'.'"),
        (f"{A}  x/\n", "empty"),
        (f"{A}  /etc/passwd\n", "absolute"),
        (f"{A}  -\n", "begins with '-'"),
        (f"{A}  x\0y\n", "NUL"),
        (f"{A}  {'x' * 256}\n", "longer"),
        (f"{A}  {'x/' * 600}x\n", "longer"),
        (f"\\{A}  a\\qb\n", "escapes nothing"),
        (f"\\{A}  a\\\n", "escapes nothing"),
        (f"\\{A}  ..\\n\\\\../x\n", ""),
    ],
)
def test_bad_lines_are_refused(data: str, fault: str) -> None:
    if not fault:
        assert parse_checksums(data.encode()).digests == {"..\n\\../x": A}
        return
    with pytest.raises(PackageError, match=fault) as caught:
        parse_checksums(data.encode())
    assert (caught.value.slug, caught.value.exit_code) == ("sums-invalid", 4)


def test_one_bad_line_among_good_ones_is_named() -> None:
    with pytest.raises(PackageError, match="line 2"):
        parse_checksums(f"{A}  x\n{B[1:]}  y\n{A}  z\n".encode())


def test_text_that_is_not_utf8_is_refused() -> None:
    with pytest.raises(PackageError, match="UTF-8"):
        parse_checksums(A.encode() + b"  \xff\n")
    with pytest.raises(PackageError):
        parse_checksums(f"{A}  x\n".encode("utf-16"))


def test_too_many_files_and_too_many_bytes_are_refused(tmp_path: Path) -> None:
    lines = "".join(f"{A}  {number}\n" for number in range(MAX_FILES + 1))
    with pytest.raises(PackageError, match=f"more than {MAX_FILES}"):
        parse_checksums(lines.encode())
    huge = tmp_path / "SHA256SUMS"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(PackageError) as caught:
        read_checksums(huge)
    assert caught.value.slug == "metadata-too-large"


def test_escape_in_a_name_cannot_move_the_cursor() -> None:
    with pytest.raises(PackageError) as caught:
        parse_checksums(f"{A}  /\x1b[2J\n".encode())
    assert "\x1b" not in caught.value.message


@pytest.mark.parametrize("digests", [{"x": ""}, {"x": A.upper()}, {"x": A[1:]}, {"../x": A}, {"": A}, {"\ud800": A}])
def test_writer_refuses_what_the_reader_would(digests: dict[str, str]) -> None:
    with pytest.raises(PackageError):
        format_checksums(digests)


@given(st.one_of(st.binary(max_size=300), st.text(f" *\\\n\r\ufeff./x{A[:1]}0", max_size=200).map(str.encode)))
@settings(max_examples=300, deadline=None)
def test_any_bytes_give_a_list_or_our_error(data: bytes) -> None:
    try:
        found = parse_checksums(data)
    except PackageError:
        return
    assert all(path_fault(name) is None and len(digest) == 64 for name, digest in found.digests.items())


def test_pipe_and_folder_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises(PackageError) as caught:
            read_checksums(tmp_path / name)
        assert caught.value.slug == "metadata-unreadable"
    assert read_checksums(tmp_path / "none") is None
