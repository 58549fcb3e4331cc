"""A conversation that is lost or overwritten while it moves, memory that nobody counts, or another caller's answer that
depends on what somebody sent."""

from __future__ import annotations

from array import array
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import Cancelled, RequestError
from launcher.server.session_entries import Entry, Key, Ram
from launcher.server.session_transfer import Loan, Room, Transfers
from tests.support.moving_sessions import Exchange
from tests.support.session_server import Server

IDS = [1, 2, 3, 4, 5]


def refused(call: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        call()
    return caught.value


def copied(source: Exchange | Server, target: Exchange | Server, *, owner: str = "", name: str = "a") -> bool:
    loan = source.store.transfers.lend("", "a")
    room = target.store.transfers.reserve(owner, name, loan.entry.block.size)
    room.block.memory[:] = loan.entry.block.memory[:]
    is_new = target.store.transfers.accept(room, array("i", loan.entry.ids), loan.entry.checkpoints)
    loan.close()
    room.close()
    return is_new


def test_what_is_lent_stays_as_it_was_and_is_given_back() -> None:
    here = Exchange()
    here.say(IDS)
    loan = here.store.transfers.lend("", "a")
    before = bytes(loan.entry.block.memory)
    assert here.bytes == loan.entry.block.size
    here.say([*IDS, 6, 7])
    assert here.store.delete("", "a")
    assert bytes(loan.entry.block.memory) == before
    loan.close()
    loan.close()
    assert here.bytes == 0


def test_what_is_lent_from_memory_is_neither_copied_nor_evicted_nor_freed() -> None:
    here = Exchange(budget=400)
    here.say(IDS)
    here.say([9] * 5, name="b")
    held = here.bytes
    loan = here.store.transfers.lend("", "a")
    assert here.bytes == held
    here.say([8] * 60, name="c")  # "b" would have room only in the place of "a"
    here.say([7] * 60, name="d")
    assert list(loan.entry.ids) == IDS
    assert here.store.delete("", "a")
    assert here.bytes >= loan.entry.block.size
    assert len(bytes(loan.entry.block.memory)) == loan.entry.block.size
    loan.close()
    assert here.bytes <= 400


def test_what_is_saved_alone_is_lent_too(tmp_path: Path) -> None:
    server = Server(tmp_path / "sessions")
    server.ask(IDS)
    server = server.restart()
    loan = server.store.transfers.lend("", "a")
    assert list(loan.entry.ids) == IDS
    loan.close()


def test_a_file_that_finds_no_room_is_told_apart_from_none(tmp_path: Path) -> None:
    server = Server(tmp_path / "sessions")
    server.ask(IDS)
    server = server.restart(budget=10)
    error = refused(lambda: server.store.transfers.lend("", "a"))
    assert (error.slug, error.status) == ("session_cache_full", 507)


def test_what_is_deleted_just_before_it_is_lent_is_not_lent(monkeypatch: pytest.MonkeyPatch) -> None:
    here = Exchange()
    here.say(IDS)
    here.say([9, 9], name="b")
    get = Ram.get

    def get_and_lose(ram: Ram, key: Key) -> Entry | None:
        entry = get(ram, key)
        assert here.store.delete("", "a")
        return entry

    monkeypatch.setattr(Ram, "get", get_and_lose)
    error = refused(lambda: here.store.transfers.lend("", "a"))
    assert (error.slug, error.status, here.bytes) == ("session_not_found", 404, 0)


def test_nobody_elses_and_no_nameless_session_is_lent() -> None:
    here = Exchange()
    here.say(IDS, owner="one")
    here.say([9, 9], name=None, owner="one")
    for owner, name in (("two", "a"), ("", "a"), ("one", "b"), ("one", "")):
        error = refused(lambda owner=owner, name=name: here.store.transfers.lend(owner, name))
        assert (error.slug, error.status) == ("session_not_found", 404)
    here.store.transfers.lend("one", "a").close()


def test_while_a_reply_is_made_nothing_leaves_and_nothing_comes() -> None:
    here, there = Exchange(), Exchange()
    there.say(IDS)
    room = here.store.transfers.reserve("", "a", 10)
    here.store.begin(owner="", name="a", ids=IDS)
    transfers: Transfers = here.store.transfers
    for call in (
        lambda: transfers.lend("", "a"),
        lambda: transfers.reserve("", "a", 10),
        lambda: transfers.accept(room, array("i", IDS), {}),
    ):
        error = refused(call)
        assert (error.slug, error.status) == ("session_in_use", 409)
    room.close()
    assert here.bytes == 0
    assert here.store.transfers.reserve("", "other", 10).block.size == 10


def test_memory_is_counted_before_it_is_there_and_given_back() -> None:
    here = Exchange(budget=1000)
    room = here.store.transfers.reserve("", "a", 600)
    assert here.bytes == 600
    error = refused(lambda: here.store.transfers.reserve("", "b", 600))
    assert (error.slug, error.status) == ("session_cache_full", 507)
    assert "600" in error.message
    assert "1000" in error.message
    assert here.bytes == 600
    room.close()
    room.close()
    assert here.bytes == 0


def test_room_that_is_of_no_use_evicts_nobody() -> None:
    here = Exchange(budget=1000)
    here.say(IDS)
    here.say([9, 9], name="b")
    kept = here.bytes
    with pytest.raises(RequestError):
        here.store.transfers.reserve("", "c", 1001)
    room = here.store.transfers.reserve("", "c", 500)
    with pytest.raises(RequestError):
        here.store.transfers.reserve("", "d", 501)
    assert here.bytes == kept + 500
    room.close()


@pytest.mark.parametrize("way", ["lend", "reserve"])
def test_what_must_be_saved_to_make_room_gives_way_to_a_reply_that_is_to_end(tmp_path: Path, way: str) -> None:
    server = Server(tmp_path / "sessions", budget=280)
    server.ask(IDS, name="old")
    server.ask([7] * 40, name="live")
    transfers, before = server.store.transfers, server.store.usage()

    def move(*, is_stopped: bool) -> Loan | Room:
        if way == "lend":
            return transfers.lend("", "live", lambda: is_stopped)
        return transfers.reserve("", "new", 250, lambda: is_stopped)

    with pytest.raises(Cancelled):
        move(is_stopped=True)
    assert server.store.usage() == before
    assert server.saved() == []
    move(is_stopped=False).close()
    assert len(server.saved()) == 1


def test_the_one_that_is_to_be_replaced_is_there_until_then() -> None:
    here = Exchange(budget=300)
    here.say(IDS)
    here.say([9, 9], name="b")
    size = here.bytes
    error = refused(lambda: here.store.transfers.reserve("", "a", 300 - size + 1))
    assert error.status == 507
    assert here.bytes == size
    assert here.say([*IDS, 6]) == len(IDS)


@pytest.mark.parametrize("place", ["live", "ram", "nowhere"])
def test_what_comes_takes_the_place_of_what_was_there(place: str) -> None:
    here, there = Exchange(), Exchange()
    there.say([7, 7, 7, 7])
    if place != "nowhere":
        here.say(IDS)
    if place == "ram":
        here.say([9, 9], name="b")
    assert copied(there, here) is (place == "nowhere")
    assert [(info.name, info.tokens) for info in here.store.listing("") if info.name == "a"] == [("a", 4)]
    assert here.say([*IDS, 6]) == 0
    here.store.delete("", "a")
    copied(there, here)
    assert here.say([7, 7, 7, 7, 8]) == 4


def test_what_comes_is_saved_in_the_place_of_the_older_file(tmp_path: Path) -> None:
    there = Exchange(padding=50)
    there.say([7, 7, 7, 7])
    server = Server(tmp_path / "sessions")
    server.ask(IDS)
    server = server.restart()
    loan = there.store.transfers.lend("", "a")
    room = server.store.transfers.reserve("", "a", loan.entry.block.size)
    room.block.memory[:] = loan.entry.block.memory[:]
    assert not server.store.transfers.accept(room, array("i", loan.entry.ids), {})
    loan.close()
    room.close()
    server = server.restart()
    assert server.ask([7, 7, 7, 7, 8]).reused == 4


def test_no_other_conversation_goes_on_from_what_somebody_sent() -> None:
    """Its numbers may be any: a forged state for the system text of everybody would speak in everybody's replies. Where
    there are no keys, everybody is one owner."""
    here, there = Exchange(), Exchange()
    there.say(IDS)
    copied(there, here, owner="one")
    assert here.say([*IDS, 9], owner="two", name=None) == 0
    assert here.say([*IDS, 9, 9], owner="two", name="a") == 6  # its own
    assert here.say([*IDS, 8], owner="one", name=None) == 0
    # What goes on from it is no better.
    here = Exchange()
    copied(there, here, owner="one")
    assert here.say([*IDS, 6, 7], owner="one") == 5
    assert here.say([*IDS, 6, 7, 8], owner="two") == 0
    here.say([9, 9], owner="two")
    assert here.say([*IDS, 6, 7, 8], owner="three") == 0


def test_numbers_that_the_engine_fails_with_are_not_met_again(tmp_path: Path) -> None:
    """Else every turn of the conversation would fail until it is deleted."""
    there = Exchange(padding=50)
    there.say(IDS)
    server = Server(tmp_path / "sessions")
    copied(there, server)
    server = server.restart()
    assert server.store.begin(owner="", name="a", ids=[*IDS, 6]).reused == 5
    server.store.discard()
    assert server.store.begin(owner="", name="a", ids=[*IDS, 6]).reused == 0
    server.session.eval([*IDS, 6])
    server.store.end()
    server = server.restart()
    assert server.store.begin(owner="", name="a", ids=[*IDS, 6, 7]).reused == 6
    server.store.discard()  # its own numbers: the engine's failure is another
    assert server.store.begin(owner="", name="a", ids=[*IDS, 6, 7]).reused == 6


def test_nor_are_they_where_they_left_their_name_to_the_conversation_that_failed(tmp_path: Path) -> None:
    there, server = Server(tmp_path / "there"), Server(tmp_path / "here")
    there.ask(IDS, system=3)
    copied(there, server)
    other = [*IDS[:3], 8, 8]
    assert server.store.begin(owner="", name="a", ids=other).reused == 3
    server.store.discard()
    assert server.store.begin(owner="", name="a", ids=other).reused == 0
    server.store.end()
    assert server.store.usage().bytes == 0


def test_room_that_was_given_back_is_not_put_in_a_conversations_place() -> None:
    """Whoever waited for the answer may be gone while the generation thread comes to it."""
    here = Exchange()
    here.say(IDS)
    room = here.store.transfers.reserve("", "a", 100)
    room.close()
    assert refused(lambda: here.store.transfers.accept(room, array("i", [7, 7]), {})).slug == "cancelled"
    assert here.bytes == 0
    assert here.say([*IDS, 6]) == len(IDS)
    room = here.store.transfers.reserve("", "b", 100)
    assert here.store.transfers.accept(room, array("i", [7, 7]), {})
    room.close()
    assert here.bytes == 100


def test_a_cold_start_is_everybodys_again() -> None:
    here, there = Exchange(), Exchange()
    there.say(IDS)
    copied(there, here, owner="one")
    assert here.say([9, 8, 7], owner="one") == 0
    assert here.say([9, 8, 7, 6], owner="two", name="b") == 3


def test_a_restart_does_not_make_it_trusted(tmp_path: Path) -> None:
    there = Exchange(padding=50)
    there.say(IDS)
    server = Server(tmp_path / "sessions")
    copied(there, server, owner="one")
    server = server.restart()
    assert server.ask([*IDS, 6], owner="one").reused == 5
    assert server.ask([*IDS, 6, 7], owner="two").reused == 0
    server = server.restart()
    assert server.ask([*IDS, 6, 7], owner="one").reused == 6
    assert server.ask([*IDS, 6, 7, 8], owner="three").reused == 0
