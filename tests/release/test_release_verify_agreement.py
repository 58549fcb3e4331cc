"""A release that is sealed anew after one of its files was changed, and passes although others say something else.

Sums, sizes and the digests in the provenance hold in every case here; only what the files say is left to find.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from launcher.integrity import strict_json
from launcher.integrity.manifest import read_manifest
from release.folder.fidelity import DEMO_REPORTS
from tests.support.demo import require_demo
from tests.support.release_folders import edit, faults, look, make_release, reseal, reseal_statement, stand_in_program

CARD, NOTICE, MODEL, BILL, STATEMENT = "README.md", "NOTICE", "MODEL.json", "bom.cdx.json", "provenance.intoto.json"
OTHER = "d" * 64


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release with Rockchip's library and two reports of fidelity; not to be changed."""
    folder = tmp_path_factory.mktemp("release")
    program = stand_in_program(folder / "program", runtime=True)
    return make_release(folder / "demo", program, require_demo(), fidelity=DEMO_REPORTS)


@pytest.fixture
def folder(released: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(released, tmp_path / "release"))


@dataclass(frozen=True)
class Row:
    """A tampering: what is replaced in which file, or changed in the manifest; and what must be said of it."""

    name: str
    check: str
    part: str
    file: str = ""
    swap: tuple[str, str] = ("", "")
    change: Callable[[Any], object] | None = None
    manifest: dict[str, Any] = field(default_factory=dict)


def on_card(name: str, old: str, new: str, part: str) -> Row:
    return Row(name, "card", part, CARD, (old, new))


def of_json(name: str, file: str, change: Callable[[Any], object], part: str) -> Row:
    check = {MODEL: "package", BILL: "sbom", STATEMENT: "provenance"}.get(file, "card")
    return Row(name, check, part, file, change=change)


def definition(document: Any) -> Any:
    return document["predicate"]["buildDefinition"]


def dependency(document: Any, name: str) -> Any:
    entries = definition(document)["resolvedDependencies"]
    return next(entry for entry in entries if str(entry.get("name", entry.get("uri"))).startswith(name))


def part_of_bill(document: Any, reference: str) -> Any:
    return next(entry for entry in document["components"] if entry["bom-ref"] == reference)


ROWS = [
    Row("manifest's version, card", "card", "expected # mindnano-demo 9.9.9", manifest={"release": "9.9.9"}),
    Row("manifest's version, notice", "licences", "expected mindnano-demo 9.9.9", manifest={"release": "9.9.9"}),
    Row("manifest's version, bill", "sbom", '"1.2.3", expected "9.9.9"', manifest={"release": "9.9.9"}),
    Row("manifest's version, provenance", "provenance", "version", manifest={"release": "9.9.9"}),
    Row("manifest's commit", "provenance", "c" * 40, manifest={"commit": "d" * 40}),
    Row("manifest's commit gone", "provenance", "c" * 40, manifest={"commit": None}),
    Row("manifest's builder", "provenance", "mindnano is", manifest={"builder": "mindnano 9.9.9"}),
    Row("manifest's source", "program", OTHER, manifest={"source_sha256": OTHER}),
    Row("manifest's time", "sbom", "metadata.timestamp is", manifest={"source_date_epoch": 1}),
    Row("manifest's tools", "manifest", 'tools.zig is "9"', manifest={"tools": {"zig": "9"}}),
    Row("manifest's oldest launcher", "manifest", "0.0.1, expected", manifest={"min_launcher_version": "0.0.1"}),
    on_card("version on the card", "# mindnano-demo 1.2.3", "# mindnano-demo 1.2.4", "is # mindnano-demo 1.2.4"),
    on_card("program's digest on the card", "PROGRAM_SHA256", OTHER, OTHER),
    on_card("number of parameters", "| parameters | 4,812,504", "| parameters | 9,812,504", "is | parameters | 9,812"),
    on_card("licence's line on the card", ".l3r`: Apache-2.0", ".l3r`: MIT", "MIT"),
    on_card("Rockchip's terms on the card", "Rockchip's own terms", "the Apache License", "the Apache License"),
    Row(
        "version in NOTICE", "licences", "line 1 is mindnano-demo 1", NOTICE, ("mindnano-demo 1.2.3", "mindnano-demo 1")
    ),
    Row("a promise in NOTICE", "licences", "own terms", NOTICE, ("has its own terms", "is free of any terms")),
    Row("figure in the plot", "card", "fidelity.svg: line", "fidelity.svg", ("<svg", '<svg data-x="1"')),
    of_json("positions", MODEL, lambda d: d["evaluation"].update(positions=7), "evaluation.positions is 7"),
    of_json("a metric", MODEL, lambda d: d["evaluation"]["metrics"].update(kl=0.0), "evaluation.metrics.kl is 0"),
    of_json("reference", MODEL, lambda d: d["evaluation"].update(reference="x"), "evaluation.reference"),
    of_json("digest of the text", MODEL, lambda d: d["evaluation"].update(text_sha256=OTHER), "evaluation.text_sha256"),
    of_json("no evaluation", MODEL, lambda d: d.update(evaluation=None), "evaluation is null"),
    of_json("languages", MODEL, lambda d: d.update(languages=["fr"]), "languages"),
    of_json("name in the bill", BILL, lambda d: d["metadata"]["component"].update(name="x"), 'name is "x"'),
    of_json("version in the bill", BILL, lambda d: d["metadata"]["component"].update(version="9"), 'version is "9"'),
    of_json("package's version", BILL, lambda d: part_of_bill(d, "package").update(version="9"), "components[package]"),
    of_json(
        "a supplier", BILL, lambda d: part_of_bill(d, "openssl").update(purl="pkg:x/y"), "components[openssl].purl"
    ),
    of_json(
        "one part more",
        BILL,
        lambda d: d["components"].append(
            {"type": "library", "bom-ref": "x", "name": "x", "version": "1", "licenses": [{"expression": "MIT"}]}
        ),
        "components[x]",
    ),
    of_json("target", STATEMENT, lambda d: definition(d)["externalParameters"].update(target="mips"), 'is "mips"'),
    of_json(
        "weights' terms", STATEMENT, lambda d: definition(d)["externalParameters"].update(weightsLicense="MIT"), "MIT"
    ),
    of_json("recipe", STATEMENT, lambda d: definition(d)["internalParameters"].update(recipe="f32"), "recipe"),
    of_json("converter", STATEMENT, lambda d: definition(d)["internalParameters"].update(createdBy="x"), "createdBy"),
    of_json("time", STATEMENT, lambda d: definition(d)["internalParameters"].update(sourceDateEpoch=1), "Epoch is 1"),
    of_json("checkpoint", STATEMENT, lambda d: dependency(d, "checkpoint/")["digest"].update(sha256=OTHER), OTHER),
    of_json("report", STATEMENT, lambda d: dependency(d, "fidelity/")["digest"].update(sha256=OTHER), OTHER),
    of_json("library", STATEMENT, lambda d: dependency(d, "librknnrt.so")["digest"].update(sha256=OTHER), OTHER),
    of_json(
        "commit",
        STATEMENT,
        lambda d: dependency(d, "urn:mindnano-infer:source")["digest"].update(gitCommit="d" * 40),
        "d" * 40,
    ),
    of_json(
        "one input less",
        STATEMENT,
        lambda d: definition(d)["resolvedDependencies"].remove(dependency(d, "checkpoint/")),
        "is missing",
    ),
    of_json("builder", STATEMENT, lambda d: d["predicate"]["runDetails"]["builder"]["version"].update(zig="9"), "zig"),
    of_json("a figure in a report", "fidelity-1.json", lambda d: d["comparisons"][0].update(kl=1.0), "line"),
    of_json("positions in a report", "fidelity-1.json", lambda d: d["text"].update(positions=77), "line"),
]


def tamper(folder: Path, row: Row) -> None:
    if row.change is not None:
        document = json.loads((folder / row.file).read_text(encoding="utf-8"))
        row.change(document)
        (folder / row.file).write_bytes(strict_json.to_bytes(document))
    elif row.file:
        described = read_manifest(folder)
        assert described is not None
        digest = next(file.sha256 for file in described.files if file.path == "mindnano-infer")
        edit(folder / row.file, row.swap[0].replace("PROGRAM_SHA256", digest), row.swap[1])
    reseal_statement(folder, **row.manifest)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_what_files_say_of_each_other_is_compared(folder: Path, row: Row) -> None:
    tamper(folder, row)
    result = look(folder)
    assert result.exit_code == 4
    found = faults(result)
    assert not found.keys() & {"signature", "sums", "files"}, "it is not sealed: nothing but sums was tried"
    assert any(row.part in fault for fault in found.get(row.check, ())), found


def test_a_figure_of_fidelity_on_the_card_is_compared(folder: Path) -> None:
    text = (folder / CARD).read_text(encoding="utf-8")
    figures = [word for word in text.split("## Fidelity")[1].split() if "e-0" in word]
    assert figures, "the card has no KL"
    edit(folder / CARD, figures[0], "1.000e-09")
    reseal_statement(folder)
    (fault,) = faults(look(folder))["card"]
    assert "1.000e-09" in fault
    assert figures[0] in fault.partition("expected")[2]


def test_a_release_that_was_only_sealed_anew_passes(folder: Path) -> None:
    reseal_statement(folder)
    assert faults(look(folder)) == {}


def add_file(folder: Path, name: str) -> None:
    (folder / name).write_text("{}")
    path = folder / STATEMENT
    document = json.loads(path.read_text(encoding="utf-8"))
    document["subject"] = sorted([*document["subject"], {"name": name, "digest": {}}], key=lambda each: each["name"])
    path.write_bytes(strict_json.to_bytes(document))
    reseal_statement(folder)


@pytest.mark.parametrize("name", ["fidelity-9.json", "EXTRA.md", "other.bin", "notices/more.txt"])
def test_a_file_that_nothing_asks_for_is_not_listed(folder: Path, name: str) -> None:
    add_file(folder, name)
    found = faults(look(folder))
    part = "fidelity-9.json the role" if name.startswith("fidelity") else f"it lists {name}, which this release has no"
    assert any(part in fault for fault in found["manifest"])
    assert "files" not in found


def test_one_key_twice_is_not_read_in_two_ways(folder: Path) -> None:
    edit(folder / STATEMENT, '"target": ', '"target": "mips",\n        "target": ')
    reseal(folder)
    assert "target" in faults(look(folder))["provenance"][0]


# What another version of the program made may be worded and arranged otherwise; its facts are compared all the same.


def make_other_version(folder: Path) -> None:
    path = folder / STATEMENT
    document = json.loads(path.read_text(encoding="utf-8"))
    document["predicate"]["runDetails"]["builder"]["version"]["mindnano"] = "99.0"
    path.write_bytes(strict_json.to_bytes(document))
    reseal_statement(folder, builder="mindnano 99.0")


def test_other_words_of_another_version_pass_with_a_warning(folder: Path) -> None:
    make_other_version(folder)
    edit(folder / CARD, "## Use", "## How to use it")
    edit(folder / NOTICE, "has its own terms", "comes under terms of its own")
    reseal_statement(folder)
    result = look(folder)
    assert faults(result) == {}
    states = {check.name: check.state for check in result.checks}
    assert {name for name, state in states.items() if state == "warn"} == {"signature", "licences", "card"}
    assert "made by mindnano 99.0, so its wording was not compared" in result.to_text()


def test_a_file_that_another_version_adds_may_be_under_any_terms(folder: Path) -> None:
    add_file(folder, "EXTRA.md")
    make_other_version(folder)
    described = read_manifest(folder)
    assert described is not None
    assert {file.licence for file in described.files if file.path == "EXTRA.md"} == {"MIT"}
    assert faults(look(folder)) == {}


OF_ANY_VERSION = {
    *("version on the card", "program's digest on the card", "number of parameters", "version in NOTICE"),
    *("positions", "a metric", "no evaluation", "version in the bill", "package's version", "target", "recipe"),
    *("checkpoint", "report", "library", "commit", "one input less", "time", "builder", "weights' terms"),
}


@pytest.mark.parametrize("row", [row for row in ROWS if row.name in OF_ANY_VERSION], ids=lambda row: row.name)
def test_facts_of_another_version_are_compared(folder: Path, row: Row) -> None:
    make_other_version(folder)
    tamper(folder, row)
    assert row.check in faults(look(folder))
