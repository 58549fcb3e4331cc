"""The ladder of contexts: what each costs by the engine's own plan, and whether it fits now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from launcher.engine_types import EngineOptions, KvType, MemoryPlan, ModelConfig, PlanTerm, SessionOptions
from launcher.errors import ResourceError
from launcher.memory import Memory
from launcher.messages import Catalogue
from launcher.progress import format_bytes

LADDER = tuple(1024 * step for step in (4, 8, 16, 32, 64, 128, 256))


class PlanPort(Protocol):
    """What the table needs of `launcher.engine.Package`."""

    config: ModelConfig

    def plan(self, engine: EngineOptions, session: SessionOptions) -> MemoryPlan: ...


class Verdict(Enum):
    """Whether a context can be used."""

    FITS = "fits"
    TOO_LARGE = "too-large"
    BEYOND_PACKAGE = "beyond-package"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRow:
    """One context in tokens; bytes by term. Terms are empty where the package does not allow the context."""

    context: int
    verdict: Verdict
    beyond_native: bool
    terms: tuple[PlanTerm, ...] = ()
    total: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextTable:
    """All rows with what they were held against. `available` is in bytes, or None where it is unknown."""

    name: str
    kv_type: KvType
    native: int
    package_limit: int
    available: int | None
    rows: tuple[ContextRow, ...]

    @property
    def largest(self) -> int | None:
        """The largest context that fits, in tokens."""
        return max((row.context for row in self.rows if row.verdict is Verdict.FITS), default=None)

    def document(self) -> dict[str, object]:
        """The JSON document; `launcher/schemas/list-contexts.json` describes it."""
        return {
            "schema": "mindnano-infer.list-contexts",
            "version": 1,
            "name": self.name,
            "kv_cache": self.kv_type.label,
            "native_context": self.native,
            "package_context": self.package_limit,
            "available_bytes": self.available,
            "largest": self.largest,
            "contexts": [
                {
                    "context": row.context,
                    "verdict": row.verdict.value,
                    "beyond_native": row.beyond_native,
                    "total_bytes": row.total,
                    "terms": {term.name: term.bytes for term in row.terms},
                }
                for row in self.rows
            ],
        }


def needed_bytes(plan: MemoryPlan) -> int:
    """What must be resident for full speed: everything that is allocated, and the mapped weights."""
    return plan.full_bytes


def build_table(
    package: PlanPort, name: str, engine: EngineOptions, kv_type: KvType, memory: Memory | None
) -> ContextTable:
    """Plans every context of the ladder; a package whose limit is not on it gets a row for its limit."""
    config = package.config
    available = None if memory is None else memory.available
    steps = sorted({*LADDER, *([config.max_context] if config.max_context < LADDER[-1] else [])})
    rows = []
    for context in steps:
        beyond_native = context > config.max_position
        if context > config.max_context:
            rows.append(ContextRow(context=context, verdict=Verdict.BEYOND_PACKAGE, beyond_native=beyond_native))
            continue
        plan = package.plan(engine, SessionOptions(context=context, kv_type=kv_type))
        total = needed_bytes(plan)
        fits = available is None or total <= available
        rows.append(
            ContextRow(
                context=context,
                verdict=Verdict.FITS if fits else Verdict.TOO_LARGE,
                beyond_native=beyond_native,
                terms=plan.terms,
                total=total,
            )
        )
    return ContextTable(
        name=name,
        kv_type=kv_type,
        native=config.max_position,
        package_limit=config.max_context,
        available=available,
        rows=tuple(rows),
    )


def require_fit(package: PlanPort, engine: EngineOptions, session: SessionOptions, memory: Memory | None) -> None:
    """Checks that the session fits into the memory that is available now.

    Raises:
        ResourceError: it does not; the hint names the largest context that does.
    """
    if memory is None:
        return
    needed = needed_bytes(package.plan(engine, session))
    if needed <= memory.available:
        return
    table = build_table(package, "", engine, session.kv_type, memory)
    advice = f"use --context {table.largest}" if table.largest else "free memory"
    raise ResourceError(
        "memory-plan",
        f"a context of {session.context} tokens needs {format_bytes(needed)}, "
        f"{format_bytes(memory.available)} are available",
        hint=f"{advice}, or --force to try all the same",
    )


def show_tokens(count: int) -> str:
    """``4096`` -> ``4K``; other numbers as they are."""
    return f"{count // 1024}K" if count % 1024 == 0 else str(count)


def table_text(table: ContextTable, texts: Catalogue) -> str:
    """The table for a person: a column per context, a row per term."""
    names = list(dict.fromkeys(term.name for row in table.rows for term in row.terms))
    lines = [[texts("contexts-context"), *(show_tokens(row.context) for row in table.rows)]]
    for name in names:
        sizes = ({term.name: term.bytes for term in row.terms}.get(name) for row in table.rows)
        lines.append([name, *("-" if size is None else format_bytes(size) for size in sizes)])
    lines.append([texts("contexts-total"), *(format_bytes(row.total) if row.terms else "-" for row in table.rows)])
    lines.append([texts("contexts-verdict"), *(_verdict_text(row, texts) for row in table.rows)])
    available = texts("unknown") if table.available is None else format_bytes(table.available)
    notes = [texts("contexts-none" if table.largest is None else "contexts-largest", context=_largest_text(table))]
    if any(row.verdict is Verdict.FITS and row.beyond_native for row in table.rows):
        notes.append(texts("contexts-beyond-native", native=show_tokens(table.native)))
    if any(row.verdict is Verdict.BEYOND_PACKAGE for row in table.rows):
        notes.append(texts("contexts-beyond-package", limit=show_tokens(table.package_limit)))
    title = texts("contexts-title", name=table.name, kv=table.kv_type.label, available=available)
    return "\n".join([title, "", *_aligned(lines), "", *notes])


def _largest_text(table: ContextTable) -> str:
    return "" if table.largest is None else show_tokens(table.largest)


def _verdict_text(row: ContextRow, texts: Catalogue) -> str:
    if row.verdict is Verdict.BEYOND_PACKAGE:
        return "-"
    if row.verdict is Verdict.TOO_LARGE:
        return texts("no")
    return texts("contexts-fits") + ("*" if row.beyond_native else "")


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """The first column left-aligned, the others right-aligned, by width on screen."""
    widths = [max(_width(cell) for cell in column) for column in zip(*lines, strict=True)]
    result = []
    for first, *rest in lines:
        cells = [" " * (width - _width(cell)) + cell for cell, width in zip(rest, widths[1:], strict=True)]
        result.append("  ".join([first + " " * (widths[0] - _width(first)), *cells]))
    return result


def _width(text: str) -> int:
    """Columns on screen: Chinese characters take two."""
    return sum(2 if ord(character) >= 0x2E80 else 1 for character in text)
