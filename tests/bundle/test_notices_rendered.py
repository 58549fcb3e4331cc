"""Notices that leave a text out, or that the program cannot print."""

from __future__ import annotations

import dataclasses
import io
import random
import re
from pathlib import Path

import pytest

from launcher.errors import PackageError, UsageError
from launcher.payload import notices as shown
from launcher.payload.file import is_safe_name
from notices.collect import Ownership, assign_owners
from notices.components import load_components, read_texts
from notices.errors import NoticeError
from notices.render import DOCUMENT, INDEX, SCHEMA, VERSION, render_notices
from tests.bundle.inventories import (
    ROCKCHIP_TEXT,
    SUPPLIED,
    inventory,
    with_known_terms,
)

ROOT = Path(__file__).resolve().parents[2]
COMPONENTS = load_components()


@pytest.fixture(scope="module")
def files(ownership: Ownership) -> dict[str, bytes]:
    return dict(render_notices(ownership, SUPPLIED))


def test_notices_hold_every_text_once(ownership: Ownership, files: dict[str, bytes]) -> None:
    document = files[DOCUMENT].decode()
    for one in ownership.owned:
        assert f"\n{one.component.name} {one.version}\n" in document
        for text, content in read_texts(one.component, SUPPLIED):
            assert content.replace("\r\n", "\n").strip("\n") in document, (one.component.key, text.file)
    distinct = {content.strip("\n") for one in ownership.owned for _, content in read_texts(one.component, SUPPLIED)}
    assert len(re.findall(r"^\[\d+\] of ", document, flags=re.MULTILINE)) == len(distinct)
    assert document.count((ROOT / "LICENSE").read_text(encoding="utf-8").strip("\n")) == 1


def test_notices_depend_on_the_build_alone(files: dict[str, bytes]) -> None:
    build, shuffle = inventory(), random.Random(3).sample
    shuffled = dataclasses.replace(
        build,
        archives=tuple(shuffle(build.archives, len(build.archives))),
        objects=tuple(shuffle(build.objects, len(build.objects))),
        payload=tuple(shuffle(build.payload, len(build.payload))),
    )
    assert render_notices(assign_owners(shuffled, with_known_terms(COMPONENTS)), SUPPLIED) == files
    everything = b"".join(files.values())
    assert str(ROOT).encode() not in everything
    assert str(Path.home()).encode() + b"/" not in everything


def test_names_of_notices_can_be_carried(files: dict[str, bytes]) -> None:
    assert all(is_safe_name(name) for name in files)
    assert len(files) == len(COMPONENTS) - 1 + 2


def test_reader_and_writer_agree_on_names() -> None:
    assert (shown.DOCUMENT, shown.INDEX, shown.SCHEMA, shown.VERSION) == (DOCUMENT, INDEX, SCHEMA, VERSION)


@pytest.mark.parametrize("supplied", [{}, {("librknnrt", "LICENSE"): b"other terms\n"}])
def test_terms_of_the_rockchip_runtime_are_neither_left_out_nor_replaced(
    supplied: dict[tuple[str, str], bytes],
) -> None:
    with pytest.raises(NoticeError, match="librknnrt/LICENSE") as caught:
        render_notices(assign_owners(inventory(), COMPONENTS), supplied)
    assert "airockchip/rknn-llm" in caught.value.hint


def test_line_ends_of_terms_that_are_handed_over_do_not_matter(ownership: Ownership, files: dict[str, bytes]) -> None:
    supplied = {("librknnrt", "LICENSE"): ROCKCHIP_TEXT.replace(b"\n", b" \r\n")}
    assert b"stand-in for librknnrt" in render_notices(ownership, supplied)["notices/librknnrt.txt"]


# What the program prints of it


class Carried:
    """A payload in memory."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.members = files

    def read(self, name: str) -> bytes:
        return self.members[name]


def test_program_prints_all_notices_or_those_of_one_component(files: dict[str, bytes]) -> None:
    out = io.StringIO()
    assert shown.run_notices(None, out, Carried(files)) == 0
    assert out.getvalue().encode() == files[DOCUMENT]
    for word in ("openssl", "OpenSSL"):
        out = io.StringIO()
        shown.run_notices(word, out, Carried(files))
        assert out.getvalue().encode() == files["notices/openssl.txt"]


def test_program_prints_the_bill_of_materials() -> None:
    out = io.StringIO()
    assert shown.run_sbom(out, Carried({"sbom.cdx.json": b"{}\n"})) == 0
    assert out.getvalue() == "{}\n"


def test_unknown_component_is_answered_with_the_known_ones(files: dict[str, bytes]) -> None:
    with pytest.raises(UsageError) as caught:
        shown.run_notices("gmp", io.StringIO(), Carried(files))
    assert "openssl" in caught.value.hint


def test_source_checkout_says_where_its_licences_are() -> None:
    for run in (lambda: shown.run_notices(None, io.StringIO(), None), lambda: shown.run_sbom(io.StringIO(), None)):
        with pytest.raises(UsageError) as caught:
            run()
        assert caught.value.slug == "notices-none"
        assert "LICENSES.md" in caught.value.hint


@pytest.mark.parametrize("index", [b"{}", b"[]", b'{"schema": "other", "version": 1, "components": []}', b"\xff"])
def test_damaged_notices_are_no_crash(index: bytes) -> None:
    for files in ({INDEX: index}, {}):
        with pytest.raises(PackageError):
            shown.run_notices("zlib", io.StringIO(), Carried(files))
