"""The ladder of contexts: what each costs by the engine's own plan, and whether it fits now."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum

from launcher.engine_types import EngineOptions, KvType, PlanTerm, SessionOptions
from launcher.errors import MindnanoError, ResourceError
from launcher.memory import Memory
from launcher.memory_plan import PlanPort, ProcessPlan, Runtime, plan_process
from launcher.messages import Catalogue
from launcher.progress import format_bytes

LADDER = tuple(1024 * step for step in (4, 8, 16, 32, 64, 128, 256))
DEFAULT_CHECKPOINTS = 4
"""One for the beginning that all conversations share, three for turns: about 20 MiB each for Ling-3.0-tiny."""

_SCHEMA = "mindnano-infer.list-contexts"
_VERSION = 2
# Rows of the table: message, and the terms that it adds up. The first group does not depend on the context.
_FIXED_ROWS = (
    ("contexts-tables", ("package_tables",)),
    ("contexts-recurrent", ("recurrent_state", "conv_state")),
    ("contexts-checkpoints", ("prefix_checkpoints",)),
    ("contexts-session-cache", ("session_cache",)),
    ("contexts-npu", ("npu_staging",)),
)
_KV_TERMS = ("kv_cache",)
_MTP_TERMS = ("mtp_weights", "mtp_kv_cache")
_RUNTIME_TERMS = ("runtime",)
_NOT_SCRATCH = {
    "weights",
    *_KV_TERMS,
    *_MTP_TERMS,
    *_RUNTIME_TERMS,
    *(name for _, names in _FIXED_ROWS for name in names),
}


class Verdict(Enum):
    """Whether a context can be used."""

    FITS = "fits"
    TOO_LARGE = "too-large"
    BEYOND_PACKAGE = "beyond-package"


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextRow:
    """One context in tokens. There is no plan where the package does not allow the context.

    `kv_bytes` says what the attention cache would take in each format.
    """

    context: int
    verdict: Verdict
    beyond_native: bool
    plan: ProcessPlan | None = None
    kv_bytes: tuple[tuple[KvType, int], ...] = ()

    def document(self) -> dict[str, object]:
        """The row in JSON."""
        plan = self.plan
        terms = () if plan is None else plan.terms
        return {
            "context": self.context,
            "verdict": self.verdict.value,
            "beyond_native": self.beyond_native,
            "idle_bytes": None if plan is None else plan.idle,
            "full_bytes": None if plan is None else plan.full,
            "kv_cache_bytes": {kind.label: count for kind, count in self.kv_bytes},
            "terms": {term.name: {"bytes": term.bytes, "idle": term.idle, "full": term.full} for term in terms},
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextTable:
    """All rows with what they were held against. `available` is in bytes, or None where it is unknown."""

    name: str
    kv_type: KvType
    mtp: bool
    checkpoints: int
    session_cache: int
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
            "schema": _SCHEMA,
            "version": _VERSION,
            "name": self.name,
            "kv_cache": self.kv_type.label,
            "mtp": self.mtp,
            "prefix_checkpoints": self.checkpoints,
            "session_cache_bytes": self.session_cache,
            "native_context": self.native,
            "package_context": self.package_limit,
            "available_bytes": self.available,
            "largest": self.largest,
            "contexts": [row.document() for row in self.rows],
        }


def failure_document(error: MindnanoError) -> dict[str, object]:
    """The JSON document where there is no table; the same schema describes it."""
    return {
        "schema": _SCHEMA,
        "version": _VERSION,
        "exit_code": error.exit_code,
        "error": {"slug": error.slug, "message": error.message, "hint": error.hint},
    }


def build_table(
    package: PlanPort,
    name: str,
    engine: EngineOptions,
    kv_type: KvType,
    memory: Memory | None,
    *,
    checkpoints: int = DEFAULT_CHECKPOINTS,
    session_cache: int = 0,
    runtime: Runtime | None = None,
) -> ContextTable:
    """Plans every context of the ladder; a package whose limit is not on it gets a row for its limit.

    Args:
        package: the open package.
        name: for the title.
        engine: the engine that would run.
        kv_type: format of the attention cache.
        memory: what is available; None where that is unknown, and everything fits.
        checkpoints: slots for positions to return to.
        session_cache: budget for whole sessions, bytes.
        runtime: the program around the engine; a typical one by default.
    """
    config = package.config
    available = None if memory is None else memory.available
    steps = sorted({*LADDER, *([config.max_context] if config.max_context < LADDER[-1] else [])})
    rows = []
    for context in steps:
        beyond_native = context > config.max_position
        if context > config.max_context:
            rows.append(ContextRow(context=context, verdict=Verdict.BEYOND_PACKAGE, beyond_native=beyond_native))
            continue
        session = SessionOptions(
            context=context, kv_type=kv_type, checkpoints=checkpoints, session_cache_bytes=session_cache
        )
        plan = plan_process(package, engine, session, runtime or Runtime.typical())
        fits = available is None or plan.full <= available
        rows.append(
            ContextRow(
                context=context,
                verdict=Verdict.FITS if fits else Verdict.TOO_LARGE,
                beyond_native=beyond_native,
                plan=plan,
                kv_bytes=tuple((kind, _kv_bytes(package, engine, session, kind)) for kind in KvType),
            )
        )
    return ContextTable(
        name=name,
        kv_type=kv_type,
        mtp=engine.mtp,
        checkpoints=checkpoints,
        session_cache=session_cache,
        native=config.max_position,
        package_limit=config.max_context,
        available=available,
        rows=tuple(rows),
    )


def _kv_bytes(package: PlanPort, engine: EngineOptions, session: SessionOptions, kind: KvType) -> int:
    plan = package.plan(engine, replace(session, kv_type=kind))
    return sum(term.bytes for term in plan.terms if term.name in _KV_TERMS)


def require_fit(
    package: PlanPort,
    engine: EngineOptions,
    session: SessionOptions,
    memory: Memory | None,
    runtime: Runtime | None = None,
) -> None:
    """Checks that the session fits into the memory that is available now, with its context full.

    Raises:
        ResourceError: it does not; the hint names the largest context that does, and what else would help.
    """
    if memory is None:
        return
    around = runtime or Runtime.typical()
    needed = plan_process(package, engine, session, around).full
    if needed <= memory.available:
        return
    table = build_table(
        package,
        "",
        engine,
        session.kv_type,
        memory,
        checkpoints=session.checkpoints,
        session_cache=session.session_cache_bytes,
        runtime=around,
    )
    ways = [f"--context {table.largest}"] if table.largest else []
    beside = sum(term.full for term in around.terms(package.config, session.context))
    ways += _other_ways(package, engine, session, memory.available - beside)
    advice = f"use {' or '.join(ways)}" if ways else "free memory"
    raise ResourceError(
        "memory-plan",
        f"a context of {session.context} tokens needs {format_bytes(needed)} when it is full, "
        f"{format_bytes(memory.available)} are available",
        hint=f"{advice}, or --force to try all the same",
    )


def _other_ways(package: PlanPort, engine: EngineOptions, session: SessionOptions, room: int) -> list[str]:
    """What to type so that the same context fits into `room` bytes; one option each, only those that are enough."""

    def fits(other_engine: EngineOptions, other_session: SessionOptions) -> bool:
        return package.plan(other_engine, other_session).full_bytes <= room

    beyond = package.plan(engine, session).full_bytes - room
    cache = max(session.session_cache_bytes - beyond, 0) >> 20
    ways = []
    if 0 < beyond <= session.session_cache_bytes and fits(engine, replace(session, session_cache_bytes=cache << 20)):
        ways.append(f"--session-cache-mib {cache}")
    kinds = sorted(KvType, key=lambda kind: -_kv_bytes(package, engine, session, kind))
    kind = next((kind for kind in kinds if fits(engine, replace(session, kv_type=kind))), None)
    if kind is not None:
        ways.append(f"--kv-cache {kind.label}")
    if fits(engine, replace(session, checkpoints=0)):
        ways.append("--prefix-checkpoints 0")
    if fits(replace(engine, threads=1), session):
        ways.append("--threads 1")
    return ways


def show_tokens(count: int) -> str:
    """``4096`` -> ``4K``; other numbers as they are."""
    return f"{count // 1024}K" if count % 1024 == 0 else str(count)


def table_text(table: ContextTable, texts: Catalogue) -> str:
    """The table for a person: what every context costs, then a line per context. Sizes in MiB."""
    planned = [row for row in table.rows if row.plan is not None]
    available = texts("unknown") if table.available is None else format_bytes(table.available)
    lines = [texts("contexts-title", name=table.name, available=available), ""]
    if planned:
        lines += [*_aligned(_fixed_rows(planned[0], texts)), ""]
    heads = (
        "contexts-context",
        "contexts-kv",
        "contexts-scratch",
        "contexts-idle",
        "contexts-full",
        "contexts-verdict",
    )
    body = [[texts(head, kv=table.kv_type.label) for head in heads]]
    body += [_context_row(row, texts) for row in table.rows]
    lines += [*_aligned(body), ""]
    lines.append(texts("contexts-none" if table.largest is None else "contexts-largest", context=_largest_text(table)))
    if any(row.beyond_native for row in planned):
        lines.append(texts("contexts-beyond-native", native=show_tokens(table.native)))
    if any(row.verdict is Verdict.BEYOND_PACKAGE for row in table.rows):
        lines.append(texts("contexts-beyond-package", limit=show_tokens(table.package_limit)))
    return "\n".join(lines)


def _fixed_rows(row: ContextRow, texts: Catalogue) -> list[list[str]]:
    terms = () if row.plan is None else row.plan.terms
    weights = [term for term in terms if term.name == "weights"]
    result = [[texts(f"contexts-{column}") for column in ("fixed", "reserved", "idle", "full")]]
    result.append([texts("contexts-weights-mapped"), _mib(sum(term.bytes for term in weights)), "", ""])
    result.append([texts("contexts-weights-resident"), "", *_sums(weights)[1:]])
    groups = [*_FIXED_ROWS, ("contexts-mtp", ("mtp_weights",)), ("contexts-runtime", _RUNTIME_TERMS)]
    for slug, names in groups:
        found = [term for term in terms if term.name in names]
        if found:
            result.append([texts(slug), *_sums(found)])
    return result


def _context_row(row: ContextRow, texts: Catalogue) -> list[str]:
    if row.plan is None:
        return [show_tokens(row.context), "", "", "", "", "-"]
    caches = [term.full for term in row.plan.terms if term.name in {*_KV_TERMS, "mtp_kv_cache"}]
    scratch = [term.full for term in row.plan.terms if term.name not in _NOT_SCRATCH]
    verdict = texts("no") if row.verdict is Verdict.TOO_LARGE else texts("contexts-fits")
    return [
        show_tokens(row.context),
        *map(_mib, (sum(caches), sum(scratch), row.plan.idle, row.plan.full)),
        verdict + ("*" if row.beyond_native else ""),
    ]


def _sums(terms: Sequence[PlanTerm]) -> list[str]:
    return [_mib(sum(getattr(term, column) for term in terms)) for column in ("bytes", "idle", "full")]


def _mib(count: int) -> str:
    value = count / (1 << 20)
    return f"{value:,.0f}" if value >= 100 or count == 0 else f"{value:.1f}"


def _largest_text(table: ContextTable) -> str:
    return "" if table.largest is None else show_tokens(table.largest)


def _aligned(lines: Sequence[Sequence[str]]) -> list[str]:
    """The first column left-aligned, the others right-aligned, by width on screen."""
    widths = [max(_width(cell) for cell in column) for column in zip(*lines, strict=True)]
    result = []
    for first, *rest in lines:
        cells = [" " * (width - _width(cell)) + cell for cell, width in zip(rest, widths[1:], strict=True)]
        result.append("  ".join([first + " " * (widths[0] - _width(first)), *cells]).rstrip())
    return result


def _width(text: str) -> int:
    """Columns on screen: Chinese characters take two."""
    return sum(2 if ord(character) >= 0x2E80 else 1 for character in text)
