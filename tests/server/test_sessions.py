"""A reply that depends on who asked before, a prompt evaluated again for nothing, or memory beyond the budget."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import InternalError
from launcher.server.events import CacheSource
from launcher.server.request import MarkKind
from launcher.server.session_facts import Begun
from launcher.server.sessions import SessionStore
from tests.support.counted_memory import CountedMap
from tests.support.fake_sessions import FakeState
from tests.support.session_requests import PLENTY, SYSTEM, SYSTEM_MARK, ask, turn


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """All memory that the store takes, counted where it is allocated."""
    CountedMap.total = CountedMap.most = 0
    monkeypatch.setattr(mmap, "mmap", CountedMap)


def test_the_next_turn_of_a_live_session_evaluates_only_what_is_new() -> None:
    session = FakeState()
    store = SessionStore(session, budget=PLENTY)
    ask(store, session, [1, 2, 3], name="a", reply=[4, 5])
    assert ask(store, session, [1, 2, 3, 4, 5, 6, 7], name="a") == Begun(reused=5, source=CacheSource.LIVE)
    assert session.evaluated == 7


def test_sessions_that_alternate_keep_their_states() -> None:
    session = FakeState()
    store = SessionStore(session, budget=PLENTY)
    assert ask(store, session, [1, 2, 3], name="a", reply=[4]).source is CacheSource.NONE
    assert ask(store, session, [9, 8, 7], name="b", reply=[6]).source is CacheSource.NONE
    assert ask(store, session, [1, 2, 3, 4, 5], name="a") == Begun(reused=4, source=CacheSource.RAM)
    assert ask(store, session, [9, 8, 7, 6, 5], name="b") == Begun(reused=4, source=CacheSource.RAM)
    usage = store.usage()
    assert (usage.hits, usage.misses, usage.entries, usage.evictions) == (2, 2, 1, 0)


def test_a_reply_that_the_next_prompt_leaves_out_costs_one_turn_at_most() -> None:
    session = FakeState()
    store = SessionStore(session, budget=PLENTY)
    first = [*SYSTEM, *range(100, 120)]
    ask(store, session, first, name="a", marks=[SYSTEM_MARK, turn(38)], reply=range(900, 950))
    second = [*first[:38], *range(200, 210), *range(300, 320)]
    begun = ask(store, session, second, name="a", marks=[turn(48), turn(66)])
    assert begun == Begun(reused=38, source=CacheSource.LIVE)
    assert session.calls.count("import") == 0


def test_rolling_back_a_stored_session_goes_to_its_last_common_checkpoint() -> None:
    session = FakeState()
    store = SessionStore(session, budget=PLENTY)
    ask(store, session, range(40), name="a", marks=[(10, MarkKind.SYSTEM), turn(20), turn(30)])
    ask(store, session, [77, 78], name="b")
    begun = ask(store, session, [*range(25), 99, 98], name="a")
    assert begun == Begun(reused=20, source=CacheSource.RAM)
    assert session.slots == {0: 10, 1: 20}


def test_a_system_prompt_is_shared_and_nothing_of_another_conversation() -> None:
    session = FakeState()
    store = SessionStore(session, budget=PLENTY)
    ask(store, session, [*SYSTEM, 666, 667], name="a", owner="x", marks=[SYSTEM_MARK], reply=[668])
    begun = ask(store, session, [*SYSTEM, 555], name="b", owner="y", marks=[SYSTEM_MARK])
    assert begun == Begun(reused=20, source=CacheSource.LIVE)
    assert not {666, 667, 668} & set(session.tokens())
    # the first one was put away before the second one rolled back in its place
    begun = ask(store, session, [*SYSTEM, 666, 667, 668, 5], name="a", owner="x")
    assert begun == Begun(reused=23, source=CacheSource.RAM)


def test_equal_names_of_two_owners_are_two_sessions() -> None:
    session = FakeState()
    store = SessionStore(session, budget=PLENTY)
    ask(store, session, [1, 2, 3], name="a", owner="x")
    ask(store, session, [4, 5, 6], name="a", owner="y")
    assert [info.tokens for info in store.listing("x")] == [3]
    assert store.delete("x", "a")
    assert store.listing("x") == ()
    assert len(store.listing("y")) == 1


def test_nameless_requests_take_up_their_own_conversation() -> None:
    session = FakeState()
    store = SessionStore(session, budget=PLENTY)
    mark = [SYSTEM_MARK]
    ask(store, session, [*SYSTEM, 100, 101], marks=mark, reply=[102])
    ask(store, session, [*SYSTEM, 200, 201], marks=mark, reply=[202])
    assert store.usage().entries == 1  # a new conversation does not take the place of the first one
    assert ask(store, session, [*SYSTEM, 100, 101, 102, 103], marks=mark).reused == 23
    assert ask(store, session, [*SYSTEM, 200, 201, 202, 203], marks=mark).reused == 23
    assert store.usage().entries == 1  # and a continued one takes its own


def test_nameless_requests_of_another_owner_begin_a_conversation() -> None:
    session = FakeState()
    store = SessionStore(session, budget=PLENTY)
    ask(store, session, [1, 2, 3], owner="x", reply=[4])
    ask(store, session, [1, 2, 3, 4, 5], owner="y", reply=[6])
    assert ask(store, session, [1, 2, 3, 4, 9], owner="x").reused == 4
    assert store.usage().entries == 1


def test_the_same_prompt_again_leaves_its_last_id_to_evaluate() -> None:
    session = FakeState()
    store = SessionStore(session, budget=PLENTY)
    ask(store, session, range(1, 11), name="a", marks=[turn(8)])
    assert ask(store, session, range(1, 11), name="a").reused == 8


def test_turns_use_empty_slots_and_then_the_earliest() -> None:
    session = FakeState(checkpoints=3)
    store = SessionStore(session, budget=PLENTY)
    ask(store, session, range(50), name="a", marks=[(10, MarkKind.SYSTEM), turn(20), turn(30), turn(40)])
    assert session.slots == {0: 10, 1: 40, 2: 30}


@pytest.mark.parametrize("checkpoints", [0, 1])
def test_few_slots_are_enough(checkpoints: int) -> None:
    session = FakeState(checkpoints=checkpoints)
    store = SessionStore(session, budget=PLENTY)
    ask(store, session, range(50), name="a", marks=[(10, MarkKind.SYSTEM), turn(20)])
    begun = ask(store, session, [*range(30), 99], name="a")
    assert begun.reused == (20 if checkpoints else 0)


def test_without_a_budget_only_the_live_session_is_kept() -> None:
    session = FakeState()
    store = SessionStore(session, budget=0)
    ask(store, session, [1, 2, 3], name="a")
    assert ask(store, session, [1, 2, 3, 4], name="a").source is CacheSource.LIVE
    ask(store, session, [9, 8, 7], name="b")
    assert ask(store, session, [1, 2, 3, 4, 5], name="a") == Begun(reused=0, source=CacheSource.NONE)
    assert CountedMap.most == 0


def test_the_session_that_was_longest_unused_goes_first() -> None:
    session = FakeState(padding=0)
    store = SessionStore(session, budget=250)
    for name in ("a", "b", "c"):
        ask(store, session, [ord(name)] * 20, name=name)  # 88 bytes each
    ask(store, session, [ord("a")] * 21, name="a")  # a is now younger than b
    ask(store, session, [ord("d")] * 20, name="d")
    ask(store, session, [ord("e")] * 20, name="e")
    assert [info.name for info in store.listing("")] == ["a", "d", "e"]
    assert store.usage().evictions == 2
    assert CountedMap.most <= 250


def test_a_session_larger_than_the_budget_evicts_nothing() -> None:
    session = FakeState(padding=0)
    store = SessionStore(session, budget=100)
    ask(store, session, [1] * 20, name="a")
    ask(store, session, [2] * 100, name="b")
    ask(store, session, [3] * 10, name="c")
    assert [info.name for info in store.listing("")] == ["a", "c"]


def test_putting_one_away_does_not_evict_what_is_about_to_be_used() -> None:
    session = FakeState(padding=0)
    store = SessionStore(session, budget=100)
    ask(store, session, [1] * 20, name="a")
    ask(store, session, [2] * 20, name="b")
    assert ask(store, session, [1] * 21, name="a").reused == 20


def test_nothing_is_evicted_for_what_has_no_room_anyway() -> None:
    session = FakeState(padding=0)
    store = SessionStore(session, budget=200)
    ask(store, session, [1] * 30, name="large")
    ask(store, session, [2] * 5, name="small")
    ask(store, session, [3] * 40, name="larger")
    assert ask(store, session, [1] * 31, name="large").reused == 30  # which leaves no room to put the larger one away
    assert [info.name for info in store.listing("")] == ["large", "small"]


def test_evicted_memory_goes_back_to_the_system() -> None:
    size = 64 << 20
    session = FakeState(padding=size)

    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    def fill(buffer: Any) -> None:
        for offset in range(0, len(buffer), mmap.PAGESIZE):
            buffer[offset] = 1
        FakeState.export_into(session, buffer)

    session.export_into = fill  # type: ignore[method-assign]
    store = SessionStore(session, budget=size + 1000)
    before = resident()
    ask(store, session, [1, 2], name="a")
    store.begin(owner="", name="b", ids=[3, 4])
    assert resident() - before > size // 2
    store.delete("", "a")
    assert resident() - before < size // 2


def test_deleting_the_live_session_takes_its_state_out_of_the_engine() -> None:
    session = FakeState()
    store = SessionStore(session, budget=PLENTY)
    ask(store, session, [1, 2, 3], name="a")
    assert store.delete("", "a")
    assert not store.delete("", "a")
    assert store.listing("") == ()
    assert ask(store, session, [1, 2, 3, 4], name="a") == Begun(reused=0, source=CacheSource.NONE)


def test_deleting_while_the_reply_runs_lets_it_run() -> None:
    session = FakeState()
    store = SessionStore(session, budget=PLENTY)
    store.begin(owner="", name="a", ids=[1, 2, 3])
    session.eval([1, 2, 3])
    store.delete("", "a")
    session.eval([4])
    store.keep(MarkKind.TURN)
    store.end()
    ask(store, session, [7, 8], name="b")
    assert store.usage().entries == 0


@pytest.mark.parametrize("place", ["live", "ram", "newer"])
def test_what_is_deleted_between_two_turns_of_a_request_stays_away(place: str) -> None:
    """A request leaves the engine and comes back for a pause, and for each of its choices."""
    session = FakeState()
    store = SessionStore(session, budget=PLENTY)
    begun = store.begin(owner="", name="a", ids=[1, 2, 3])
    session.eval([1, 2, 3])
    store.end()
    if place == "ram":
        ask(store, session, [7, 8], name="b")
    assert store.delete("", "a")
    kept = set()
    if place == "newer":
        ask(store, session, [4, 4, 4], name="a")
        kept = {"a"}
    for _ in range(2):
        begun = store.begin(owner="", name="a", ids=[1, 2, 3, 4], before=begun)
        session.eval([1, 2, 3, 4][begun.reused :])
        store.end()
        assert {info.name for info in store.listing("")} - {"b"} == kept
    ask(store, session, [9], name=None)
    assert {info.name for info in store.listing("")} - {"b"} == kept
    assert store.usage().entries == (place != "live")
    if place == "newer":
        assert ask(store, session, [4, 4, 4, 4], name="a").reused == 3


@pytest.mark.parametrize("comes_back", [False, True])
def test_what_is_deleted_while_a_request_begins_stays_away(comes_back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have to be copied, or written, before it has the engine; a deletion meanwhile is as one while it runs."""
    session = FakeState()
    store = SessionStore(session, budget=PLENTY)
    before = ask(store, session, [1, 2, 3], name="a")
    ask(store, session, [7, 8, 9], name="b")
    export = session.export_into

    def export_and_lose(buffer: Any) -> None:
        export(buffer)
        assert store.delete("", "a")

    monkeypatch.setattr(session, "export_into", export_and_lose)
    begun = store.begin(owner="", name="a", ids=[1, 2, 3, 4], before=before if comes_back else None)
    monkeypatch.undo()
    assert begun.reused == 0
    session.eval([1, 2, 3, 4])
    store.end()
    assert [info.name for info in store.listing("")] == ["b"]
    begun = store.begin(owner="", name="a", ids=[1, 2, 3, 4, 5], before=begun)
    store.end()
    ask(store, session, [6], name="c")
    assert [info.name for info in store.listing("")] == ["b", "c"]
    assert ask(store, session, [1, 2, 3, 4, 5], name="a").reused == 0


def test_giving_its_name_away_is_no_use_of_a_conversation() -> None:
    """It is still the one that was not used for longest, and goes before those that were used since."""
    session = FakeState()
    store = SessionStore(session, budget=450)
    ask(store, session, range(100, 123), name="a")
    for token, name in ((7, "b"), (8, "c")):
        ask(store, session, [token] * 3, name=name)
    ask(store, session, range(200, 223), name="a")
    assert store.usage().evictions == 0
    ask(store, session, [9] * 3, name="d")
    assert store.usage().evictions == 1
    assert {info.name for info in store.listing("")} == {"a", "b", "c", "d"}


def test_discarding_leaves_nothing_of_a_failed_reply() -> None:
    session = FakeState()
    store = SessionStore(session, budget=PLENTY)
    store.begin(owner="", name="a", ids=[1, 2, 3])
    session.eval([1, 2])
    store.discard()
    assert session.tokens() == []
    assert ask(store, session, [1, 2, 3], name="a").reused == 0


@pytest.mark.parametrize("call", ["export", "import", "restore"])
def test_an_engine_that_refuses_costs_time_and_nothing_else(call: str) -> None:
    session = FakeState()
    store = SessionStore(session, budget=PLENTY)
    ask(store, session, range(30), name="a", marks=[turn(10)])
    session.failing = {call}
    ask(store, session, [5] * 30, name="b", marks=[turn(10)])
    ask(store, session, [*range(20), 99], name="a")
    ask(store, session, [*[5] * 20, 99], name="b")
    session.failing = set()
    ask(store, session, [*range(20), 99, 98], name="a")
    store.close()
    assert CountedMap.total == 0


def test_an_import_that_gives_other_ids_than_asked_for_is_not_used() -> None:
    session = FakeState()
    store = SessionStore(session, budget=PLENTY)
    ask(store, session, [1, 2, 3], name="a")
    ask(store, session, [4, 5, 6], name="b")
    entry = store._ram.entries()[0]
    entry.block.memory[8:12] = b"\x63\0\0\0"
    assert ask(store, session, [1, 2, 3, 4], name="a") == Begun(reused=0, source=CacheSource.NONE)


def test_an_empty_prompt_is_a_bug() -> None:
    with pytest.raises(InternalError):
        SessionStore(FakeState(), budget=0).begin(owner="", name=None, ids=[])
