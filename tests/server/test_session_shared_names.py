"""Conversations that share a name and lose their states to each other: clients give one `user` or one
`prompt_cache_key` to many."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import Cancelled
from launcher.server import session_file
from launcher.server.events import CacheSource
from launcher.server.session_facts import Begun
from tests.support.session_server import Server

SYSTEM = list(range(1, 21))
ONE = [*SYSTEM, 100, 101, 102]
TWO = [*SYSTEM, 200, 201, 202]
SHARED = len(SYSTEM)


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "sessions")


def alternate(server: Server) -> None:
    assert server.ask(ONE, system=SHARED).reused == 0
    assert server.ask(TWO, system=SHARED) == Begun(reused=SHARED, source=CacheSource.LIVE)


def test_conversations_of_one_name_each_find_their_own_state(server: Server) -> None:
    alternate(server)
    for more in range(1, 4):
        for talk in (ONE, TWO):
            prompt = [*talk, *range(300, 300 + more)]
            begun = server.ask(prompt, system=SHARED)
            assert begun == Begun(reused=len(prompt) - 1, source=CacheSource.RAM)
            assert server.store.usage().entries == 1  # the one that goes on leaves no older state of it behind


def test_a_conversation_that_is_not_live_gives_its_name_away_as_well(server: Server) -> None:
    server.ask(ONE, system=SHARED)
    server.ask([9, 9, 9], name="other")
    server.ask(TWO, system=SHARED)
    assert server.ask([*ONE, 5], system=SHARED).reused == len(ONE)
    assert server.ask([*TWO, 5], system=SHARED).reused == len(TWO)


def test_a_next_turn_that_rolls_back_is_the_same_conversation_and_no_copy_is_made(server: Server) -> None:
    server.ask([*ONE, 103], system=SHARED, mark=len(ONE))
    assert server.ask([*ONE, 7, 8], system=SHARED) == Begun(reused=len(ONE), source=CacheSource.LIVE)
    assert server.store.usage().entries == 0
    assert "export" not in server.session.calls


def test_the_latest_conversation_is_the_one_that_is_told_of_and_saved(server: Server) -> None:
    alternate(server)
    assert [(info.name, info.tokens, info.place) for info in server.store.listing("")] == [
        ("a", len(TWO), CacheSource.LIVE)
    ]
    later = server.restart()
    assert len(later.saved()) == 1
    assert later.ask([*TWO, 5], system=SHARED) == Begun(reused=len(TWO), source=CacheSource.DISK)


def test_sleeping_takes_an_earlier_conversation_for_no_file(server: Server) -> None:
    alternate(server)
    server.store.put_to_sleep()
    assert server.reports == []
    assert len(server.saved()) == 1
    assert server.ask([*ONE, 5], system=SHARED) == Begun(reused=len(ONE), source=CacheSource.RAM)


def test_deleting_a_name_forgets_every_conversation_that_had_it(server: Server) -> None:
    alternate(server)
    server.ask([*SYSTEM, 300, 301], owner="somebody else", system=SHARED)
    assert server.store.delete("", "a")
    for talk in (ONE, TWO):
        assert server.ask([*talk, 5], name="b").reused <= SHARED
    assert len(server.store.listing("somebody else")) == 1


def test_an_earlier_conversation_is_nobody_elses(server: Server) -> None:
    alternate(server)
    assert server.ask([*ONE, 5], name="b", system=SHARED).reused == len(ONE)  # equal beginnings lead to equal states
    begun = server.ask([*ONE, 5], system=SHARED)
    assert begun.reused == len(ONE)
    assert {info.name: info.tokens for info in server.store.listing("")} == {"a": len(ONE) + 1, "b": len(ONE) + 1}


def test_a_request_that_leaves_while_room_is_made_changes_no_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_file, "PIECE", 16)
    server = Server(tmp_path / "s", budget=200)
    server.ask([9] * 5, name="b")
    server.ask(ONE, system=SHARED)
    with pytest.raises(Cancelled):
        server.store.begin(owner="", name="a", ids=TWO, is_stopped=lambda: True)
    assert {info.name: info.tokens for info in server.store.listing("")} == {"a": len(ONE), "b": 5}
    assert server.ask([*ONE, 5]) == Begun(reused=len(ONE), source=CacheSource.LIVE)


def test_a_request_that_ends_before_it_has_read_anything_takes_no_name(server: Server) -> None:
    """The conversation that had it would be told of no more, and never saved."""
    alternate(server)
    begun = server.store.begin(owner="", name="a", ids=[7, 7, 7])
    assert begun.reused == 0
    server.store.end()
    assert [(info.tokens, info.place) for info in server.store.listing("")] == [(len(TWO), CacheSource.RAM)]
    assert server.store.usage().entries == 2
    server.store.begin(owner="", name=None, ids=[7, 7, 7])
    server.store.end()
    assert server.store.usage().entries == 2
    later = server.restart()
    assert later.ask([*TWO, 5], system=SHARED) == Begun(reused=len(TWO), source=CacheSource.DISK)


def test_without_room_the_newer_conversation_has_the_name(tmp_path: Path) -> None:
    server = Server(tmp_path / "s", budget=10)
    alternate(server)
    assert server.ask([*TWO, 5]) == Begun(reused=len(TWO), source=CacheSource.LIVE)
    assert server.ask([*ONE, 5]).reused == SHARED
