"""What `mindnano fidelity` found, as a table, as JSON and as Markdown."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from release.fidelity.metrics import Figures

SCHEMA: Final = "mindnano-fidelity"
VERSION: Final = 1
AGAINST_REFERENCE: Final = "reference"
AGAINST_BF16: Final = "bf16"
BINS: Final = 64
_LARGEST_EXPONENT = 700.0
HEADINGS: Final = ("MAE", "RMSE", "max", "TV %", "KL", "top-1 %", "perplexity")
_TITLES: Final = {
    AGAINST_REFERENCE: "against the reference",
    AGAINST_BF16: "against the bf16 cache of the same package",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """A package.

    Attributes:
        file: its name, or the path that was given.
        name, recipe: of the model, as its metadata has them.
        bytes, sha256: of the file; of a reference that was packed for the run, of that package.
        checkpoint_sha256: of the list of files that it was converted from, None where its metadata has none.
    """

    file: str
    name: str
    recipe: str
    bytes: int
    sha256: str
    checkpoint_sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFacts:
    """A text: name of the file, bytes and SHA-256 in hex."""

    file: str
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One package on one backend with one cache format, against the reference or its own bf16 cache."""

    package: str
    backend: str
    kv_cache: str
    against: str
    surprisal: float
    figures: Figures


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityReport:
    """Everything measured in one run.

    Attributes:
        context: longest window in tokens that was allowed.
        tokens: evaluated in all windows.
        kind: which positions count: all, or answers.
        positions: how many that are; the logits of each are compared.
        predicted: those of them whose next token lies in the same window; perplexity is over these.
        reference_surprisal: mean -ln p of the reference for the predicted tokens.
    """

    reference: ModelFacts
    packages: tuple[ModelFacts, ...]
    texts: tuple[TextFacts, ...]
    documents: int
    windows: int
    context: int
    tokens: int
    kind: str
    positions: int
    predicted: int
    reference_surprisal: float
    comparisons: tuple[Comparison, ...]

    def of(self, against: str) -> tuple[Comparison, ...]:
        """The comparisons of one kind."""
        return tuple(comparison for comparison in self.comparisons if comparison.against == against)

    def to_json(self) -> str:
        """One JSON document with `schema` and `version`; the same input gives the same bytes."""
        document = {
            "schema": SCHEMA,
            "version": VERSION,
            "reference": _model(self.reference)
            | {"kv_cache": "f32", "perplexity": perplexity(self.reference_surprisal), "nll": self.reference_surprisal},
            "packages": [_model(facts) for facts in self.packages],
            "text": {
                "files": [{"file": text.file, "bytes": text.bytes, "sha256": text.sha256} for text in self.texts],
                "documents": self.documents,
                "windows": self.windows,
                "context": self.context,
                "tokens": self.tokens,
                "counted": self.kind,
                "positions": self.positions,
                "predicted": self.predicted,
            },
            "comparisons": [_comparison(comparison) for comparison in self.comparisons],
        }
        return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False)

    def to_text(self) -> str:
        """Tables for a reader."""
        windows = "one window" if self.windows == 1 else f"{self.windows:,} windows"
        lines = [
            f"reference  {self.reference.file} ({self.reference.recipe}, f32 cache),"
            f" perplexity {perplexity_text(self.reference_surprisal)}",
            f"text       {', '.join(text.file for text in self.texts)}: {self.tokens:,} tokens"
            f" in {windows} of at most {self.context:,}",
            f"positions  {self.positions:,} ({self.kind})",
        ]
        for against, title in _TITLES.items():
            found = self.of(against)
            if not found:
                continue
            width = max(len("package"), *(len(comparison.package) for comparison in found))
            heading = f"{'package':<{width}}  {'backend':<7}  {'cache':<5}"
            lines += ["", title, heading + "".join(f" {name:>11}" for name in HEADINGS)]
            for comparison in found:
                row = f"{comparison.package:<{width}}  {comparison.backend:<7}  {comparison.kv_cache:<5}"
                lines.append(row + "".join(f" {cell:>11}" for cell in figure_cells(comparison)))
        return "\n".join(lines)


def markdown(document: dict[str, Any]) -> str:
    """The tables of a report that was written as JSON."""
    lines: list[str] = []
    recipes = {facts["file"]: facts["recipe"] for facts in document["packages"]}
    for against, title in _TITLES.items():
        found = [entry for entry in document["comparisons"] if entry["against"] == against]
        if not found:
            continue
        if lines:
            lines.append("")
        lines += [f"| {title} | cache | {' | '.join(HEADINGS)} |", "|---|---|" + "---:|" * len(HEADINGS)]
        for entry in found:
            cells = figure_cells(parse_comparison(entry))
            lines.append(f"| `{recipes[entry['package']]}` | {entry['kv_cache']} | {' | '.join(cells)} |")
    reference = document["reference"]
    text = document["text"]
    windows = "one window" if text["windows"] == 1 else f"{text['windows']:,} windows"
    lines += [
        "",
        f"{text['positions']:,} positions ({text['counted']}) in {windows};"
        f" perplexity of the reference {perplexity_text(reference['nll'])}.",
    ]
    return "\n".join(lines) + "\n"


def perplexity(surprisal: float) -> float | None:
    """exp of a mean -ln p; None where that is beyond a double."""
    return math.exp(surprisal) if surprisal < _LARGEST_EXPONENT else None


def perplexity_text(surprisal: float) -> str:
    """The perplexity as tables show it."""
    value = perplexity(surprisal)
    return "huge" if value is None else f"{value:.4f}" if value < 1e4 else f"{value:.3e}"


def figure_cells(comparison: Comparison) -> tuple[str, ...]:
    """The figures as tables show them, one for each of `HEADINGS`."""
    figures = comparison.figures
    return (
        f"{figures.mae:.4f}",
        f"{figures.rmse:.4f}",
        f"{figures.max_abs:.3f}",
        f"{100 * figures.tv:.3f}",
        f"{figures.kl:.3e}",
        f"{100 * figures.top1:.2f}",
        perplexity_text(comparison.surprisal),
    )


def _model(facts: ModelFacts) -> dict[str, object]:
    return asdict(facts)


def _comparison(comparison: Comparison) -> dict[str, object]:
    figures = comparison.figures
    return {
        "package": comparison.package,
        "backend": comparison.backend,
        "kv_cache": comparison.kv_cache,
        "against": comparison.against,
        "mae": figures.mae,
        "rmse": figures.rmse,
        "max_abs": figures.max_abs,
        "tv": figures.tv,
        "kl": figures.kl,
        "top1": figures.top1,
        "nll": comparison.surprisal,
        "perplexity": perplexity(comparison.surprisal),
        "kl_by_position": _binned(figures.kl_by_position),
    }


def _binned(values: Sequence[tuple[int, float]]) -> list[dict[str, object]]:
    """At most 64 bins of equal width in the window; `kl` is the mean over the positions that counted."""
    width = values[-1][0] // BINS + 1
    bins: dict[int, list[float]] = {}
    for place, value in values:
        bins.setdefault(place // width, []).append(value)
    return [{"first": bin_ * width, "length": width, "kl": sum(found) / len(found)} for bin_, found in bins.items()]


def parse_comparison(entry: Mapping[str, Any]) -> Comparison:
    """A comparison that was written as JSON. KL by position is that of the bins, each at its middle.

    Raises:
        KeyError, TypeError, ValueError, OverflowError: it is none.
    """
    names = ("mae", "rmse", "max_abs", "tv", "kl", "top1")
    bins = entry["kl_by_position"]
    figures = Figures(
        kl_by_position=tuple((int(each["first"]) + int(each["length"]) // 2, float(each["kl"])) for each in bins),
        **{name: float(entry[name]) for name in names},
    )
    labels = {name: str(entry[name]) for name in ("package", "backend", "kv_cache", "against")}
    return Comparison(surprisal=float(entry["nll"]), figures=figures, **labels)
