"""Reports of `mindnano fidelity` in a release: only those of the very package that is released count."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from launcher.errors import PackageError
from launcher.integrity.model_info import Evaluation
from launcher.integrity.release_files import read_capped
from launcher.integrity.strict_json import MAX_COUNT
from release.checkpoint.json_text import parse_json
from release.fidelity.report import AGAINST_REFERENCE, SCHEMA, VERSION, markdown
from release.package.facts import PackageFacts, checkpoint_sha256

DEMO_REPORTS: Final = tuple(
    Path(__file__).parents[1] / "demo" / f"fidelity-{positions}.json" for positions in ("all", "answers")
)
"""What `python -m release.demo.rounding` measured of the built-in model."""

_MAX_BYTES: Final = 16 << 20
_METRICS: Final = ("mae", "rmse", "max_abs", "tv", "kl", "top1")
_KINDS: Final = "`all`: every position of the text; `answers`: only those that predict what the assistant says."


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a release says of its fidelity.

    Attributes:
        text: Markdown for the card.
        evaluation: the first report's figures for MODEL.json.
        reports: SHA-256 of the reports by name.
    """

    text: str
    evaluation: Evaluation
    reports: Mapping[str, str]


def read_reports(paths: Sequence[Path], package: PackageFacts, sha256: str) -> tuple[Measured | None, list[str]]:
    """Reads the reports and holds them against the package.

    Args:
        paths: what `mindnano fidelity --json` printed.
        package: what is released.
        sha256: of its file.

    Returns:
        What they say, or None and one sentence for each that cannot be used. Neither where there are no paths.
    """
    texts = []
    evaluations = []
    digests = {}
    gaps = []
    for path in paths:
        try:
            data, document = _document(path)
            if path.name in digests:
                raise ValueError("has the name of another report; the release tells them apart by their names")
            digests[path.name] = hashlib.sha256(data).hexdigest()
            evaluations.append(_evaluation(document, _entry(document, package, sha256)))
            texts.append(markdown(document))
        except PackageError as error:
            gaps.append(f"the fidelity: {error.message}")
        except ValueError as error:
            gaps.append(f"the fidelity: {path} {error}")
        except (KeyError, TypeError, AttributeError, IndexError, OverflowError) as error:
            gaps.append(f"the fidelity: {path} cannot be read: {error!r}")
    if gaps or not texts:
        return None, gaps
    return Measured(text="\n".join([f"{_KINDS}\n", *texts]), evaluation=evaluations[0], reports=digests), []


def _document(path: Path) -> tuple[bytes, dict[str, Any]]:
    """The report and its bytes. Raises ValueError with what is wrong with it, PackageError where it cannot be read."""
    data = read_capped(path, _MAX_BYTES)
    if data is None:
        raise ValueError("does not exist")
    try:
        document = parse_json(data)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        raise ValueError("is no report of mindnano fidelity --json")
    if document.get("version") != VERSION:
        raise ValueError(f"has version {document.get('version')!r}, expected {VERSION}; measure again")
    return data, document


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


def _evaluation(document: Mapping[str, Any], entry: Mapping[str, Any]) -> Evaluation:
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
    text, reference = document["text"], document["reference"]
    digests = [str(file["sha256"]) for file in text["files"]]
    joined = hashlib.sha256("".join(f"{digest}\n" for digest in digests).encode()).hexdigest()
    positions, metrics = text["positions"], {name: float(found[name]) for name in _METRICS}
    if type(positions) is not int or not 1 <= positions <= MAX_COUNT:
        raise ValueError(f"counts {positions!r:.40} positions, expected a whole number from 1 on")
    wrong = next((name for name, value in metrics.items() if not math.isfinite(value)), None)
    if wrong is not None:
        raise ValueError(f"has {metrics[wrong]} as {wrong}, expected a finite number")
    recipes = [each["recipe"] for each in (reference, *document["packages"])]
    caches = [each["kv_cache"] for each in document["comparisons"]]
    shown = [reference["name"], text["counted"], *recipes, *caches]
    if not all(isinstance(each, str) and each.isprintable() for each in shown):
        raise ValueError("has a name that is no line of text")
    return Evaluation(
        reference=f"{reference['name']} {reference['recipe']}, f32 cache, SHA-256 {reference['sha256']}",
        text_sha256=digests[0] if len(digests) == 1 else joined,
        positions=positions,
        metrics=metrics,
    )
