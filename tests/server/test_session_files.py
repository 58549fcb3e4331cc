"""A saved session that is lost, written too often or too late, or larger than the disk may take."""

from __future__ import annotations

import errno
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import Cancelled, RequestError
from launcher.server import session_file
from launcher.server.events import CacheSource
from launcher.server.session_entries import Key, token_array
from launcher.server.session_facts import Begun
from launcher.server.session_files import Loaded, Saved
from launcher.server.sessions import RETRY_SECONDS, SETTLE_SECONDS
from tests.support.session_server import Server


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "sessions")


def test_a_session_survives_a_restart(server: Server) -> None:
    server.ask([1, 2, 3, 4], mark=2)
    later = server.restart()
    assert [(info.name, info.tokens, info.place) for info in later.store.listing("")] == [("a", 4, CacheSource.DISK)]
    assert later.ask([1, 2, 3, 4, 5]) == Begun(reused=4, source=CacheSource.DISK)
    assert later.store.usage().entries == 0  # what was loaded is live and no longer in memory
    assert later.restart().ask([1, 2, 9]) == Begun(reused=2, source=CacheSource.DISK)


def test_a_saved_session_that_agrees_with_nothing_is_not_loaded(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.ask([1, 2, 3])
    later = server.restart()
    monkeypatch.setattr(later.files, "load", None)
    assert later.ask([2, 2, 3]).source is CacheSource.NONE


def test_nameless_sessions_are_not_saved(server: Server) -> None:
    server.ask([1, 2, 3], name=None)
    server.store.close()
    assert server.saved() == []


def test_files_tell_names_to_their_owner_alone(server: Server) -> None:
    server.ask([1, 2, 3], name="../../etc/x\n\u2028", owner="key")
    server.store.close()
    (path,) = server.saved()
    assert path.stat().st_mode & 0o777 == 0o600
    assert server.folder.stat().st_mode & 0o777 == 0o700
    assert server.again().store.listing("key")[0].name == "../../etc/x\n\u2028"


def test_a_name_that_no_header_takes_is_not_saved(server: Server) -> None:
    server.ask([1, 2, 3], name="x" * 5000)
    server.store.close()
    assert server.saved() == []
    assert [error.slug for error in server.reports] == ["session-unsaved"]


# -- when it is saved --


def test_a_burst_of_turns_is_saved_once_when_it_is_over(server: Server) -> None:
    assert server.store.idle() is None
    server.ask([1, 2, 3])
    assert server.store.idle() == SETTLE_SECONDS
    server.now += 1.5
    server.ask([1, 2, 3, 4])
    server.now += 1.5
    assert server.store.idle() == pytest.approx(0.5)
    assert server.saved() == []
    server.now += 0.5
    assert server.store.idle() is None
    (path,) = server.saved()
    before = path.stat().st_ino
    assert server.store.idle() is None
    assert path.stat().st_ino == before


def test_a_running_reply_is_not_saved(server: Server) -> None:
    server.store.begin(owner="", name="a", ids=[1, 2])
    server.session.eval([1, 2])
    server.now += 10
    assert server.store.idle() is None
    assert server.saved() == []


def test_saving_gives_way_to_a_request_and_keeps_the_old_file(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_file, "PIECE", 16)
    server.ask([1, 2, 3])
    server.now += 3
    server.store.idle()
    (path,) = server.saved()
    old = path.read_bytes()
    server.ask([1, 2, 3, 4])
    server.now += 3
    answers = iter([False] * 4 + [True] * 100)
    wait = server.store.idle(lambda: next(answers))
    assert wait == 0.0
    assert server.saved() == [path]
    assert path.read_bytes() == old
    assert server.store.usage().bytes == 0
    assert server.store.idle() is None
    assert path.read_bytes() != old


def test_an_evicted_session_goes_to_disk(tmp_path: Path) -> None:
    server = Server(tmp_path / "s", budget=150)
    for name in ("a", "b", "c"):
        server.ask([ord(name)] * 10, name=name)
    places = {info.name: info.place for info in server.store.listing("")}
    assert places == {"a": CacheSource.DISK, "b": CacheSource.RAM, "c": CacheSource.LIVE}
    assert server.ask([ord("a")] * 11, name="a") == Begun(reused=10, source=CacheSource.DISK)


def test_what_is_saved_already_is_evicted_before_what_is_not(tmp_path: Path) -> None:
    """However long the other was not used: a request does not wait for a disk that it need not wait for."""
    server = Server(tmp_path / "s", budget=220)
    server.ask([7] * 10, name="unsaved")
    for name in ("saved", "live"):
        server.ask([ord(name[0])] * 10, name=name)
    saved = server.store._ram.get(Key(owner="", name="saved"))
    assert saved is not None
    assert server.store._save_entry(saved, lambda: False) is Saved.DONE
    written = server.saved()
    server.ask([3] * 10, name="next")
    assert server.saved() == written
    places = {info.name: info.place for info in server.store.listing("")}
    assert places["unsaved"] is CacheSource.RAM
    assert places["saved"] is CacheSource.DISK


@pytest.mark.parametrize("stage", ["the live one moves out", "its own is read in"])
def test_a_request_that_is_stopped_does_not_wait_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    """A conversation must be written before there is room for it: it ends between pieces, and nothing is lost."""
    monkeypatch.setattr(session_file, "PIECE", 16)
    server = Server(tmp_path / "s", budget=220)
    names = "abc"
    if stage == "its own is read in":
        server.ask([ord("d")] * 12, name="d")
        server, names = server.restart(), "ab"
    for name in names:
        server.ask([ord(name)] * 10, name=name)
    before = server.saved()
    answers = iter([False] * 3 + [True] * 100)
    with pytest.raises(Cancelled):
        server.store.begin(owner="", name="d", ids=[ord("d")] * 12 + [1], is_stopped=lambda: next(answers))
    assert next(answers)
    assert server.saved() == before
    assert not server.store.usage().evictions
    places = {info.name: info.place for info in server.store.listing("")}
    assert set(places) >= set(names)
    for name in names:
        assert server.ask([ord(name)] * 10 + [1], name=name).reused == 10


@pytest.mark.parametrize("stage", ["the live one moves out", "its own is read in", "it falls asleep"])
def test_a_stop_that_is_taken_back_at_once_loses_nothing(tmp_path: Path, stage: str) -> None:
    """A pause and its resume, or a request that came and was cancelled, while a conversation is saved to make room."""
    server = Server(tmp_path / "s", budget=150)
    length = 10
    if stage == "its own is read in":
        server.ask([ord("d")] * 12, name="d")
        server, length = server.restart(), 3
    server.ask([ord("a")] * 10)
    server.ask([8] * length, name=None)
    once, store = iter([True]), server.store

    def stopped() -> bool:
        return next(once, False)

    acts = {"it falls asleep": lambda: store.put_to_sleep(stopped)}
    begin = partial(store.begin, owner="", name="d", ids=[ord("d")] * 13, is_stopped=stopped)
    with pytest.raises(Cancelled):
        acts.get(stage, begin)()
    assert next(once, None) is None
    assert server.ask([ord("a")] * 11) == Begun(reused=10, source=CacheSource.RAM)


def test_a_disk_that_takes_nothing_is_not_tried_at_every_eviction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried: list[int] = []

    def full(handle: int, data: memoryview) -> None:
        tried.append(len(data))
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(session_file, "_put", full)
    server = Server(tmp_path / "s", budget=150)
    for number in range(8):
        server.ask([number] * 10, name=f"n{number}")
    assert len(tried) == 1
    assert server.store.usage().evictions > 3
    server.now += RETRY_SECONDS
    server.ask([50] * 10, name="later")
    assert len(tried) == 2


def test_a_session_without_room_for_a_copy_is_told_once(tmp_path: Path) -> None:
    server = Server(tmp_path / "s", budget=10)
    server.ask([1, 2, 3])
    server.now += 3
    assert server.store.idle() == RETRY_SECONDS
    server.now += 100
    server.store.idle()
    assert [error.slug for error in server.reports] == ["session-unsaved"]


def test_a_request_that_ended_before_its_first_token_leaves_nothing_and_the_file_as_it_is(server: Server) -> None:
    server.ask([1, 2, 3])
    later = server.restart()
    for name in ("a", "new"):
        assert later.store.begin(owner="", name=name, ids=[7, 8]).reused == 0
        later.store.end()
    assert [(info.name, info.tokens, info.place) for info in later.store.listing("")] == [("a", 3, CacheSource.DISK)]
    with pytest.raises(RequestError, match="no session 'new'"):
        later.store.transfers.lend("", "new")
    later.now += 3
    assert later.store.idle() is None
    last = later.restart()
    assert later.reports == []
    assert last.ask([1, 2, 3, 4]) == Begun(reused=3, source=CacheSource.DISK)


def test_a_deleted_session_is_gone_from_disk(server: Server) -> None:
    server.ask([1, 2, 3])
    server.now += 3
    server.store.idle()
    assert server.store.delete("", "a")
    assert server.saved() == []
    server.now += 3
    server.store.idle()
    server.store.close()
    assert server.saved() == []


def test_deleting_in_the_midst_of_a_save_leaves_no_file(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_file, "PIECE", 16)
    server.ask([1, 2, 3])
    server.now += 3
    calls = iter(range(100))

    def wanted() -> bool:
        if next(calls) == 4:
            assert server.store.delete("", "a")
        return False

    server.store.idle(wanted)
    assert server.saved() == []
    assert server.store.listing("") == ()


def test_nobody_waits_for_the_disk_to_have_a_new_name(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The event loop would: it gives the memory of a session that has moved back under the lock of those who ask."""
    server.ask([1, 2, 3])
    room = server.store.transfers.reserve("", "b", 10)
    handle, told = server.files._handle, []

    def ask() -> None:
        told.append(server.store.usage().disk_bytes > 0)
        told.append(server.store.delete("", "a"))
        room.close()

    def slow(descriptor: int) -> None:
        if descriptor == handle and not told:
            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            asking.join(5)
            told.append(not asking.is_alive())

    monkeypatch.setattr("launcher.server.session_files.os.fsync", slow)
    server.now += 3
    server.store.idle()
    assert told == [True, True, True]
    assert server.saved() == []


def test_a_session_deleted_while_it_is_read_does_not_come_back(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.ask([1, 2, 3])
    later = server.restart()
    load = later.files.load

    def load_and_lose(*given: Any) -> Loaded | None:
        loaded = load(*given)
        assert later.store.delete("", "a")
        return loaded

    monkeypatch.setattr(later.files, "load", load_and_lose)
    with pytest.raises(RequestError, match="no session 'a'"):
        later.store.transfers.lend("", "a")
    assert later.store.listing("") == ()
    assert later.store.usage().bytes == 0
    assert later.restart().store.listing("") == ()


def test_a_session_deleted_when_all_is_written_leaves_no_file(server: Server) -> None:
    answers = iter([False, True])
    key = Key(owner="", name="a")
    assert server.files.save(key, token_array([1]), {}, b"x", lambda: next(answers)) is Saved.ABANDONED
    assert server.saved() == []
    assert not server.files.holds(key)
