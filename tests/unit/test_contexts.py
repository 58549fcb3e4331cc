"""A context that is said to fit and does not, a table that leaves out a term, advice that does not help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from launcher.contexts import Verdict, build_table, require_fit, table_text
from launcher.engine_types import EngineOptions, KvType, MemoryPlan, PlanTerm, SessionOptions
from launcher.errors import ResourceError
from launcher.memory import Memory
from launcher.messages import Catalogue, Language


@dataclass
class Limits:
    max_context: int
    max_position: int


@dataclass
class FakePackage:
    config: Any

    def plan(self, engine: EngineOptions, session: SessionOptions) -> MemoryPlan:
        if session.context > self.config.max_context:
            raise AssertionError("planned a context that the package does not allow")
        terms = (
            PlanTerm(name="weights", bytes=1000, idle=1000, full=1000),
            PlanTerm(name="kv_cache", bytes=session.context, idle=0, full=session.context),
        )
        return MemoryPlan(
            terms=terms,
            allocated_bytes=session.context,
            mapped_bytes=1000,
            idle_bytes=1000,
            full_bytes=1000 + session.context,
            bytes_per_token=1,
        )


def memory(available: int) -> Memory:
    return Memory(total=1 << 40, available=available, cgroup_limit=None)


def table(max_context: int, max_position: int, available: int | None) -> Any:
    package = FakePackage(Limits(max_context, max_position))
    known = None if available is None else memory(available)
    return build_table(package, "m", EngineOptions(), KvType.BF16, known)


def test_verdicts() -> None:
    found = table(65536, 16384, 33768)
    verdicts = {row.context: row.verdict for row in found.rows}
    assert verdicts[16384] is Verdict.FITS
    assert verdicts[32768] is Verdict.FITS
    assert verdicts[65536] is Verdict.TOO_LARGE
    assert verdicts[131072] is Verdict.BEYOND_PACKAGE
    assert [row.context for row in found.rows if row.beyond_native] == [32768, 65536, 131072, 262144]
    assert found.largest == 32768


def test_small_package_gets_a_row_for_its_own_limit() -> None:
    assert table(1000, 1000, None).largest == 1000


def test_text_has_every_term_and_verdict() -> None:
    text = table_text(table(65536, 16384, 33768), Catalogue(Language.ENGLISH))
    for word in (
        "weights",
        "kv_cache",
        "total",
        "256K",
        "fits*",
        "no",
        "largest that fits: 32K",
        "* beyond the 16K",
    ):
        assert word in text
    widths = {len(line) for line in text.splitlines() if line.startswith(("context", "kv_cache", "total", "verdict"))}
    assert len(widths) == 1


def test_session_that_does_not_fit_is_refused_with_the_largest_that_does() -> None:
    package = FakePackage(Limits(262144, 262144))
    with pytest.raises(ResourceError) as caught:
        require_fit(package, EngineOptions(), SessionOptions(context=65536), memory(20000))
    assert caught.value.exit_code == 5
    assert "--context 16384" in caught.value.hint


def test_session_that_fits_exactly_passes() -> None:
    package = FakePackage(Limits(262144, 262144))
    require_fit(package, EngineOptions(), SessionOptions(context=4096), memory(5096))
    with pytest.raises(ResourceError):
        require_fit(package, EngineOptions(), SessionOptions(context=4096), memory(5095))


def test_unknown_memory_refuses_nothing() -> None:
    require_fit(FakePackage(Limits(262144, 1)), EngineOptions(), SessionOptions(context=262144), None)
