"""A payload that differs between two runs, cannot be read back, or gives out bytes that are not what was packed."""

from __future__ import annotations

import io
import json
import os
import shutil
import struct
import subprocess
import zipfile
from pathlib import Path

import pytest

from bundle.errors import BundleError
from bundle.payload import Packed, pack
from launcher.errors import InternalError, PackageError, UsageError
from launcher.messages import Catalogue, Language
from launcher.payload import carried as program_payload
from launcher.payload.commands import (
    DIRECTORY_PART,
    ELF_PART,
    document,
    require_payload,
    run_list,
    run_unpack,
    run_verify_self,
    verify,
)
from launcher.payload.file import ALIGNMENT, INDEX, Payload, is_safe_name
from tests.bundle.support import MEMBERS, tiny_elf
from tests.support.availability import unavailable

ENGLISH = Catalogue(Language.ENGLISH)


@pytest.fixture(scope="module")
def elf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_elf(tmp_path_factory.mktemp("elf"))


@pytest.fixture(scope="module")
def packed(elf: Path, tmp_path_factory: pytest.TempPathFactory) -> Packed:
    return pack(elf, tmp_path_factory.mktemp("packed") / "program", MEMBERS)


def content(name: str) -> bytes:
    source = MEMBERS[name]
    assert isinstance(source, bytes)
    return source


def test_same_input_gives_the_same_bytes(elf: Path, packed: Packed, tmp_path: Path) -> None:
    files = {}
    for name in reversed(MEMBERS):
        files[name] = tmp_path / name.replace("/", "-")
        files[name].write_bytes(content(name))
        os.utime(files[name], (1_000_000_000, 1_000_000_000))
        files[name].chmod(0o600)
    again = pack(elf, tmp_path / "sub" / "again", files)
    assert again.path.read_bytes() == packed.path.read_bytes()
    assert again.sha256 == packed.sha256
    assert again.path.stat().st_mode & 0o777 == 0o755
    assert [path.name for path in again.path.parent.iterdir()] == ["again"]


def test_members_are_read_back(packed: Packed) -> None:
    with Payload(str(packed.path)) as payload:
        assert set(payload.members) == set(MEMBERS)
        for name, member in payload.members.items():
            assert payload.read(name) == content(name)
            assert (member.size >= ALIGNMENT) == (member.offset % ALIGNMENT == 0)
        assert payload.elf.size == packed.elf_bytes
        with pytest.raises(InternalError):
            payload.read("missing")


def test_others_read_the_archive(packed: Packed, tmp_path: Path) -> None:
    with zipfile.ZipFile(packed.path) as archive:
        assert archive.testzip() is None
        assert archive.namelist() == [INDEX, *sorted(MEMBERS)]
        assert json.loads(archive.read(INDEX))["elf"]["size"] == packed.elf_bytes
    unzip = shutil.which("unzip")
    if unzip is None:
        unavailable("unzip is not installed")
    listed = subprocess.run([unzip, "-l", packed.path], capture_output=True, text=True, check=True)
    assert listed.stderr == ""
    assert all(name in listed.stdout for name in MEMBERS)
    subprocess.run([unzip, "-q", packed.path, "-d", tmp_path], check=True)
    for name in MEMBERS:
        assert (tmp_path / name).read_bytes() == content(name)


def test_large_members_are_aligned_wherever_the_program_ends(elf: Path, tmp_path: Path) -> None:
    # One to three missing bytes leave no room for an extra field.
    program = elf.read_bytes()
    for wanted in (0, 1, 2, 3, 4, 5, ALIGNMENT - 1):
        # Two passes: the first tells where the member's header would start.
        length = 0
        for _ in range(2):
            (tmp_path / "elf").write_bytes(program + bytes(length))
            result = pack(tmp_path / "elf", tmp_path / "program", {"large": b"\x01" * ALIGNMENT})
            index = result.members[0]
            data_start = index.offset + index.size + 30 + len("large")
            length = (length - wanted - data_start) % ALIGNMENT if length == 0 else length
        assert -data_start % ALIGNMENT == wanted
        with Payload(str(result.path)) as payload, zipfile.ZipFile(result.path) as archive:
            assert payload.members["large"].offset % ALIGNMENT == 0
            assert archive.testzip() is None
            assert all(part.sound for part in verify(payload))


def test_open_payload_outlives_its_file(packed: Packed, tmp_path: Path) -> None:
    copy = tmp_path / "program"
    shutil.copy(packed.path, copy)
    with Payload(str(copy)) as payload:
        copy.unlink()
        copy.write_bytes(b"another version")
        assert payload.read("models/demo.l3r") == content("models/demo.l3r")
        with Payload(payload.open_path) as again:
            assert again.read("empty") == b""
            assert again.members == payload.members


@pytest.mark.parametrize(
    "name",
    [
        "", "/etc/passwd", "../up", "a/../b", "a//b", "a/", "./a", "a\\b", "c:x", "a b", "a\nb", "\x1b[2J", "ä",
        "x" * 201, "a\0b", "*",
    ],
)  # fmt: skip
def test_unsafe_names_are_refused_by_writer_and_reader(
    elf: Path, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not is_safe_name(name)
    with pytest.raises(BundleError, match="cannot be the name"):
        pack(elf, tmp_path / "program", {name: b"x"})
    assert not (tmp_path / "program").exists()
    if not name or not name.isascii() or "\0" in name:
        return
    monkeypatch.setattr("bundle.payload.is_safe_name", lambda _name: True)
    pack(elf, tmp_path / "program", {name: b"x"})
    with pytest.raises(PackageError, match="is no name for a member"):
        Payload(str(tmp_path / "program"))


def test_writer_refuses_what_is_no_linked_program(packed: Packed, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"#!/bin/sh\n")
    with pytest.raises(BundleError, match="no ELF"):
        pack(tmp_path / "text", tmp_path / "out", {})
    with pytest.raises(BundleError, match="packed already"):
        pack(packed.path, tmp_path / "out", {})
    with pytest.raises(BundleError, match=r"payload\.json"):
        pack(tiny_elf(tmp_path), tmp_path / "out", {INDEX: b"{}"})


def damaged_copy(packed: Packed, tmp_path: Path, place: int, data: bytes) -> Path:
    copy = tmp_path / "damaged"
    shutil.copy(packed.path, copy)
    with copy.open("r+b") as file:
        file.seek(place)
        file.write(data)
    return copy


def test_verifying_names_what_is_damaged(packed: Packed, tmp_path: Path) -> None:
    with Payload(str(packed.path)) as payload:
        members = payload.members
        gap = members["lib/library.so"].offset - 1
    for place, name in (
        (100, ELF_PART),
        (members["lib/library.so"].offset + 5, "lib/library.so"),
        (members["notices/zlib/LICENSE"].offset, "notices/zlib/LICENSE"),
        (gap, DIRECTORY_PART),
    ):
        with Payload(str(damaged_copy(packed, tmp_path, place, b"\xee"))) as payload:
            assert [part.name for part in verify(payload) if not part.sound] == [name]
            with pytest.raises(PackageError, match=f"damaged: {name}$") as caught:
                run_verify_self(ENGLISH, io.StringIO(), payload)
            assert (caught.value.slug, caught.value.exit_code) == ("self-damaged", 4)


def test_verifying_covers_every_byte(packed: Packed) -> None:
    out = io.StringIO()
    read = 0

    def advance(count: int) -> None:
        nonlocal read
        read += count

    with Payload(str(packed.path)) as payload:
        assert sum(part.size for part in verify(payload, advance)) == packed.size
        assert read >= packed.size
        assert run_verify_self(ENGLISH, out, payload) == 0
    assert str(packed.size) in out.getvalue().splitlines()[-1]


@pytest.mark.parametrize(
    ("cut", "expected"), [(1, "does not end with a seal"), (400, "does not end with a seal"), (528_000, "seal")]
)
def test_cut_files_have_no_payload(packed: Packed, tmp_path: Path, cut: int, expected: str) -> None:
    (tmp_path / "cut").write_bytes(packed.path.read_bytes()[:-cut])
    with pytest.raises(PackageError, match=expected):
        Payload(str(tmp_path / "cut"))
    with pytest.raises(PackageError, match="cannot open"):
        Payload(str(tmp_path / "missing"))


def test_contradictions_are_refused(packed: Packed, tmp_path: Path) -> None:
    data = packed.path.read_bytes()
    with zipfile.ZipFile(packed.path) as archive:
        directory = archive.start_dir
        index = archive.getinfo(INDEX)
    start = index.header_offset + 30 + len(INDEX)
    text = data[start : start + index.file_size]
    patches = [
        (directory + 10, struct.pack("<H", 8), "is compressed"),
        (directory, b"XX", "cannot be read"),
        (directory + 42, struct.pack("<I", packed.size - 40), "leaves the payload|ends before"),
        (start, text.replace(b'"version": 1', b'"version": 2'), "expected mindnano-infer.payload 1"),
        (start, text.replace(b'"name": "empty"', b'"name": "emptx"'), "is (there but not listed|listed but not there)"),
        (start, text.replace(b'"size": 256000', b'"size": 256001'), "has 256000 bytes"),
        (start, text.replace(b'"members": [', b'"members":{ '), r"payload\.json"),
        (start, b"\xff\xfe", r"payload\.json"),
    ]
    for place, patch, expected in patches:
        with pytest.raises(PackageError, match=expected):
            Payload(str(damaged_copy(packed, tmp_path, place, patch)))


def test_listing_shows_every_member(packed: Packed) -> None:
    out = io.StringIO()
    with Payload(str(packed.path)) as payload:
        assert run_list(ENGLISH, out, payload) == 0
        lines = [line.split()[:3] for line in out.getvalue().splitlines()]
        assert lines[0][:2] == [str(payload.elf.size), payload.elf.sha256]
        assert lines[1:] == [[str(m.size), m.sha256, m.name] for m in payload.members.values()]
        assert json.loads(json.dumps(document(payload)))["elf"]["size"] == packed.elf_bytes


def test_unpacking_gives_the_members(packed: Packed, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "new"
    with Payload(str(packed.path)) as payload:
        assert run_unpack(folder, ENGLISH, io.StringIO(), payload) == 0
    for name in MEMBERS:
        assert (folder / name).read_bytes() == content(name)
    assert len([path for path in folder.rglob("*") if path.is_file()]) == len(MEMBERS)


def test_unpacking_overwrites_nothing(packed: Packed, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "empty").write_text("precious", encoding="utf-8")
    (tmp_path / "file").write_text("precious", encoding="utf-8")
    with Payload(str(packed.path)) as payload:
        for folder in (tmp_path / "taken", tmp_path / "file", tmp_path / "file" / "below"):
            with pytest.raises(UsageError, match=r"not empty|is no folder"):
                run_unpack(folder, ENGLISH, io.StringIO(), payload)
    assert [path.name for path in (tmp_path / "taken").iterdir()] == ["empty"]
    assert (tmp_path / "taken" / "empty").read_text(encoding="utf-8") == "precious"


def test_unpacking_leaves_no_damaged_file(packed: Packed, tmp_path: Path) -> None:
    with Payload(str(packed.path)) as payload:
        place = payload.members["models/demo.l3r"].offset
    damaged = str(damaged_copy(packed, tmp_path, place, b"\x00"))
    with Payload(damaged) as payload, pytest.raises(PackageError, match=r"demo\.l3r inside this program is damaged"):
        run_unpack(tmp_path / "out", ENGLISH, io.StringIO(), payload)
    assert not (tmp_path / "out" / "models" / "demo.l3r").exists()


def test_checkout_carries_nothing() -> None:
    assert program_payload.carried() is None
    assert program_payload.rknn_runtime({}) is None
    assert program_payload.rknn_runtime({"MINDNANO_RKNN_RUNTIME": "/opt/librknnrt.so"}) == "/opt/librknnrt.so"
    assert program_payload.rknn_runtime({"MINDNANO_RKNN_RUNTIME": "librknnrt.so"}) is None
    assert program_payload.demo_package() is None
    with pytest.raises(UsageError, match="runs from source"):
        require_payload()
