"""A reply that depends on who asked before, in any order of requests, deletions and failures."""

from __future__ import annotations

import mmap
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from launcher.server.events import CacheSource
from launcher.server.request import MarkKind
from launcher.server.sessions import SessionStore
from tests.support.counted_memory import CountedMap
from tests.support.fake_sessions import FakeState
from tests.support.session_requests import SYSTEM

OWNERS = ("x", "y")
NAMES = (None, "a", "b", "c")
MARKERS = {(owner, name): 1000 + 10 * i + j for i, owner in enumerate(OWNERS) for j, name in enumerate(NAMES)}


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """All memory that the store takes, counted where it is allocated."""
    CountedMap.total = CountedMap.most = 0
    monkeypatch.setattr(mmap, "mmap", CountedMap)


@st.composite
def requests(draw: st.DrawFn) -> list[tuple[Any, ...]]:
    steps: list[tuple[Any, ...]] = []
    for _ in range(draw(st.integers(1, 25))):
        owner, name = draw(st.sampled_from(OWNERS)), draw(st.sampled_from(NAMES))
        kind = draw(st.sampled_from(["ask"] * 8 + ["cancel", "delete", "discard", "fail"]))
        common = draw(st.integers(0, 12))
        tail = draw(st.lists(st.integers(1, 3), max_size=8))
        steps.append((kind, owner, name, common, tail, draw(st.lists(st.integers(1, 12), max_size=3))))
    return steps


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=requests(), budget=st.integers(0, 800), checkpoints=st.integers(0, 4))
def test_any_order_of_requests_gives_what_cold_runs_give(
    steps: list[tuple[Any, ...]], budget: int, checkpoints: int
) -> None:
    CountedMap.total = CountedMap.most = 0
    session = FakeState(checkpoints=checkpoints, padding=20)
    store = SessionStore(session, budget=budget)
    for kind, owner, name, common, tail, places in steps:
        marker = MARKERS[owner, name]
        prompt = [*SYSTEM[:common], marker, *tail, 5]
        if kind == "delete" and name is not None:
            store.delete(owner, name)
            assert name not in {info.name for info in store.listing(owner)}
            continue
        session.failing = {("export", "import", "restore")[common % 3]} if kind == "fail" else set()
        begun = store.begin(owner=owner, name=name, ids=prompt)
        session.failing = set()
        assert session.tokens() == prompt[: begun.reused]
        assert begun.reused < len(prompt)
        assert (begun.reused == 0) == (begun.source is CacheSource.NONE)
        for place in sorted({*places, common}):
            if session.position < place < len(prompt):
                session.eval(prompt[session.position : place])
                store.keep(MarkKind.SYSTEM if place == common else MarkKind.TURN)
        if kind == "discard":
            store.discard()
            continue
        if kind != "cancel":
            session.eval(prompt[session.position :])
            cold = FakeState(timeline=list(prompt))
            assert session.next_token() == cold.next_token()
            session.eval([marker, 9])
        assert not (set(MARKERS.values()) - {marker}) & set(session.tokens())
        assert all(position <= session.position for position in session.slots.values())
        store.end()
        assert CountedMap.total == store.usage().bytes
    assert CountedMap.most <= budget
    store.close()
    assert CountedMap.total == store.usage().bytes == 0
