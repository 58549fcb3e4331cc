"""A component that grows beyond its budget without anybody noticing, or bytes that belong to no component."""

from __future__ import annotations

from pathlib import Path

import pytest

from bundle.errors import BundleError
from bundle.payload import pack
from bundle.size import check_sizes, component_sizes, table
from tests.bundle.support import tiny_elf


def test_components_add_up_to_the_file(tmp_path: Path) -> None:
    members = {
        "lib/librknnrt.so": bytes(70_000),
        "lib/llguidance.whl": bytes(80_000),
        "models/demo.l3r": bytes(90_000),
        "notices/a/LICENSE": b"a" * 100,
        "notices/b/LICENSE": b"b" * 200,
        "sbom.cdx.json": b"{}",
        "certificates.pem": b"c" * 300,
    }
    packed = pack(tiny_elf(tmp_path), tmp_path / "program", members)
    sizes = component_sizes(packed)
    assert sum(sizes.values()) == packed.size == packed.path.stat().st_size
    assert {name: sizes[name] for name in ("rknn", "llguidance", "model", "notices", "sbom")} == {
        "rknn": 70_000,
        "llguidance": 80_000,
        "model": 90_000,
        "notices": 300,
        "sbom": 2,
    }
    assert sizes["other"] >= 300
    rows = check_sizes(sizes)
    assert all(row.passed for row in rows)
    assert rows[-1].size == packed.size - 90_000


def test_sizes_are_held_against_the_budget() -> None:
    rows = check_sizes({"program": 27_000_000, "rknn": 8_000_001, "notices": 100, "model": 90_000_000})
    assert [(row.component, row.passed) for row in rows] == [
        ("model", True),
        ("program", True),
        ("rknn", False),
        ("notices", True),
        ("total", True),
    ]
    assert "rknn           8.00        8.0  too large" in table(rows).splitlines()
    assert check_sizes({"program": 48_000_000})[-1].passed is False


@pytest.mark.parametrize("name", ["python", "total"])
def test_components_without_a_budget_are_refused(name: str) -> None:
    with pytest.raises(BundleError, match=f"no budget is set for {name}"):
        check_sizes({name: 1})
