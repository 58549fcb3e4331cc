"""Reports of `mindnano fidelity` in a release: only those of the very package that is released count.

A release carries the reports themselves, so that card, MODEL.json and plot can be made from the folder again.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from launcher.errors import PackageError
from launcher.integrity.model_info import Evaluation
from launcher.integrity.release_files import read_capped
from launcher.integrity.strict_json import MAX_COUNT
from release.checkpoint.json_text import parse_json
from release.fidelity.report import AGAINST_REFERENCE, SCHEMA, VERSION
from release.folder.fidelity_section import TITLES, Subject, Table, plot_of, section_of, table_of
from release.package.facts import PackageFacts, checkpoint_sha256

DEMO_REPORTS: Final = tuple(
    Path(__file__).parents[1] / "demo" / f"fidelity-{subject}.json" for subject in ("all", "answers", "caches")
)
"""What `python -m release.demo.rounding` measured of the built-in model."""
PLOT: Final = "fidelity.svg"
MAX_BYTES: Final = 16 << 20
MAX_REPORTS: Final = 99

_REPORT: Final = re.compile(r"fidelity-[1-9][0-9]?\.json", re.ASCII)
_METRICS: Final = ("mae", "rmse", "max_abs", "tv", "kl", "top1")
_WORD: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}", re.ASCII)
_NAME: Final = re.compile(r"[^`|<>\\]{1,100}")
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a release says of its fidelity.

    Attributes:
        text: Markdown for the card.
        evaluation: the first report's figures for MODEL.json.
        plot: error by position as SVG.
        reports: the reports, by their names in the release.
    """

    text: str
    evaluation: Evaluation
    plot: bytes
    reports: Mapping[str, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    """A report that is about the package."""

    subject: Subject
    table: Table
    evaluation: Evaluation


def report_name(number: int) -> str:
    """The name of a report in a release; they count from 1 in the order in which they were given."""
    return f"fidelity-{number}.json"


def is_report_name(name: str) -> bool:
    """Whether a file of a release is a report."""
    return _REPORT.fullmatch(name) is not None


@cache
def built_in_digests() -> frozenset[str]:
    """SHA-256 of the packages of the built-in model, as the committed reports have them."""
    documents = [parse_json(path.read_bytes()) for path in DEMO_REPORTS]
    return frozenset(str(package["sha256"]) for document in documents for package in document["packages"])


def read_reports(paths: Sequence[Path], package: PackageFacts | None, sha256: str) -> tuple[Measured | None, list[str]]:
    """Reads the reports and holds them against the package.

    Args:
        paths: what `mindnano fidelity --json` printed.
        package: what is released, None where it cannot be read: then only what does not depend on it is told.
        sha256: of its file.

    Returns:
        What they say, or None and one sentence for each that cannot be used. Neither where there are no paths.
    """
    gaps = []
    found: dict[Path, bytes] = {}
    if len(paths) > MAX_REPORTS:
        gaps.append(f"the fidelity: there are {len(paths)} reports, expected at most {MAX_REPORTS}")
    for path in paths:
        try:
            data = read_capped(path, MAX_BYTES)
        except PackageError as error:
            gaps.append(f"the fidelity: {error.message}")
            continue
        if data is None:
            gaps.append(f"the fidelity: {path} does not exist")
            continue
        found[path] = data
        try:
            _parse(data)
        except ValueError as error:
            gaps.append(f"the fidelity: {path} {error}")
    if package is None or gaps or not found:
        return None, gaps
    return measure_up({str(path): data for path, data in found.items()}, package, sha256)


def measure_up(reports: Mapping[str, bytes], package: PackageFacts, sha256: str) -> tuple[Measured | None, list[str]]:
    """Holds reports against a package.

    Args:
        reports: their bytes by what to call them in messages, in the order in which they count.
        package: what is released.
        sha256: of its file.

    Returns:
        What they say, or None and one sentence for each that cannot be used. Neither where there are none.
    """
    read = []
    gaps = []
    for label, data in reports.items():
        try:
            read.append(_read(_parse(data), package, sha256))
        except ValueError as error:
            gaps.append(f"the fidelity: {label} {error}")
        except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
            gaps.append(f"the fidelity: {label} cannot be read: {error!r}")
    if gaps or not read:
        return None, gaps
    tables = [(report.subject, report.table) for report in read]
    measured = Measured(
        text=section_of(tables, plot=PLOT, is_built_in=sha256 in built_in_digests()),
        evaluation=read[0].evaluation,
        plot=plot_of(tables),
        reports={report_name(number): data for number, data in enumerate(reports.values(), start=1)},
    )
    return measured, []


def _parse(data: bytes) -> dict[str, Any]:
    """The report in these bytes. Raises ValueError with what is wrong with it."""
    try:
        document = parse_json(data)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError("is no report of mindnano fidelity --json")
    if document.get("version") != VERSION:
        raise ValueError(f"has version {document.get('version')!r}, expected {VERSION}; measure again")
    return document


def _read(document: Mapping[str, Any], package: PackageFacts, sha256: str) -> _Report:
    """What a report says of the package. Raises ValueError where it is not about it, or has what cannot be shown."""
    entry = _entry(document, package, sha256)
    reference, text = document["reference"], document["text"]
    if text["counted"] not in TITLES:
        raise ValueError(f"counts {text['counted']!r:.40}, expected one of {', '.join(TITLES)}")
    for name in ("positions", "tokens", "windows"):
        if type(text[name]) is not int or not 1 <= text[name] <= MAX_COUNT:
            raise ValueError(f"has {text[name]!r:.40} {name}, expected a whole number from 1 on")
    files = [(_shown(file["file"], _NAME), _shown(file["sha256"], _DIGEST)) for file in text["files"]]
    recipes = {
        _shown(each["file"], _NAME): _shown(each["recipe"], _WORD)
        for each in document["packages"]
        if each.get("checkpoint_sha256") == entry["checkpoint_sha256"]
    }
    if len({each["file"] for each in document["packages"]}) < len(document["packages"]):
        raise ValueError("has two packages of one name")
    caches = [_shown(each["kv_cache"], _WORD) for each in document["comparisons"]]
    if not files or not caches:
        raise ValueError("has no text, or no figures of this package")
    subject = Subject(
        reference=_shown(reference["name"], _NAME),
        recipe=_shown(reference["recipe"], _WORD),
        cache=_shown(reference["kv_cache"], _WORD),
        checkpoint_sha256=_shown(reference["checkpoint_sha256"], _DIGEST),
        files=tuple(files),
        tokens=text["tokens"],
        windows=text["windows"],
    )
    table = table_of(document, released=entry["file"], recipes=recipes)
    return _Report(subject=subject, table=table, evaluation=_evaluation(document, entry, subject))


def _shown(value: object, form: re.Pattern[str]) -> str:
    """A text that can stand in a table of Markdown. Raises ValueError where it is none."""
    if not isinstance(value, str) or not value.isprintable() or form.fullmatch(value) is None:
        raise ValueError(f"has {value!r:.80} where a name is expected that is no more than a line of text")
    return value


def _entry(document: Mapping[str, Any], package: PackageFacts, sha256: str) -> Mapping[str, Any]:
    """What the report says of the package. Raises ValueError where it is not about it."""
    measured: list[Mapping[str, Any]] = document["packages"]
    found = next((entry for entry in measured if entry.get("sha256") == sha256), None)
    if found is None:
        digests = ", ".join(str(entry.get("sha256")) for entry in measured)
        raise ValueError(f"is about packages with SHA-256 {digests}, expected {sha256}; measure this package")
    wanted = checkpoint_sha256(package.sources)
    for entry in (found, document["reference"]):
        if entry.get("checkpoint_sha256") != wanted:
            raise ValueError(
                f"compares with {entry.get('file')} of checkpoint {entry.get('checkpoint_sha256')}, expected {wanted};"
                " measure against the checkpoint that the package was made from"
            )
    return found


def _evaluation(document: Mapping[str, Any], entry: Mapping[str, Any], subject: Subject) -> Evaluation:
    """The figures of the package with the bf16 cache against the reference."""
    found = next(
        (
            comparison
            for comparison in document["comparisons"]
            if (comparison["package"], comparison["against"], comparison["kv_cache"])
            == (entry["file"], AGAINST_REFERENCE, "bf16")
        ),
        None,
    )
    if found is None:
        raise ValueError("has no figures of this package with the bf16 cache")
    digests = [digest for _, digest in subject.files]
    joined = hashlib.sha256("".join(f"{digest}\n" for digest in digests).encode()).hexdigest()
    metrics = {name: float(found[name]) for name in _METRICS}
    wrong = next((name for name, value in metrics.items() if not math.isfinite(value)), None)
    if wrong is not None:
        raise ValueError(f"has {metrics[wrong]} as {wrong}, expected a finite number")
    digest = _shown(document["reference"]["sha256"], _DIGEST)
    return Evaluation(
        reference=f"{subject.reference} {subject.recipe}, {subject.cache} cache, SHA-256 {digest}",
        text_sha256=digests[0] if len(digests) == 1 else joined,
        positions=document["text"]["positions"],
        metrics=metrics,
    )
