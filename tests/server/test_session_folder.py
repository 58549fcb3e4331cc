"""A folder of sessions that takes more than it may, loses an old file before its new one is there, or is another's."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from launcher.errors import BusyError, UsageError
from launcher.server import session_file
from launcher.server.events import CacheSource
from launcher.server.session_entries import Key
from launcher.server.session_facts import Begun
from tests.support.session_server import Server


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "sessions")


def test_the_folder_takes_no_more_than_its_limit(tmp_path: Path) -> None:
    server = Server(tmp_path / "s", limit=1500)
    for number in range(8):
        server.ask([number] * 5, name=f"n{number}")
        server.now += 3
        server.store.idle()
        assert sum(path.stat().st_size for path in server.saved()) <= 1500
        assert server.store.usage().disk_bytes <= 1500
    kept = len(server.saved())
    assert 2 <= kept < 8
    server.store.close()
    names = {info.name for info in server.again().store.listing("")}
    assert names == {f"n{number}" for number in range(8 - kept, 8)}


def test_a_session_beyond_the_limit_is_told_and_evicts_nothing(tmp_path: Path) -> None:
    server = Server(tmp_path / "s", limit=600)
    server.ask([1, 2, 3], name="a")
    server.now += 3
    server.store.idle()
    server.ask([1] * 500, name="b")
    server.now += 3
    server.store.idle()
    assert len(server.saved()) == 1
    assert [error.slug for error in server.reports] == ["session-unsaved"]


def test_an_old_file_never_goes_before_its_new_one_is_there(tmp_path: Path) -> None:
    """A killed server must leave one of the two. The limit holds for both; where they do not fit, the old one stays."""
    server = Server(tmp_path / "s", limit=800)
    server.ask([9], name="other")
    server.now += 3
    server.store.idle()
    for length in (3, 4, 50):
        server.ask(list(range(1, length + 1)))
        server.now += 3
        assert server.store.idle() is None  # one that cannot be saved is not tried again and again
        assert server.files.bytes <= 800
        assert server.files.holds(Key(owner="", name="a"))
    assert [error.slug for error in server.reports] == ["session-unsaved"]
    assert "beside its older state" in server.reports[0].message
    assert server.restart().ask([*range(1, 51), 5]) == Begun(reused=4, source=CacheSource.DISK)


def test_a_session_that_does_not_fit_evicts_nobody_and_keeps_nobody_from_being_saved(tmp_path: Path) -> None:
    server = Server(tmp_path / "s", limit=1000)
    server.ask([9], name="small")
    server.now += 3
    server.store.idle()
    server.ask([1] * 500, name="large")
    server.ask([8], name="later")
    server.now += 3
    server.store.idle()
    assert {info.name for info in server.restart().store.listing("")} == {"small", "later"}


def test_the_old_file_stays_until_the_new_one_is_written(tmp_path: Path) -> None:
    server = Server(tmp_path / "s", limit=1000)
    for name in ("a", "b"):
        server.ask([1, 2, 3], name=name)
        server.now += 3
        server.store.idle()
    server.ask([1, 2, 3, 4], name="a")
    server.now += 3
    seen: list[bool] = []

    def wanted() -> bool:
        seen.append(server.files.holds(Key(owner="", name="a")))
        return False

    server.store.idle(wanted)
    assert len(seen) > 2
    assert all(seen)
    assert not server.files.holds(Key(owner="", name="b"))  # the other one made room


def test_a_full_disk_is_told_once_and_fails_no_request(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(handle: int, data: memoryview) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(session_file, "_put", full)
    for turn in range(3, 6):
        server.ask([1] * turn)
        server.now += 100
        server.store.idle()
    assert [error.slug for error in server.reports] == ["session-unsaved"]
    assert server.saved() == []
    monkeypatch.undo()
    server.now += 100
    assert server.store.idle() is None
    assert len(server.saved()) == 1


def test_leftovers_go_and_other_files_stay(server: Server) -> None:
    server.ask([1, 2, 3])
    server.store.close()
    (path,) = server.saved()
    left = path.with_name(path.name + ".partial")
    left.write_bytes(b"half")
    note = server.folder / "note.txt"
    note.write_text("mine")
    assert server.again().ask([1, 2, 3, 4]).reused == 3
    assert server.saved() == sorted([path, note])


@pytest.mark.parametrize("mode", [0o770, 0o707, 0o777])
def test_a_folder_that_others_can_write_is_refused(tmp_path: Path, mode: int) -> None:
    folder = tmp_path / "s"
    folder.mkdir()
    folder.chmod(mode)
    with pytest.raises(UsageError, match="other users can write") as raised:
        Server(folder)
    assert raised.value.slug == "session-dir-unsafe"


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    folder.write_text("")
    with pytest.raises(UsageError) as raised:
        Server(folder)
    assert raised.value.slug == "session-dir-unusable"


def test_two_servers_do_not_share_a_folder(server: Server) -> None:
    with pytest.raises(BusyError):
        server.again()
    server.store.close()
    server.again().store.close()
