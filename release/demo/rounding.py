"""What rounding costs the built-in model: `python -m release.demo.rounding`.

Packs the checkpoint by several recipes, measures each over the evaluation text, and writes the figures into the model
card, `docs/fidelity.md` and its plot, and the reports that a release of the built-in model takes its figures from.
Where nothing changed, nothing changes.
"""

import argparse
import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from launcher.engine_types import KvType
from release.demo.evaluation_text import EVALUATION_TEXT
from release.fidelity.compare import ALL, ANSWERS, FidelityOptions, fidelity
from release.fidelity.report import markdown
from release.folder.fidelity import DEMO_REPORTS
from release.package.pack import PackOptions, pack
from release.quantization.quantize import QuantizeOptions, quantize

ROOT: Final = Path(__file__).resolve().parents[2]
CHECKPOINT: Final = Path(__file__).with_name("checkpoint")
CARD: Final = CHECKPOINT / "README.md"
DOCUMENT: Final = ROOT / "docs" / "fidelity.md"
PLOT: Final = ROOT / "docs" / "fidelity-demo.svg"
WEIGHTS: Final = ("w8a8", "w4a8", "w4a8-plain")
CACHED: Final = ("bf16", "w8a8", "w4a8")
BEGIN: Final = "<!-- written by python -m release.demo.rounding -->"
END: Final = "<!-- end -->"

_ALL_TITLE: Final = "Every position, prompts included, which this model was not trained on:"
_ANSWERS_TITLE: Final = "Only positions that predict what the assistant says:"
_CACHE_TITLE: Final = "Formats of the attention cache, every position:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Parsed reports: rounded weights over all positions and over answers, and cache formats over all positions."""

    weights: dict[str, Any]
    answers: dict[str, Any]
    caches: dict[str, Any]


def measure(folder: Path, plot: Path) -> Reports:
    """Packs into `folder`, measures, and draws the rounded weights' error by position to `plot`."""
    packages = {recipe: _packed(folder, recipe) for recipe in dict.fromkeys((*WEIGHTS, *CACHED))}
    weights = tuple(packages[recipe] for recipe in WEIGHTS)
    cached = tuple(packages[recipe] for recipe in CACHED)
    return Reports(
        weights=_report(FidelityOptions(reference=CHECKPOINT, packages=weights, texts=(EVALUATION_TEXT,), plot=plot)),
        answers=_report(
            FidelityOptions(reference=CHECKPOINT, packages=weights, texts=(EVALUATION_TEXT,), positions=ANSWERS)
        ),
        caches=_report(
            FidelityOptions(
                reference=CHECKPOINT, packages=cached, texts=(EVALUATION_TEXT,), positions=ALL, kv_types=tuple(KvType)
            )
        ),
    )


def replaced(text: str, new: str) -> str:
    """The text with a new section between the marks.

    Raises:
        ValueError: the marks are missing.
    """
    head, begin, rest = text.partition(BEGIN)
    _, end, tail = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"there is no {BEGIN} ... {END}")
    return f"{head}{BEGIN}\n\n{new}\n{END}{tail}"


def section(reports: Reports) -> str:
    """Tables of the rounded weights and of the cache formats."""
    weights = f"{_ALL_TITLE}\n\n{markdown(reports.weights)}\n{_ANSWERS_TITLE}\n\n{markdown(reports.answers)}"
    return f"{weights}\n{_CACHE_TITLE}\n\n{markdown(reports.caches)}"


def _packed(folder: Path, recipe: str) -> Path:
    # The same words as where set-up packs it: a release finds its figures by the package's SHA-256.
    options = QuantizeOptions(
        source=CHECKPOINT, output=folder / recipe, recipe=recipe, name="mindnano-demo", license="Apache-2.0"
    )
    return pack(PackOptions(manifest=quantize(options), output=folder / f"demo-{recipe}.l3r"))


def _report(options: FidelityOptions) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(fidelity(options).to_json())
    return document


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m release.demo.rounding", description=(__doc__ or "").splitlines()[0]
    )
    parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="mindnano-rounding-") as scratch:
        drawing = Path(scratch) / PLOT.name
        reports = measure(Path(scratch), drawing)
        PLOT.write_bytes(drawing.read_bytes())
    for path, report in zip(DEMO_REPORTS, (reports.weights, reports.answers, reports.caches), strict=True):
        path.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for path in (CARD, DOCUMENT):
        path.write_text(replaced(path.read_text(encoding="utf-8"), section(reports)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
