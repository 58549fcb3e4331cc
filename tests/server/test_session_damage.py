"""A saved session that is broken, another model's, half written or not what its name says, and is used all the same."""

from __future__ import annotations

import hashlib
import json
import random
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.errors import MindnanoError
from launcher.server.events import CacheSource
from launcher.server.session_entries import Block, Key, token_array
from launcher.server.session_facts import Begun
from launcher.server.session_files import Saved, SessionFiles
from tests.support import session_saver
from tests.support.fake_sessions import FakeState
from tests.support.session_server import ORIGIN, Server

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server(tmp_path: Path) -> Server:
    return Server(tmp_path / "sessions")


@pytest.mark.parametrize(
    "changes",
    [{"identity": b"x" * 32}, {"template_sha256": b"x" * 32}, {"kv": "int8"}, {"engine": "ling3 0.2.0"}],
    ids=lambda changes: next(iter(changes)),
)
def test_sessions_of_another_origin_are_left_alone(server: Server, changes: dict[str, object]) -> None:
    server.ask([1, 2, 3])
    other = server.restart(origin=replace(ORIGIN, **changes))  # type: ignore[arg-type]
    assert other.store.listing("") == ()
    assert other.ask([1, 2, 3, 4]).source is CacheSource.NONE
    back = other.restart(origin=ORIGIN)
    assert back.reports == []
    assert back.ask([1, 2, 3, 4]).source is CacheSource.DISK


def saved_once(server: Server) -> tuple[Path, bytes]:
    server.ask([1, 2, 3, 4], mark=2)
    server.store.close()
    (path,) = server.saved()
    return path, path.read_bytes()


def assert_refused(server: Server, path: Path, data: bytes) -> None:
    """A server that finds this file runs cold, says so once and removes it; the next save is sound."""
    path.write_bytes(data)
    path.chmod(0o600)
    server.session = FakeState(padding=50)
    found = server.again()
    assert found.ask([1, 2, 3, 4, 5]) == Begun(reused=0, source=CacheSource.NONE)
    assert [error.slug for error in found.reports] == ["session-refused"]
    assert str(path) in found.reports[0].message
    assert not path.exists()
    found.files.close()


def test_every_flipped_byte_is_refused(server: Server) -> None:
    path, data = saved_once(server)
    for index in range(len(data)):
        damaged = bytearray(data)
        damaged[index] ^= 1 << index % 8
        if index not in ids_of(data):
            assert_refused(server, path, bytes(damaged))


def ids_of(data: bytes) -> range:
    """Where the token ids are: one that differs may already not agree with the prompt, and nothing is loaded then."""
    start = 12 + struct.unpack_from("<I", data, 8)[0]
    return range(start, start + 16)


def test_flipped_ids_are_never_imported(server: Server) -> None:
    path, data = saved_once(server)
    for index in ids_of(data):
        damaged = bytearray(data)
        damaged[index] ^= 1 << index % 8
        path.write_bytes(damaged)
        found = server.again()
        assert found.ask([1, 2, 3, 4, 5]).source is CacheSource.NONE
        found.files.close()
        path.write_bytes(damaged)
        ids = list(struct.unpack_from("<4i", damaged, ids_of(data).start))
        found = server.again()
        assert found.ask([*ids, 5]).source is CacheSource.NONE  # a prompt that agrees with what the file claims
        assert [error.slug for error in found.reports] == ["session-refused"]
        found.files.close()


def test_every_truncation_and_any_tail_is_refused(server: Server) -> None:
    path, data = saved_once(server)
    for length in range(len(data)):
        assert_refused(server, path, data[:length])
    assert_refused(server, path, data + b"\0")


def rewritten(data: bytes, change: Callable[[dict[str, object]], None]) -> bytes:
    """The file with another header and a right checksum."""
    length = struct.unpack_from("<I", data, 8)[0]
    header = json.loads(data[12 : 12 + length])
    change(header)
    text = json.dumps(header).encode()
    body = data[:8] + struct.pack("<I", len(text)) + text + data[12 + length : -32]
    return body + hashlib.sha256(body).digest()


@pytest.mark.parametrize(
    "change",
    [
        lambda header: header.update(more=1),
        lambda header: header.pop("kv"),
        lambda header: header.update(tokens=True),
        lambda header: header.update(tokens=1 << 60),
        lambda header: header.update(bytes=1 << 60),
        lambda header: header.update(checkpoints=[[0, 5]]),
        lambda header: header.update(checkpoints=[[0, 2], [0, 3]]),
        lambda header: header.update(checkpoints=[[0, 2.0]]),
        lambda header: header.update(checkpoints="x"),
        lambda header: header.update(name=None),
        lambda header: header.update(name="b"),
        lambda header: header.update(owner="b"),
    ],
)
def test_a_header_that_says_nonsense_is_refused(server: Server, change: Callable[[dict[str, object]], None]) -> None:
    path, data = saved_once(server)
    assert_refused(server, path, rewritten(data, change))


def test_a_file_changed_after_the_start_is_refused(server: Server) -> None:
    path, data = saved_once(server)
    found = server.again()
    path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert found.ask([1, 2, 3, 4, 5]).source is CacheSource.NONE
    assert [error.slug for error in found.reports] == ["session-refused"]
    assert found.store.usage().bytes == 0


def test_a_file_in_the_place_of_another_is_refused(server: Server) -> None:
    server.ask([1, 2, 3], name="a")
    server.ask([1, 2, 3], name="b")
    found = server.restart()
    paths = {info.key.name: found.folder / found.files._name(info.key) for info in found.files.saved()}
    paths["b"].replace(paths["a"])
    assert found.ask([1, 2, 3, 4], name="a").source is CacheSource.NONE
    assert [error.slug for error in found.reports] == ["session-refused"]


def test_a_link_is_not_followed(server: Server, tmp_path: Path) -> None:
    path, data = saved_once(server)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_bytes(data)
    path.unlink()
    path.symlink_to(elsewhere)
    assert server.again().ask([1, 2, 3, 4, 5]).source is CacheSource.NONE
    assert elsewhere.read_bytes() == data


def test_a_saved_session_that_the_engine_refuses_runs_cold(server: Server) -> None:
    server.ask([1, 2, 3])
    later = server.restart()
    later.session.failing = {"import"}
    assert later.ask([1, 2, 3, 4]).source is CacheSource.NONE
    assert later.store.usage().bytes == 0


def test_a_kill_in_the_midst_of_a_save_leaves_the_old_or_the_new_session(tmp_path: Path) -> None:
    folder = tmp_path / "s"
    chance = random.Random(20)
    newest = 0
    seen_partial = 0
    for kills in range(100):
        if kills >= 12 and newest and seen_partial:
            break
        child = subprocess.Popen(
            [sys.executable, "-m", "tests.support.session_saver", str(folder)], cwd=ROOT, stdout=subprocess.PIPE
        )
        with child:
            assert child.stdout is not None
            assert child.stdout.readline() == b"begins\n"
            time.sleep(chance.uniform(0.01, 0.25))
            child.kill()
        seen_partial += any(path.name.endswith(".partial") for path in folder.iterdir())
        reports: list[MindnanoError] = []
        files = SessionFiles(folder, limit_bytes=1 << 30, origin=session_saver.ORIGIN, report=reports.append)
        loaded = files.load(session_saver.KEY, Block, Block.close)
        assert reports == []
        assert not any(path.name.endswith(".partial") for path in folder.iterdir())
        if loaded is not None:
            number = loaded.ids[2]
            ids, memory = session_saver.state(number)
            assert (list(loaded.ids), loaded.checkpoints) == (ids, {0: 2})
            assert loaded.block.memory[:] == memory
            loaded.block.close()
            newest = max(newest, number)
        else:
            assert newest == 0
        files.close()
    assert newest
    assert seen_partial


def test_saving_leaves_no_descriptor_open(server: Server) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    key = Key(owner="", name="a")
    ids = token_array([1, 2])
    assert server.files.save(key, ids, {}, b"x" * 100, lambda: False) is Saved.DONE
    assert server.files.save(key, ids, {}, b"x" * 100, lambda: True) is Saved.ABANDONED
    assert server.files.load(key, lambda size: None, Block.close) is None
    assert len(list(Path("/proc/self/fd").iterdir())) == before
