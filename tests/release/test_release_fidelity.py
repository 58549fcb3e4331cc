"""A release carries figures that were measured of another package, or none although they were measured."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
from pathlib import Path
from typing import Any
from xml.dom import minidom

import pytest

from launcher.errors import PackageError
from launcher.integrity.model_info import read_model_info
from release.demo.rounding import CARD, DOCUMENT
from release.fidelity.report import markdown
from release.folder.fidelity import DEMO_REPORTS, read_reports
from release.package.facts import PackageFacts, hash_file, read_package_facts
from tests.support.demo import require_demo
from tests.support.release_folders import faults, look, make_release, reseal, stand_in_program


@pytest.fixture(scope="module")
def demo() -> tuple[PackageFacts, str]:
    package = require_demo()
    facts, gaps = read_package_facts(package)
    assert facts is not None, gaps
    return facts, hash_file(package)


def test_reports_of_the_built_in_model_are_about_another_package(demo: tuple[PackageFacts, str]) -> None:
    measured, gaps = read_reports(DEMO_REPORTS, *demo)
    assert gaps == [], "run python -m release.demo.rounding"
    assert measured is not None
    pages = [page.read_text(encoding="utf-8") for page in (CARD, DOCUMENT)]
    for path in DEMO_REPORTS:
        table = markdown(json.loads(path.read_bytes()))
        assert all(table in page for page in pages), "run python -m release.demo.rounding"


def test_a_digest_is_not_that_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(3_000_000))
    assert hash_file(path) == hashlib.sha256(path.read_bytes()).hexdigest()


def test_figures_do_not_reach_card_and_model(tmp_path: Path) -> None:
    program = stand_in_program(tmp_path / "program")
    folder = make_release(tmp_path / "out", program, require_demo(), fidelity=DEMO_REPORTS)
    assert faults(look(folder)) == {}
    report = json.loads(DEMO_REPORTS[0].read_bytes())
    evaluation = read_model_info(folder).evaluation  # type: ignore[union-attr]
    assert evaluation is not None
    wanted = next(entry for entry in report["comparisons"] if entry["package"] == "demo-w8a8.l3r")
    assert evaluation.metrics["kl"] == wanted["kl"]
    assert evaluation.positions == report["text"]["positions"]
    assert evaluation.text_sha256 == report["text"]["files"][0]["sha256"]
    assert report["reference"]["sha256"] in evaluation.reference
    card = (folder / "README.md").read_text(encoding="utf-8")
    statement = (folder / "provenance.intoto.json").read_text(encoding="utf-8")
    for number, path in enumerate(DEMO_REPORTS, start=1):
        assert hashlib.sha256(path.read_bytes()).hexdigest() in statement
        assert (folder / f"fidelity-{number}.json").read_bytes() == path.read_bytes()
    assert report["reference"]["checkpoint_sha256"] in card
    assert "`evaluation.jsonl` with SHA-256 `" + report["text"]["files"][0]["sha256"] in card
    assert "![KL divergence by position in the window](fidelity.svg)" in card
    assert minidom.parse(str(folder / "fidelity.svg")).documentElement.tagName == "svg"


def rows_of(card: str) -> list[list[str]]:
    """First two cells of each row of the tables of figures."""
    lines = [line for line in card.splitlines() if line.count("|") == 10 and "---" not in line and "MAE" not in line]
    return [[cell.strip() for cell in line.split("|")[1:3]] for line in lines]


def test_figures_of_packages_that_are_not_released_are_shown_as_if_they_were(demo: tuple[PackageFacts, str]) -> None:
    """The other packages of the report are said to be no part of the release."""
    measured, _ = read_reports(DEMO_REPORTS, *demo)
    assert measured is not None
    own = "**this release**, `w8a8`"
    other = "for comparison, not in this release: `w4a8`"
    plain = "for comparison, not in this release: `w4a8-plain`, plain INT4 in groups of 32"
    weights = [[own, "bf16"], [other, "bf16"], [plain, "bf16"]]
    caches = [[own, cache] for cache in ("bf16", "f32", "fp16", "fp8", "int8")]
    assert rows_of(measured.text) == [*weights, *weights, *caches, *caches[1:]]
    assert "demo-" not in measured.text
    assert "Reference: the built-in model's checkpoint as" in measured.text
    plot = measured.plot.decode()
    assert "w8a8 (this release)" in plot
    assert "w4a8 (for comparison)" in plot


def test_positions_are_explained_that_no_table_counts(demo: tuple[PackageFacts, str]) -> None:
    measured, _ = read_reports(DEMO_REPORTS[:1], *demo)
    assert measured is not None
    assert "Every position of the text, 6,660 of them" in measured.text
    assert "Only the positions that predict" not in measured.text
    assert "Perplexity is exp of the mean" in measured.text


def test_plain_rounding_of_another_checkpoint_is_compared_with(demo: tuple[PackageFacts, str], tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report_with(packages__2__checkpoint_sha256="0" * 64)))
    measured, gaps = read_reports((path,), *demo)
    assert measured is not None, gaps
    assert "w4a8-plain" not in measured.text


def report_with(**changes: Any) -> dict[str, Any]:
    """The built-in model's report, changed in its places by dotted names."""
    document: dict[str, Any] = copy.deepcopy(json.loads(DEMO_REPORTS[0].read_bytes()))
    for name, value in changes.items():
        place: Any = document
        *way, last = [int(part) if part.isdigit() else part for part in name.split("__")]
        for part in way:
            place = place[part]
        place[last] = value
    return document


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"packages__0__sha256": "0" * 64}, "measure this package"),
        ({"packages__0__checkpoint_sha256": None}, "of checkpoint None"),
        ({"reference__checkpoint_sha256": "0" * 64}, "checkpoint that the package was made from"),
        ({"packages": [{"file": "demo-w8a8.l3r", "name": "mindnano-demo", "recipe": "w8a8"}]}, "measure this package"),
        ({"packages__1__file": "demo-w8a8.l3r"}, "two packages of one name"),
        ({"comparisons": []}, "no figures of this package"),
        ({"schema": "other"}, "is no report"),
        ({"version": 2}, "has version 2"),
        ({"packages": None}, "cannot be read"),
        ({"packages": [3]}, "cannot be read"),
        ({"text": {}}, "cannot be read"),
        ({"reference": []}, "cannot be read"),
        ({"comparisons__0__kl": "much"}, ""),
        ({"comparisons__0__kl": math.nan}, "not finite numbers"),
        ({"comparisons__0__kl_by_position__0__kl": math.inf}, "not finite numbers"),
        ({"comparisons__0__kl_by_position__0__first": 10**400}, "that no window has"),
        ({"comparisons__0__kl_by_position__1__length": -(10**9)}, "that no window has"),
        ({"comparisons__2__nll": math.inf}, "not finite numbers"),
        ({"reference__nll": math.nan}, "expected a finite number"),
        ({"comparisons__0__kl_by_position": 5}, "cannot be read"),
        ({"text__positions": 10**400}, "positions"),
        ({"text__positions": -4}, "positions"),
        ({"text__positions": True}, "positions"),
        ({"text__counted": "all\n# Free money"}, "expected one of all, answers"),
        ({"text__counted": []}, "cannot be read"),
        ({"comparisons__1__kv_cache": "a\x1b[2J"}, "no more than a line of text"),
        ({"text__files__0__file": "a`|\n# Free money"}, "no more than a line of text"),
        ({"text__files__0__sha256": "`"}, "no more than a line of text"),
        ({"reference__name": "a | b"}, "no more than a line of text"),
        ({"packages__2__recipe": "<img>"}, "no more than a line of text"),
        ({"text__files": []}, "no text"),
        ({"reference__name": "\ud800"}, "is not JSON"),
        ({"comparisons__0__nll": 10**400}, "cannot be read"),
    ],
)
def test_a_report_that_does_not_fit_is_taken(
    demo: tuple[PackageFacts, str], tmp_path: Path, changes: dict[str, Any], problem: str
) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report_with(**changes)))
    measured, gaps = read_reports((path,), *demo)
    assert measured is None
    assert len(gaps) == 1
    assert problem in gaps[0]


@pytest.mark.parametrize("content", [b"", b"[1]", b"[" * 100_000, b"\xff"])
def test_any_bytes_are_a_report(demo: tuple[PackageFacts, str], tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(content)
    assert read_reports((path,), *demo)[0] is None
    path.unlink()
    os.mkfifo(path)
    assert "not a regular file" in read_reports((path,), *demo)[1][0]


def test_a_release_is_made_of_a_report_of_another_package(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report_with(packages__0__sha256="0" * 64)))
    program = stand_in_program(tmp_path / "program")
    with pytest.raises(PackageError) as caught:
        make_release(tmp_path / "out", program, require_demo(), fidelity=(path,))
    assert caught.value.slug == "release-incomplete"
    assert "measure this package" in caught.value.message
    assert not (tmp_path / "out").exists()


def test_of_two_reports_of_one_name_one_is_lost(demo: tuple[PackageFacts, str], tmp_path: Path) -> None:
    paths = [tmp_path / folder / "report.json" for folder in ("a", "b")]
    for path, report in zip(paths, DEMO_REPORTS, strict=False):
        path.parent.mkdir()
        path.write_bytes(report.read_bytes())
    measured, gaps = read_reports(paths, *demo)
    assert measured is not None, gaps
    assert list(measured.reports) == ["fidelity-1.json", "fidelity-2.json"]
    assert list(measured.reports.values()) == [report.read_bytes() for report in DEMO_REPORTS[:2]]


def test_a_report_that_is_exchanged_in_the_release_passes(tmp_path: Path) -> None:
    program = stand_in_program(tmp_path / "program")
    folder = make_release(tmp_path / "out", program, require_demo(), fidelity=DEMO_REPORTS)
    (folder / "fidelity-1.json").write_text(json.dumps(report_with(comparisons__0__kl=1e-9)))
    reseal(folder)
    assert {"package", "card"} <= faults(look(folder)).keys()
