"""A bill of materials that tools cannot read, that leaves parts out, or that differs between two equal builds."""

from __future__ import annotations

import copy
import dataclasses
import json
import re
import uuid
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from packageurl import PackageURL

from bundle.sbom import NAME, ROOT, Program, bill_of_materials, to_bytes
from launcher.payload.carried import SBOM
from notices.collect import Ownership, assign_owners
from notices.components import license_fault, load_components
from notices.errors import NoticeError
from tests.bundle.inventories import ROCKCHIP_TEXT, SUPPLIED, digest, inventory, with_known_terms

EPOCH = 1767225600
PROGRAM = Program(size=25_000_000, sha256=digest("program"), sources=digest("sources"))


@pytest.fixture(scope="module")
def ownership() -> Ownership:
    return assign_owners(inventory(), with_known_terms(load_components()))


@pytest.fixture(scope="module")
def document(ownership: Ownership) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(to_bytes(bill_of_materials(ownership, PROGRAM, epoch=EPOCH, supplied=SUPPLIED)))
    return made


def entries(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """All components by reference, nested ones and the program itself included."""
    found = {}
    waiting = [document["metadata"]["component"], *document["components"]]
    while waiting:
        entry = waiting.pop()
        assert entry["bom-ref"] not in found
        found[entry["bom-ref"]] = entry
        waiting += entry.get("components", [])
    return found


def test_document_fits_the_schema(document: dict[str, Any]) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(json.dumps(document)) is None
    broken = copy.deepcopy(document)
    broken["components"][0]["type"] = "something"
    assert validator.validate_str(json.dumps(broken)) is not None


def test_every_part_of_the_build_is_listed_where_it_is(ownership: Ownership, document: dict[str, Any]) -> None:
    found = entries(document)
    crates = [crate for owned in ownership.owned for crate in owned.component.crates]
    assert set(found) == {
        *(owned.component.key for owned in ownership.owned),
        *(f"pkg:cargo/{crate.name}@{crate.version}" for crate in crates),
    }
    inside = {entry["name"]: entry["version"] for entry in found["llguidance"]["components"]}
    assert (inside["derivre"], inside["tokenizers"]) == ("0.3.8", "0.21.2")
    for owned in ownership.owned:
        occurrences = found[owned.component.key].get("evidence", {}).get("occurrences", [])
        assert len(occurrences) == len(owned.parts)
        assert all(entry["location"].endswith(part.name) for entry, part in zip(occurrences, owned.parts, strict=True))
    assert {"location": "models/demo.l3r"} in found["demo-model"]["evidence"]["occurrences"]
    assert found["demo-model"]["type"] == "machine-learning-model"
    assert found["zlib"]["hashes"] == [{"alg": "SHA-256", "content": digest("libz.a")}]
    texts = json.dumps(document)
    parts = [part for owned in ownership.owned for part in owned.parts if part.sha256]
    assert [part.name for part in parts if part.sha256 not in texts] == []


def test_licences_are_expressions_and_unknown_terms_are_printed(document: dict[str, Any]) -> None:
    for entry in entries(document).values():
        ((expression,),) = [[choice["expression"] for choice in entry["licenses"]]]
        assert license_fault(expression) == ""
        referred = set(re.findall(r"LicenseRef-[A-Za-z0-9.-]+", expression))
        printed = {choice["license"]["name"] for choice in entry.get("evidence", {}).get("licenses", [])}
        assert printed == referred
    rockchip = entries(document)["librknnrt"]["evidence"]["licenses"]
    assert rockchip[0]["license"]["text"]["content"].encode() == ROCKCHIP_TEXT


def test_package_urls_are_well_formed(document: dict[str, Any]) -> None:
    urls = {key: PackageURL.from_string(entry["purl"]) for key, entry in entries(document).items()}
    assert urls["jinja2"] == PackageURL("pypi", name="jinja2", version="3.1.6")
    assert urls["glibc"] == PackageURL("pypi", name="ziglang", version="0.17.1", subpath="lib/libc/glibc")
    assert urls["zlib"].version == "1.3.2"
    assert urls["expat"] == PackageURL("generic", name="python", version="3.13.5", subpath="Modules/expat")
    assert entries(document)["expat"]["version"] == "2.7.1"
    assert all(url.version for url in urls.values())


def test_sources_and_corrections_are_named(document: dict[str, Any]) -> None:
    found = entries(document)
    patches = found["cpython"]["pedigree"]["patches"]
    assert {"type": "security", "id": "CVE-2026-6100"} in [
        issue for patch in patches for issue in patch.get("resolves", [])
    ]
    (source,) = [entry for entry in found["cpython"]["externalReferences"] if entry["type"] == "source-distribution"]
    assert source["hashes"][0]["content"] == "93e583f243454e6e9e4588ca2c2662206ad961659863277afcdb96801647d640"
    assert "pedigree" not in found["zlib"]


def test_same_build_gives_the_same_bytes(ownership: Ownership, document: dict[str, Any]) -> None:
    turned = dataclasses.replace(inventory(), archives=tuple(reversed(inventory().archives)))
    again = bill_of_materials(
        assign_owners(turned, with_known_terms(load_components())), PROGRAM, epoch=EPOCH, supplied=SUPPLIED
    )
    assert json.loads(to_bytes(again)) == document
    assert document["metadata"]["timestamp"] == "2026-01-01T00:00:00Z"
    assert uuid.UUID(document["serialNumber"].removeprefix("urn:uuid:")).version == 5


def test_other_content_gives_another_serial_number(ownership: Ownership, document: dict[str, Any]) -> None:
    program = dataclasses.replace(PROGRAM, sha256=digest("another program"))
    others = [
        bill_of_materials(ownership, program, epoch=EPOCH, supplied=SUPPLIED),
        bill_of_materials(ownership, PROGRAM, epoch=EPOCH + 1, supplied=SUPPLIED),
    ]
    assert len({document["serialNumber"], *(other["serialNumber"] for other in others)}) == 3


def test_terms_of_the_rockchip_runtime_are_not_left_out(ownership: Ownership) -> None:
    with pytest.raises(NoticeError, match="librknnrt/LICENSE"):
        bill_of_materials(ownership, PROGRAM, epoch=EPOCH)


def test_program_finds_it_under_its_name() -> None:
    assert NAME == SBOM
    assert ROOT == "mindnano-infer"
