"""A runtime that cannot work and is called good, a system copy taken for ours, a file that breaks the reader."""

from __future__ import annotations

import hashlib
import platform
import random
import struct
from pathlib import Path

import pytest

from engine.errors import BuildError
from launcher.checks.report import Finding, Status
from launcher.checks.runtime import engine_view, rknn_view
from launcher.messages import Catalogue, Language
from launcher.npu.elf_symbols import NotALibrary, read_elf
from launcher.npu.rknn_library import Judgement, judge, numbers, read_library, system_copies, version_in
from launcher.payload.carried import RUNTIME_VARIABLE, rknn_runtime
from launcher.system import SystemView
from tests.fixtures.boards.builder import Board
from tests.support.availability import unavailable
from tests.support.rknn_stand_in import build_stand_in

PLACE = "/opt/librknnrt.so"
ENVIRON = {RUNTIME_VARIABLE: PLACE}
ENGLISH = Catalogue(Language.ENGLISH)


@pytest.fixture(scope="module")
def arm_library(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A library for aarch64 as zig's linker makes it."""
    try:
        return build_stand_in(tmp_path_factory.mktemp("arm"), target="aarch64").read_bytes()
    except BuildError as error:
        unavailable(str(error))


def carried(tmp_path: Path, data: bytes | None) -> tuple[Finding, bool]:
    """The line about the runtime of a board that has this file, and whether it may be loaded."""
    board = Board() if data is None else Board().file(PLACE, data)
    view = rknn_view(board.build(tmp_path), ENVIRON)
    return view.findings[0], view.library is not None


def with_version(data: bytes, version: bytes) -> bytes:
    assert len(version) == 5
    return data.replace(b"librknnrt version: 2.3.2", b"librknnrt version: " + version)


def test_good_library_is_named_with_version_digest_and_path(tmp_path: Path, arm_library: bytes) -> None:
    found, loadable = carried(tmp_path, arm_library)
    assert (found.slug, found.status, loadable) == ("runtime-rknn", Status.OK, True)
    assert found.facts["version"] == "2.3.2"
    assert found.facts["build"] == "0123456789@2025-01-01T00:00:00"
    assert found.facts["sha256"] == hashlib.sha256(arm_library).hexdigest()
    assert PLACE in found.text(ENGLISH)
    assert PLACE not in found.redacted().text(ENGLISH)


@pytest.mark.parametrize(
    ("version", "slug", "status"),
    [
        (b"2.3.0", "runtime-rknn", Status.OK),
        (b"2.2.0", "runtime-rknn-broken", Status.FAIL),
        (b"1.5.2", "runtime-rknn-old", Status.WARN),
        (b"1.4.0", "runtime-rknn-broken", Status.FAIL),
        (b"2.4.0", "runtime-rknn-unknown", Status.WARN),
        (b"x.y.z", "runtime-rknn-unknown", Status.WARN),
    ],
)
def test_versions_are_judged(tmp_path: Path, arm_library: bytes, version: bytes, slug: str, status: Status) -> None:
    found, loadable = carried(tmp_path, with_version(arm_library, version))
    assert (found.slug, found.status) == (slug, status)
    assert loadable  # the self test finds out


def test_library_for_another_machine_is_refused(tmp_path: Path, arm_library: bytes) -> None:
    board = Board().file(PLACE, arm_library)
    board.host.machine = "x86_64"
    view = rknn_view(board.build(tmp_path), ENVIRON)
    assert (view.findings[0].slug, view.library) == ("runtime-rknn-foreign", None)


def test_missing_function_is_named(tmp_path: Path, arm_library: bytes) -> None:
    # As long as the original, so that the string table stays as it is.
    data = arm_library.replace(b"\0rknn_matmul_run\0", b"\0rknn_matmul_xxx\0")
    found, loadable = carried(tmp_path, data)
    assert (found.slug, loadable) == ("runtime-rknn-symbols", False)
    assert found.facts["missing"] == "rknn_matmul_run"


@pytest.mark.parametrize("data", [None, b"", b"text, no library", b"\x7fELF" + b"\0" * 100])
def test_file_that_is_no_library_is_refused(tmp_path: Path, data: bytes | None) -> None:
    found, loadable = carried(tmp_path, data)
    assert (found.status, loadable) == (Status.FAIL, False)
    assert not found.blocking  # the CPU computes


def test_source_checkout_carries_none(tmp_path: Path) -> None:
    view = rknn_view(Board().build(tmp_path), {})
    assert [(line.slug, line.status) for line in view.findings] == [("runtime-rknn-none", Status.SKIP)]


def test_relative_path_is_not_used(tmp_path: Path) -> None:
    environ = {RUNTIME_VARIABLE: "librknnrt.so"}
    assert rknn_runtime(environ) is None
    assert rknn_view(Board().build(tmp_path), environ).findings[0].slug == "runtime-rknn-relative"


def test_stale_system_copies_are_named_and_not_used(tmp_path: Path, arm_library: bytes) -> None:
    board = Board().file(PLACE, arm_library).file("/usr/lib/librknnrt.so", b"..librknnrt version: 1.4.0 (a@b)..")
    board.file("/usr/lib64/librknnrt.so", b"no version").file(
        "/opt/rk/librknnrt.so", with_version(arm_library, b"2.0.0")
    )
    board.link("/lib", "usr/lib").link("/usr/local/lib/librknnrt.so", "/usr/lib/librknnrt.so")
    environ = {**ENVIRON, "LD_LIBRARY_PATH": "relative:/opt/rk:"}
    view = rknn_view(board.build(tmp_path), environ)
    assert view.library is not None
    assert view.library.path == PLACE
    copies = [(line.facts["path"], line.facts["version"]) for line in view.findings[1:]]
    assert copies == [
        ("/opt/rk/librknnrt.so", "2.0.0"),
        ("/usr/lib/librknnrt.so", "1.4.0"),
        ("/usr/lib64/librknnrt.so", "?"),
    ]
    assert all("not used" in line.text(ENGLISH) and line.status is Status.OK for line in view.findings[1:])


def test_good_system_copy_is_borrowed_where_none_is_carried(tmp_path: Path, arm_library: bytes) -> None:
    board = Board().file("/usr/lib/librknnrt.so", b"..librknnrt version: 2.3.2 (a@b)..")
    board.file("/usr/lib64/librknnrt.so", arm_library)
    view = rknn_view(board.build(tmp_path), {})
    assert view.library is not None
    assert view.library.path == "/usr/lib64/librknnrt.so"
    assert [line.slug for line in view.findings] == ["runtime-rknn-borrowed", "runtime-rknn-system"]
    assert "/usr/lib64/librknnrt.so" in view.findings[0].text(ENGLISH)


@pytest.mark.parametrize("version", [b"1.4.0", b"2.2.0", b"1.5.2", b"2.4.0"])
def test_system_copy_that_is_not_known_to_be_good_is_not_loaded(
    tmp_path: Path, arm_library: bytes, version: bytes
) -> None:
    data = with_version(arm_library, version)
    view = rknn_view(Board().file("/usr/lib/librknnrt.so", data).build(tmp_path), {})
    assert view.library is None
    assert [line.slug for line in view.findings] == ["runtime-rknn-none", "runtime-rknn-system"]


def test_loop_of_links_is_passed_over(tmp_path: Path) -> None:
    board = (
        Board().link("/usr/lib/librknnrt.so", "/lib/librknnrt.so").link("/lib/librknnrt.so", "/usr/lib/librknnrt.so")
    )
    assert list(system_copies(board.build(tmp_path), {})) == []


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"\0librknnrt version: 2.3.2 (429f97ae6b@2025-04-09T09:09:27)\0", ("2.3.2", "429f97ae6b@2025-04-09T09:09:27")),
        (b"librknnrt version: 1.5.2b4", ("1.5.2", "")),
        (b"requires driver version >= 0.7.0, librknnrt version: %s", ("", "")),
        (b"librknnrt version: 99999.1.1", ("", "")),
        (b"librknnrt version: 1.2", ("", "")),
    ],
)
def test_version_text(data: bytes, expected: tuple[str, str]) -> None:
    assert version_in(data) == expected


def test_order_of_versions() -> None:
    assert numbers("2.10.0") > numbers("2.9.9")
    assert judge("") is Judgement.UNKNOWN


def test_every_cut_and_many_changes_are_refused_or_read(arm_library: bytes) -> None:
    whole = read_elf(arm_library).symbols
    assert "rknn_matmul_create" in whole
    assert "open" not in whole  # used, not defined
    for length in [*range(0, 2000, 7), *range(2000, len(arm_library), 997)]:
        try:
            read_elf(arm_library[:length])
        except NotALibrary:
            continue
    chosen = random.Random(7)
    for _ in range(300):
        data = bytearray(arm_library)
        for _ in range(8):
            # Headers and section table, where a change matters.
            place = chosen.choice([chosen.randrange(64), len(data) - 1 - chosen.randrange(2000)])
            data[place] = chosen.randrange(256)
        try:
            read_elf(bytes(data))
        except NotALibrary:
            continue


@pytest.mark.parametrize("offset", [1 << 40, (1 << 64) - 64])
def test_section_table_outside_the_file(arm_library: bytes, offset: int) -> None:
    data = bytearray(arm_library)
    struct.pack_into("<Q", data, 40, offset)
    with pytest.raises(NotALibrary, match="cut short"):
        read_elf(bytes(data))


@pytest.mark.parametrize("field", [24, 32])
def test_section_that_leaves_the_file(arm_library: bytes, field: int) -> None:
    """The place (24) or the size (32) in the entry of the dynamic symbols."""
    data = bytearray(arm_library)
    (table,) = struct.unpack_from("<Q", data, 40)
    entries = range(table, len(data) - 63, 64)
    symbols = next(entry for entry in entries if struct.unpack_from("<I", data, entry + 4)[0] == 11)
    struct.pack_into("<Q", data, symbols + field, len(data) - 24)
    with pytest.raises(NotALibrary, match="cut short"):
        read_elf(bytes(data))


def test_this_machines_libraries_are_read() -> None:
    place = Path("/usr/lib") / f"{platform.machine()}-linux-gnu" / "libm.so.6"
    if not place.is_file():
        unavailable(f"no {place}")
    library = read_library(SystemView(), str(place))
    assert library is not None
    assert (library.machine, library.trouble) == (platform.machine(), "")
    assert {"cos", "sqrt"} <= read_elf(place.read_bytes()).symbols


def test_engine_that_is_not_there_is_exit_9(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINDNANO_ENGINE", str(tmp_path / "none"))
    view = engine_view()
    assert view.library is None
    assert (view.finding.status, view.finding.exit_code, view.finding.blocking) == (Status.FAIL, 9, True)
    assert "none" in view.finding.text(ENGLISH)


def test_engine_that_is_no_library_is_exit_9(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libling3.so").write_bytes(b"\x7fELF and then nothing")
    monkeypatch.setenv("MINDNANO_ENGINE", str(tmp_path / "libling3.so"))
    assert engine_view().finding.exit_code == 9
