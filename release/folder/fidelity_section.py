"""What a model card shows of reports of fidelity: tables of the released package, and a plot of the error by position.

Other packages of the same checkpoint in a report of weights are shown beside it, as what they are: not in the release.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from launcher.integrity.strict_json import MAX_COUNT
from release.fidelity.compare import ALL, ANSWERS
from release.fidelity.plot import panels_plot
from release.fidelity.report import (
    AGAINST_BF16,
    AGAINST_REFERENCE,
    HEADINGS,
    Comparison,
    figure_cells,
    parse_comparison,
    perplexity_text,
)

PLAIN: Final = "w4a8-plain"
TITLES: Final[Mapping[str, str]] = {
    ALL: "Every position of the text",
    ANSWERS: "Only the positions that predict what the assistant says",
}
_RELEASED: Final = "**this release**, `{}`"
_COMPARED: Final = "for comparison, not in this release: `{}`{}"
_PLAIN_ROUNDING: Final = ", plain INT4 in groups of 32"
_FIGURES: Final = (
    "Both go over the same text, every token of which is given (teacher-forced), and their logits are compared. MAE,"
    " RMSE and max are of the differences of logits; TV is the total variation of the distributions, KL their"
    " divergence in nats, top-1 the share of positions with the same most likely token. Perplexity is exp of the mean"
    " -ln of the probability that the text's next token got."
)
_UNSETTLED: Final = (
    " This model was trained on what the assistant says and not on prompts; over every position its perplexity is"
    " therefore beyond its vocabulary, and what a user meets are the figures over answers."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What was compared with, and over which text: `files` are names with SHA-256."""

    reference: str
    recipe: str
    cache: str
    checkpoint_sha256: str
    files: tuple[tuple[str, str], ...]
    tokens: int
    windows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A line of a table. `recipe` is that of a package, `is_released` whether that is the released one."""

    recipe: str
    is_released: bool
    comparison: Comparison

    @property
    def label(self) -> str:
        """For the table."""
        if self.is_released:
            return _RELEASED.format(self.recipe)
        return _COMPARED.format(self.recipe, _PLAIN_ROUNDING if self.recipe == PLAIN else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """The figures of a report that a card shows.

    Attributes:
        counted: which positions.
        positions: how many.
        surprisal: mean -ln p of the reference.
        reference, own: against the reference; against the bf16 cache of the same package.
    """

    counted: str
    positions: int
    surprisal: float
    reference: tuple[Row, ...]
    own: tuple[Row, ...]


def table_of(document: Mapping[str, Any], *, released: str, recipes: Mapping[str, str]) -> Table:
    """The table of a report.

    Args:
        released: what the report calls the released package.
        recipes: those of the packages that may be shown, by what the report calls them.

    Raises:
        ValueError: a figure is not finite, or is of a position that cannot be.
    """
    rows = []
    # A report of several caches is about these: other packages would say nothing of them.
    is_of_weights = len({entry["kv_cache"] for entry in document["comparisons"]}) == 1
    for entry in document["comparisons"]:
        name = entry["package"]
        if name != released and not (is_of_weights and name in recipes):
            continue
        comparison = parse_comparison(entry)
        figures = comparison.figures
        values = [figures.mae, figures.rmse, figures.max_abs, figures.tv, figures.kl, figures.top1]
        values += [comparison.surprisal, *(value for _, value in figures.kl_by_position)]
        if not all(math.isfinite(value) for value in values):
            raise ValueError(f"has figures of {name} that are not finite numbers")
        if not all(0 <= position <= MAX_COUNT for position, _ in figures.kl_by_position):
            raise ValueError(f"has positions of {name} in the window that no window has")
        rows.append(Row(recipe=recipes[name], is_released=name == released, comparison=comparison))
    surprisal = float(document["reference"]["nll"])
    if not math.isfinite(surprisal):
        raise ValueError(f"has {surprisal} as nll of the reference, expected a finite number")
    return Table(
        counted=document["text"]["counted"],
        positions=document["text"]["positions"],
        surprisal=surprisal,
        reference=tuple(row for row in rows if row.comparison.against == AGAINST_REFERENCE),
        own=tuple(row for row in rows if row.comparison.against == AGAINST_BF16 and row.is_released),
    )


def section_of(tables: Sequence[tuple[Subject, Table]], *, plot: str, is_built_in: bool) -> str:
    """The text of the section in Markdown, without its heading.

    Args:
        plot: name of the file with the plot.
        is_built_in: whether the package is the built-in model.
    """
    lines = ["How far the package is from the checkpoint that it was converted from."]
    lines[0] += f" {_FIGURES}{_UNSETTLED if is_built_in else ''}"
    before = None
    for subject, table in tables:
        if subject != before:
            lines += ["", _subject_text(subject, is_built_in=is_built_in)]
            before = subject
        lines += ["", *_table_lines(table)]
    lines += ["", f"![KL divergence by position in the window]({plot})"]
    return "\n".join(lines) + "\n"


def plot_of(tables: Sequence[tuple[Subject, Table]]) -> bytes:
    """The error by position of everything in the tables, as SVG."""
    panels = []
    for _, table in tables:
        kind = TITLES[table.counted].lower()
        panels.append((f"KL from the reference, nats, by position: {kind}", _curves(table.reference)))
        panels.append((f"KL from the bf16 cache, nats, by position: {kind}", _curves(table.own)))
    return panels_plot("Fidelity to the checkpoint by position in the window", panels).encode()


def _curves(rows: Sequence[Row]) -> list[Comparison]:
    return [
        replace(row.comparison, package=f"{row.recipe} ({'this release' if row.is_released else 'for comparison'})")
        for row in rows
        if row.comparison.figures.kl_by_position
    ]


def _subject_text(subject: Subject, *, is_built_in: bool) -> str:
    # What the folder was called says nothing of the built-in model's checkpoint.
    checkpoint = "the built-in model's checkpoint" if is_built_in else f"the checkpoint `{subject.reference}`"
    files = ", ".join(f"`{name}` with SHA-256 `{digest}`" for name, digest in subject.files)
    return (
        f"Reference: {checkpoint} as `{subject.recipe}` with an attention cache in"
        f" {subject.cache}; SHA-256 of the list of its files `{subject.checkpoint_sha256}`. Text: {files};"
        f" {subject.tokens:,} tokens in {subject.windows:,} windows."
    )


def _table_lines(table: Table) -> list[str]:
    caches = {row.comparison.kv_cache for row in table.reference}
    by_cache = ", by the format of the attention cache" if len(caches) > 1 else ""
    lines = [
        f"{TITLES[table.counted]}, {table.positions:,} of them{by_cache}; perplexity of the reference"
        f" {perplexity_text(table.surprisal)}:",
        "",
        *_rows("against the reference", table.reference),
    ]
    if table.own:
        lines += ["", *_rows("against the bf16 cache of the same package", table.own)]
    return lines


def _rows(title: str, rows: Sequence[Row]) -> list[str]:
    lines = [f"| {title} | cache | {' | '.join(HEADINGS)} |", "|---|---|" + "---:|" * len(HEADINGS)]
    for row in rows:
        cells = " | ".join(figure_cells(row.comparison))
        lines.append(f"| {row.label} | {row.comparison.kv_cache} | {cells} |")
    return lines
