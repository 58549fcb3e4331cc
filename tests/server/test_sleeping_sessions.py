"""A conversation that is lost, changed or kept in memory for nothing when the engine's memory is given back."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from launcher.errors import Cancelled
from launcher.server import session_file
from launcher.server.events import CacheSource
from launcher.server.session_facts import Begun
from launcher.server.sessions import RETRY_SECONDS, SessionStore
from tests.support.fake_sessions import FakeState
from tests.support.session_server import Server


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "sessions")


def places(server: Server) -> dict[str, CacheSource]:
    return {info.name: info.place for info in server.store.listing("")}


def anew(server: Server) -> None:
    """The engine's session goes and comes again."""
    server.session.reset()
    server.session.calls.clear()


def test_without_a_folder_the_live_one_waits_in_memory() -> None:
    session = FakeState()
    store = SessionStore(session, budget=1 << 20)
    for ids in ([1, 2, 3], [7, 8, 9]):
        store.begin(owner="", name=str(ids[0]), ids=ids)
        session.eval(ids[session.position :])
        store.end()
    store.put_to_sleep()
    assert store.usage().entries == 2
    session.reset()
    assert store.begin(owner="", name="7", ids=[7, 8, 9, 1]) == Begun(reused=3, source=CacheSource.RAM)
    assert session.tokens() == [7, 8, 9]


def test_with_a_folder_what_has_a_name_is_on_disk_alone(server: Server) -> None:
    """Also what nobody has left alone for long enough to be saved in passing."""
    for name in ("a", "b"):
        server.ask([ord(name)] * 5, name=name, mark=3)
    server.ask([9, 9, 9], name=None)
    server.store.put_to_sleep()
    assert places(server) == {"a": CacheSource.DISK, "b": CacheSource.DISK}
    assert (server.store.usage().entries, len(server.saved())) == (1, 2)
    anew(server)
    assert server.ask([ord("b")] * 6, name="b") == Begun(reused=5, source=CacheSource.DISK)
    assert server.ask([ord("a")] * 3 + [1], name="a") == Begun(reused=3, source=CacheSource.DISK)
    assert server.ask([9, 9, 9, 9], name=None) == Begun(reused=3, source=CacheSource.RAM)


def test_what_the_disk_has_already_is_not_written_again(server: Server) -> None:
    server.ask([1, 2, 3])
    server.now += 3
    server.store.idle()
    (path,) = server.saved()
    before = path.stat().st_ino
    server.store.put_to_sleep()
    assert path.stat().st_ino == before
    assert server.store.usage().bytes == 0
    server.store.put_to_sleep()
    assert server.store.idle() is None


def test_what_the_disk_does_not_take_stays_in_memory(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> bool:
        raise OSError(28, "No space left on device")

    server.ask([1, 2, 3])
    with monkeypatch.context() as patch:
        patch.setattr("launcher.server.session_files.write_file", full)
        server.store.put_to_sleep()
    assert [error.slug for error in server.reports] == ["session-unsaved"]
    assert places(server) == {"a": CacheSource.RAM}
    server.store.put_to_sleep()  # not tried again at once
    assert server.saved() == []
    server.now += RETRY_SECONDS
    server.store.put_to_sleep()
    assert places(server) == {"a": CacheSource.DISK}


def test_a_state_that_may_not_be_saved_stays_in_memory_beside_its_older_file(tmp_path: Path) -> None:
    """The file is an older state: to drop the newer one for it would lose what was said since."""
    server = Server(tmp_path / "s", limit=500)
    server.ask([1, 2, 3])
    server.store.put_to_sleep()
    assert places(server) == {"a": CacheSource.DISK}
    anew(server)
    server.ask([1, 2, 3, *range(90)])
    server.store.put_to_sleep()
    assert [error.slug for error in server.reports] == ["session-unsaved"]
    assert len(server.saved()) == 1
    anew(server)
    assert server.ask([1, 2, 3, *range(91)]) == Begun(reused=93, source=CacheSource.RAM)


def test_a_file_that_is_gone_keeps_the_memory(server: Server) -> None:
    server.ask([1, 2, 3])
    server.now += 3
    server.store.idle()
    shutil.rmtree(server.folder)
    server.store.put_to_sleep()
    assert server.store.usage().entries == 1


def test_what_finds_no_room_is_read_again_and_answers_the_same() -> None:
    session = FakeState()
    store = SessionStore(session, budget=0)
    store.begin(owner="", name="a", ids=[1, 2, 3])
    session.eval([1, 2, 3])
    store.end()
    store.put_to_sleep()
    session.reset()
    assert store.begin(owner="", name="a", ids=[1, 2, 3]) == Begun(reused=0, source=CacheSource.NONE)


def test_a_deleted_one_is_kept_nowhere_and_puts_nobody_out(tmp_path: Path) -> None:
    server = Server(tmp_path / "s", budget=150)
    server.ask([7] * 10, name=None)
    server.ask([1] * 20)
    server.store.delete("", "a")
    server.store.put_to_sleep()
    usage = server.store.usage()
    assert (usage.entries, usage.evictions, server.saved()) == (1, 0, [])


def test_a_request_that_comes_meanwhile_loses_nothing(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is stopped after every possible number of pieces; then the conversation goes on from where it was."""
    monkeypatch.setattr(session_file, "PIECE", 16)
    ids = [1, 2, 3]
    server.ask(ids)
    for pieces in range(12):
        answers = iter([False] * pieces)
        try:
            server.store.put_to_sleep(lambda: next(answers, True))  # noqa: B023
        except Cancelled:
            assert server.store.usage().entries == 1
        ids = [*ids, pieces]
        assert server.ask(ids).reused == len(ids) - 1
    server.store.put_to_sleep()
    assert server.store.usage().bytes == 0


def test_a_server_ends_while_it_sleeps(server: Server) -> None:
    server.ask([1, 2, 3])
    server.ask([7], name="b")
    server.store.put_to_sleep()
    server.session.failing |= {"export", "import"}  # there is no engine to ask
    later = server.restart()
    later.session.failing.clear()
    assert later.ask([1, 2, 3, 4]) == Begun(reused=3, source=CacheSource.DISK)
