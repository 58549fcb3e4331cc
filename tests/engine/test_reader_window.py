"""A package inside another file: read from the wrong place, or beyond the window that it was given.

The same sanitized program as for whole files; what lies before and after the window is never zero and never sound.
"""

from __future__ import annotations

from array import array
from pathlib import Path

import pytest

from launcher.engine import Engine, Package, Session
from launcher.engine_library import Library
from launcher.engine_types import EngineOptions, Logits, SessionOptions
from tests.support.package_bytes import HEADER, HEADER_FIELDS, Image, Workbench
from tests.support.programs import Answer, PackageDriver, refused

ALIGNMENT = 65536
BEFORE = 3 * ALIGNMENT
AFTER = b"\xa5" * 100_001


class Window:
    """A file with a package inside, shown to the driver at any window."""

    def __init__(self, path: Path, image: Image, driver: PackageDriver) -> None:
        self._path = path
        self._driver = driver
        self.length = len(image.data)
        self.size = BEFORE + self.length + len(AFTER)
        self.put(image.data)

    def put(self, package: bytes) -> None:
        self._path.write_bytes(b"\xa5" * BEFORE + package + AFTER)

    def ask(self, depth: str = "open", *, offset: int = BEFORE, length: int | None = None) -> Answer:
        wanted = self.length if length is None else length
        return self._driver.ask(depth, Path(f"#{offset}+{wanted} {self._path}"))


@pytest.fixture
def image(bench: Workbench) -> Image:
    return bench.image


@pytest.fixture
def window(image: Image, driver: PackageDriver, tmp_path: Path) -> Window:
    return Window(tmp_path / "host", image, driver)


def test_package_inside_a_file_passes_everything(window: Window) -> None:
    # Verifying, rows, sessions and the MTP layer, whose mapping starts at the window too.
    assert window.ask("walk") == Answer(status="ok", stage="sample", message="")


def test_damage_inside_the_window_is_found(window: Window, image: Image) -> None:
    for extent in (image.section(3), image.tensors[0], image.tensors[-1]):
        damaged = bytearray(image.data)
        damaged[extent.end - 1] ^= 1
        window.put(bytes(damaged))
        refused(window.ask("hash"), r"is damaged: its SHA-256", extent)


def test_windows_of_another_length_are_refused(window: Window, image: Image) -> None:
    for length, expected in (
        (0, r"^the window has 0 bytes; a package has at least 192"),
        (HEADER - 1, r"^the window has 191 bytes"),
        (HEADER, r"its header says \d+ \(truncated"),
        (image.trunk_end, r"its header says \d+ \(truncated"),
        (window.length - 1, r"its header says \d+ \(truncated"),
        (window.length + 1, r"something was appended"),
        (window.length + len(AFTER), r"something was appended"),
    ):
        refused(window.ask(length=length), expected, length)


def test_windows_that_leave_the_file_are_refused(window: Window) -> None:
    most = (1 << 64) - 1
    aligned = most - ALIGNMENT + 1
    for offset, length in (
        (BEFORE, window.length + len(AFTER) + 1),
        (BEFORE, most),
        (aligned, most),
        (aligned, 1),
        (1 << 63, window.length),
        ((window.size // ALIGNMENT + 1) * ALIGNMENT, HEADER),
    ):
        refused(window.ask(offset=offset, length=length), r"is expected in it$", (offset, length))


def test_unaligned_windows_are_the_callers_error(window: Window) -> None:
    for offset in (1, 4096, BEFORE - 1, BEFORE + 512):
        answer = window.ask(offset=offset)
        assert answer.status == "argument", answer
        assert "no multiple of 65536" in answer.message


def test_window_at_the_wrong_place_is_no_package(window: Window) -> None:
    refused(window.ask(offset=0), r"^not an \.l3r package", "the file's start")
    refused(window.ask(offset=BEFORE - ALIGNMENT), r"^not an \.l3r package", "before the package")


def test_header_cannot_widen_the_window(window: Window, image: Image) -> None:
    # The bytes that such a header asks for exist: they belong to the file around the package.
    for extra in (64, ALIGNMENT):
        for names in (("file_bytes",), ("file_bytes", "trunk_end"), ("trunk_end",)):
            patches = [HEADER_FIELDS[name].patch(0, window.length + extra) for name in names]
            package = bytearray(image.data)
            for offset, data in image.sealed(patches):
                package[offset : offset + len(data)] = data
            window.put(bytes(package))
            refused(window.ask("walk"), r"its header says|^the trunk ends", (names, extra))


def drafts(package: Package) -> bytes:
    """Logits of four tokens and of the MTP layer after them."""
    ids = [5, 300, 17, 44]
    width, vocabulary = package.config.hidden_size, package.config.vocab_size
    hidden, logits = array("f", bytes(16 * width)), array("f", bytes(16 * vocabulary))
    drafted = array("f", bytes(12 * vocabulary))
    with (
        Engine(package, EngineOptions(threads=1, mtp=True)) as engine,
        Session(engine, SessionOptions(context=8)) as one,
    ):
        one.eval(ids, mode=Logits.ALL, logits=logits, hidden=hidden)
        one.mtp(hidden[: 3 * width], ids[1:], 0, logits=drafted)
    return logits.tobytes() + drafted.tobytes()


def test_package_inside_a_file_computes_what_it_does_alone(library: Library, image: Image, tmp_path: Path) -> None:
    alone, host = tmp_path / "alone.l3r", tmp_path / "host"
    alone.write_bytes(image.data)
    host.write_bytes(b"\xa5" * BEFORE + image.data + AFTER)
    with (
        Package(alone, library=library) as whole,
        Package(host, window=(BEFORE, len(image.data)), library=library) as part,
    ):
        part.verify()
        assert drafts(part) == drafts(whole)
