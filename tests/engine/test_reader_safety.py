"""Damaged packages are refused with a precise message; the engine never crashes and never reads outside a part.

Everything runs in a program with AddressSanitizer and UndefinedBehaviorSanitizer that poisons what lies between parts.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from launcher.engine_types import Dtype
from tests.support.availability import unavailable
from tests.support.package_bytes import (
    HEADER,
    HEADER_FIELDS,
    SEALED_SECTIONS,
    SECTION_FIELDS,
    TENSOR_FIELDS,
    Extent,
    Image,
    Patch,
    Workbench,
)
from tests.support.packages import ODD, uniform, write_package
from tests.support.programs import Answer, PackageDriver, has_address_sanitizer, refused


@pytest.fixture(scope="module")
def image(bench: Workbench) -> Image:
    return bench.image


def values(sound: int, width: int) -> list[int]:
    """What a damaged number may be; never its sound value."""
    most = (1 << 8 * width) - 1
    candidates = {
        0,
        1,
        most,
        most >> 1,
        (most >> 1) + 1,
        sound + 1,
        sound - 1,
        sound + 64,
        sound + 65536,
        sound - 65536,
    }
    candidates |= {sound * 2, most - 65535, 1 << (4 * width)}
    return sorted({value % (most + 1) for value in candidates} - {sound})


def test_addresses_are_checked() -> None:
    if not has_address_sanitizer():
        unavailable("gcc and g++ are not installed: this module checked for undefined behaviour only")


def test_sound_packages_pass_everything(bench: Workbench, driver: PackageDriver, tmp_path: Path) -> None:
    assert bench.ask([], "walk").status == "ok"
    for dtype in (Dtype.F32X8, Dtype.BF16X8):
        for mtp in (True, False):
            package = write_package(tmp_path / "odd.l3r", ODD, uniform(dtype), mtp=mtp)
            assert driver.ask("walk", package) == Answer(status="ok", stage="sample", message="")


def boundaries(image: Image) -> list[int]:
    """Every offset at which something starts or ends, and its neighbours."""
    places = {0, 160, HEADER, image.directory_end, image.data_offset, image.trunk_end, len(image.data)}
    places |= {field.offset for field in HEADER_FIELDS.values()}
    places |= {extent.entry for extent in (*image.sections, *image.tensors)}
    for extent in (*image.sections, *image.tensors):
        places |= {extent.offset, extent.end}
    return sorted({place + step for place in places for step in (-1, 0, 1) if 0 <= place + step < len(image.data)})


def test_truncated_files_are_called_truncated(bench: Workbench, image: Image) -> None:
    for length in boundaries(image):
        expected = rf"^the file has {length} bytes; " + (
            r"a package has at least 192" if length < HEADER else rf"its header says {len(image.data)} \(truncated"
        )
        refused(bench.ask([], length=length), expected, f"cut to {length}")


def test_truncated_files_whose_header_agrees_are_refused(bench: Workbench, image: Image) -> None:
    for length in boundaries(image):
        if length < HEADER:
            continue
        patches = image.sealed([HEADER_FIELDS["file_bytes"].patch(0, length)])
        expected = r"^data offset|^the trunk ends|leaves the file$|^the last tensor ends"
        refused(bench.ask(patches, length=length), expected, f"cut to {length} with a fitting header")


def test_appended_bytes_are_called_appended(bench: Workbench, image: Image) -> None:
    for extra in (1, 64, 65536):
        refused(bench.ask([], length=len(image.data) + extra), r"something was appended", extra)
        length = len(image.data) + extra
        patches = image.sealed([HEADER_FIELDS["file_bytes"].patch(0, length)])
        refused(bench.ask(patches, length=length), r"^the last tensor ends at", f"{extra} with a fitting header")


STALE_HEADER = {
    "magic": r"^not an \.l3r package",
    "version": r"^package version \d+; this engine reads version 1",
    "header_bytes": r"^header length is \d+; 192 is expected",
}
SEALED_HEADER = {
    **STALE_HEADER,
    "file_bytes": r"^the file has \d+ bytes; its header says \d+",
    "directory_offset": r"^the directory is \d+ bytes at \d+; ",
    "directory_bytes": r"^the directory is \d+ bytes at \d+; ",
    "section_count": r"^\d+ sections and \d+ tensors; at most|^the directory is",
    "tensor_count": r"^\d+ sections and \d+ tensors; at most|^the directory is",
    "data_offset": r"^data offset|^the trunk ends|is misplaced|^section \d",
    "trunk_end": r"^the trunk ends|agree with the trunk's end|and the trunk at",
    "reserved_first": r"^reserved header bytes",
    "reserved_last": r"^reserved header bytes",
}


def test_damaged_header_fields_are_named(bench: Workbench, image: Image) -> None:
    for name, field in HEADER_FIELDS.items():
        for value in values(image.number(0, field), field.width):
            patch = field.patch(0, value)
            refused(bench.ask([patch]), STALE_HEADER.get(name, r"^the header is damaged"), (name, value))
            refused(bench.ask(image.sealed([patch])), SEALED_HEADER[name], (name, value, "sealed"))
    for offset in range(64, 96):
        byte = bytes([image.data[offset] ^ 1])
        refused(bench.ask([(offset, byte)]), r"^the header is damaged", offset)
    wrong = bytes([image.data[160] ^ 1])
    refused(bench.ask([(160, wrong)]), r"^the header is damaged", "the header's own hash")


def test_damaged_directories_are_refused_by_their_hash(bench: Workbench, image: Image) -> None:
    for offset in range(HEADER, image.directory_end, 13):
        patch = offset, bytes([image.data[offset] ^ 0x40])
        refused(bench.ask([patch]), r"^the directory is damaged", offset)


SECTION_EXPECTED = {
    "kind": r"is of kind \d+, which this engine does not know|^section kind \d occurs twice|no section of kind",
    "zero": r"^section \d+: reserved bytes",
    "offset": r"^section \d+ .* is misplaced or overlaps|is damaged|^byte \d+ lies between|^tokenizer: ",
    "length": r"^section \d+ .* is misplaced or overlaps|^the config section has|^the feature list has|is damaged"
    r"|^tokenizer: |^the package needs '|^byte \d+ lies between",
    "sha256": r"damaged: its SHA-256",
    "tail": r"^section \d+: reserved bytes",
}


def test_damaged_section_entries_are_named(bench: Workbench, image: Image) -> None:
    for section in image.sections:
        for name, field in SECTION_FIELDS.items():
            for value in values(image.number(section.entry, field), field.width):
                patches = image.sealed([field.patch(section.entry, value)])
                if name == "sha256" and section.label in SEALED_SECTIONS:
                    continue  # sealing mends it
                refused(bench.ask(patches, "walk"), SECTION_EXPECTED[name], (section.label, name, value))


def test_sections_that_change_places_are_refused(bench: Workbench, image: Image) -> None:
    first, second = image.sections[:2]
    swapped = [
        (first.entry, image.data[second.entry : second.entry + 64]),
        (second.entry, image.data[first.entry : first.entry + 64]),
    ]
    refused(bench.ask(image.sealed(swapped)), r"^section 1 .* is misplaced", "swapped")
    inside = SECTION_FIELDS["offset"].patch(first.entry, 192)
    refused(bench.ask(image.sealed([inside])), r"^section 0 .* is misplaced", "in the directory")


MAKES = r"bytes; its type and shape make \d+$"
IMPOSSIBLE = r"of rank \d+ is not possible for "
ASKS = r"; the config asks for "
TENSOR_EXPECTED = {
    "dtype": rf"has type \d+, which this engine does not know|{MAKES}|{IMPOSSIBLE}|tiled matrix type|is F32X8$",
    "rank": rf"{IMPOSSIBLE}|{MAKES}|{ASKS}",
    "shape0": rf"{IMPOSSIBLE}|{MAKES}|{ASKS}",
    "shape1": rf"{IMPOSSIBLE}|{MAKES}|{ASKS}",
    "shape2": rf"{IMPOSSIBLE}|{MAKES}|{ASKS}",
    "shape3": IMPOSSIBLE,
    "offset": r"is misplaced, overlaps or leaves the file|agree with the trunk's end|^the last tensor ends"
    r"|is damaged|^byte \d+ lies between",
    "length": MAKES,
    "group": r"group \d+ does not agree with the trunk's end",
    "zero": r"reserved bytes are not zero",
    "tail_first": r"reserved bytes are not zero",
    "tail_last": r"reserved bytes are not zero",
}


def chosen_tensors(image: Image) -> list[Extent]:
    """First and last of both groups, and one with three dimensions."""
    trunk = [tensor for tensor in image.tensors if tensor.label == 0]
    mtp = [tensor for tensor in image.tensors if tensor.label == 1]
    stack = next(tensor for tensor in trunk if "experts.down" in image.name(tensor))
    return [trunk[0], trunk[1], stack, trunk[-2], trunk[-1], mtp[0], mtp[-1]]


def test_damaged_tensor_entries_are_named(bench: Workbench, image: Image) -> None:
    for tensor in chosen_tensors(image):
        for name, field in TENSOR_FIELDS.items():
            for value in values(image.number(tensor.entry, field), field.width):
                patches = image.sealed([field.patch(tensor.entry, value)])
                refused(bench.ask(patches, "walk"), TENSOR_EXPECTED[name], (image.name(tensor), name, value))


def test_damaged_tensor_names_are_refused(bench: Workbench, image: Image) -> None:
    for tensor in chosen_tensors(image):
        name = image.name(tensor).encode()
        for damaged, expected in (
            (bytes(80), r"^tensor \d+: the name is empty"),
            (b"x" * 80, r"^tensor \d+: the name is empty or not terminated"),
            (name.ljust(79, b"\0") + b"x", r"something follows the end of its name"),
            (name[:-1].ljust(80, b"\0"), r"is missing$"),
            (b"\xff\xfe%s%n\n".ljust(80, b"\0"), r"is missing$"),
        ):
            refused(bench.ask(image.sealed([(tensor.entry, damaged)])), expected, (name, damaged))


def test_extents_that_overlap_or_run_backwards_are_refused(bench: Workbench, image: Image) -> None:
    place = TENSOR_FIELDS["offset"]
    for one, other in zip(image.tensors, image.tensors[1:], strict=False):
        patch = place.patch(other.entry, one.offset)
        expected = r"is misplaced, overlaps" if one.label == other.label else r"misplaced|trunk's end"
        refused(bench.ask(image.sealed([patch])), expected, image.name(other))


def test_changed_contents_are_found_by_verifying(bench: Workbench, image: Image) -> None:
    for extent in (*image.sections, *image.tensors):
        if extent in image.tensors:
            expected = rf"^tensor {re.escape(image.name(extent))} is damaged: its SHA-256"
        elif extent.label in SEALED_SECTIONS:
            expected = r"^config or feature list is damaged"
        else:
            expected = r"^the (tokenizer|chat template|metadata) is damaged: its SHA-256 does not match the directory"
        for offset in (extent.offset, extent.end - 1):
            patch = offset, bytes([image.data[offset] ^ 0x10])
            refused(bench.ask([patch], "hash"), expected, offset)


def gaps(image: Image) -> list[tuple[int, int]]:
    """First and last byte of every stretch between parts."""
    end = image.directory_end
    found = []
    for extent in (*image.sections, *image.tensors):
        if extent.offset > end:
            found.append((end, extent.offset - 1))
        end = extent.end
    return found


def test_bytes_between_parts_are_found_by_verifying(bench: Workbench, image: Image) -> None:
    assert len(gaps(image)) > len(image.tensors)
    for gap in gaps(image):
        for offset in gap:
            refused(bench.ask([(offset, b"\x01")], "hash"), rf"^byte {offset} lies between two parts", offset)


def garbage(image: Image, name: str) -> Sequence[Patch]:
    fill = {
        "NaN": lambda length: b"\xff" * length,
        "infinity": lambda length: (b"\x00\x00\x80\x7f" * (length // 4 + 1))[:length],
        "random": lambda length: (os.urandom(4099) * (length // 4099 + 1))[:length],
        "zeros": bytes,
    }[name]
    return [(tensor.offset, fill(tensor.length)) for tensor in image.tensors]


@pytest.mark.parametrize("name", ["NaN", "infinity", "random", "zeros"])
def test_weights_of_any_bits_harm_nothing(name: str, bench: Workbench, image: Image) -> None:
    # Contents are not hashed when a package is opened, so anything may be there; what may not happen is a crash.
    answer = bench.ask(garbage(image, name), "eval")
    if name == "zeros":
        assert answer.status == "ok", answer
    else:
        assert (answer.status, answer.stage) in {("ok", "sample"), ("internal", "sample")}, answer
        assert answer.status == "ok" or "is not finite" in answer.message
    router = [
        (tensor.offset, b"\xff" * tensor.length)
        for tensor in image.tensors
        if image.name(tensor).endswith(("mlp.gate.weight", "expert_bias"))
    ]
    assert len(router) == 4
    assert bench.ask(router, "eval").stage == "sample"


def test_paths_that_are_no_packages_are_refused(driver: PackageDriver, tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("a text that is long enough to hold a header\n" * 10, encoding="utf-8")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path, expected in (
        (tmp_path / "missing", r"^cannot open .*missing: No such file"),
        (tmp_path, r"is not a regular file$"),
        (tmp_path / "pipe", r"is not a regular file$"),
        (Path("/dev/zero"), r"is not a regular file$"),
        (tmp_path / "text" / "below", r"^cannot open .*: Not a directory"),
        (tmp_path / "loop", r"^cannot open .*: Too many levels"),
        (tmp_path / "empty", r"^the file has 0 bytes; a package has at least 192"),
        (tmp_path / "text", r"^not an \.l3r package"),
    ):
        refused(driver.ask("open", path), expected, path)
