"""A stamp that vouches for a changed file; a cache that fails the program, or that a killed writer leaves torn."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.errors import Cancelled, PackageError
from launcher.integrity import stamps
from launcher.integrity.hashing import FileDigest, sha256_file
from launcher.integrity.stamps import MAX_STAMPS, SETTLED_NS, Stamp, StampCache, hash_steady_file
from launcher.integrity.state_file import MAX_BYTES, StateFile, cache_folder

ROOT = Path(__file__).resolve().parents[2]


def hashed(path: Path, later_ns: int = 10 * SETTLED_NS, **settings: Any) -> stamps.HashedFile:
    """Hashes a file as if so much time had gone by since it was written."""
    with path.open("rb") as file:
        return hash_steady_file(file.fileno(), path.name, now_ns=lambda: time.time_ns() + later_ns, **settings)


def stamp_of(path: Path) -> Stamp:
    found = hashed(path).stamp
    assert found is not None
    return found


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.l3r"
    path.write_bytes(b"weights" * 1000)
    return path


@pytest.fixture
def cache(tmp_path: Path, model: Path) -> StampCache:
    found = StampCache(tmp_path / "cache" / "stamps.json")
    assert found.record([(model, stamp_of(model))])
    return found


def test_unchanged_file_is_known(cache: StampCache, model: Path) -> None:
    assert cache.lookup(model, model.stat()) == hashlib.sha256(model.read_bytes()).hexdigest()


def test_link_to_the_file_is_the_file(cache: StampCache, model: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(model)
    assert cache.lookup(tmp_path / "link", (tmp_path / "link").stat()) is not None


def set_times(path: Path, old: os.stat_result) -> None:
    os.utime(path, ns=(old.st_atime_ns, old.st_mtime_ns))


def grow(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")


def same_size_same_mtime(path: Path) -> None:
    old = path.stat()
    with path.open("r+b") as file:
        file.write(b"W")
    set_times(path, old)


def replaced(path: Path) -> None:
    old = path.stat()
    other = path.with_name("other")
    other.write_bytes(path.read_bytes())
    other.replace(path)
    set_times(path, old)


def touched(path: Path) -> None:
    os.utime(path)


@pytest.mark.parametrize("change", [grow, same_size_same_mtime, replaced, touched])
def test_any_change_is_a_miss(cache: StampCache, model: Path, change: Callable[[Path], None]) -> None:
    time.sleep(0.02)  # more than one tick of the kernel's clock
    change(model)
    assert cache.lookup(model, model.stat()) is None


@pytest.mark.parametrize("field", ["device", "inode", "size", "mtime_ns", "ctime_ns"])
def test_every_single_difference_is_a_miss(tmp_path: Path, model: Path, field: str) -> None:
    stamp = stamp_of(model)
    found = StampCache(tmp_path / "stamps.json")
    found.record([(model, replace(stamp, **{field: getattr(stamp, field) + 1}))])
    assert found.lookup(model, model.stat()) is None


def test_stamp_is_kept_for_its_path_only(cache: StampCache, model: Path, tmp_path: Path) -> None:
    os.link(model, tmp_path / "second")
    assert cache.lookup(tmp_path / "second", model.stat()) is None


@pytest.mark.parametrize(("later", "kept"), [(SETTLED_NS + 10**9, True), (0, False), (-(10**12), False)])
def test_young_file_gets_no_stamp(model: Path, later: int, kept: bool) -> None:
    """A write right after the hashing could leave the same mtime and ctime, where clocks tick coarsely."""
    assert (hashed(model, later).stamp is not None) is kept


def test_old_mtime_does_not_hide_a_young_change(model: Path) -> None:
    os.utime(model, ns=(0, 0))
    assert hashed(model, 0).stamp is None


def damaged_files() -> dict[str, bytes]:
    whole = {"schema": "mindnano.stamps", "version": 1, "stamps": {}}
    entry = {"device": 1, "inode": 1, "size": 1, "mtime_ns": 1, "ctime_ns": 1, "sha256": "a" * 64}

    def text(**changes: object) -> bytes:
        return json.dumps({**whole, **changes}).encode()

    return {
        "empty": b"",
        "cut": text(stamps={"/x": entry})[:-5],
        "binary": b"\0\xff" * 100,
        "deep": b"[" * 100_000,
        "long number": b"1" * 10_000,
        "list": b"[]",
        "null": b"null",
        "other version": text(version=2),
        "other schema": text(schema="x"),
        "stamps as list": text(stamps=[1]),
        "entry as text": text(stamps={"/x": "x"}),
        "entry cut": text(stamps={"/x": {"sha256": "a" * 64}}),
        "entry with text": text(stamps={"/x": {**entry, "size": "1"}}),
        "entry with a short digest": text(stamps={"/x": {**entry, "sha256": "a" * 63}}),
        "entry with an empty digest": text(stamps={"/x": {**entry, "sha256": ""}}),
        "too large": text(stamps={}) + b" " * MAX_BYTES,
    }


@pytest.mark.parametrize("name", damaged_files())
def test_damaged_cache_is_a_miss_and_is_replaced(cache: StampCache, model: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "cache" / "stamps.json"
    path.write_bytes(damaged_files()[name])
    assert cache.lookup(model, model.stat()) is None
    assert cache.record([(model, stamp_of(model))])
    assert cache.lookup(model, model.stat()) is not None


@given(st.binary(max_size=300))
@settings(max_examples=150, deadline=None)
def test_any_bytes_are_a_miss(data: bytes) -> None:
    assert stamps._parse(data) == {}


def test_cache_that_others_can_write_is_not_believed(cache: StampCache, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "stamps.json"
    path.chmod(0o620)
    assert cache.lookup(model, model.stat()) is None
    path.chmod(0o600)
    assert cache.lookup(model, model.stat()) is not None


def test_cache_of_another_user_is_not_believed(cache: StampCache, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    assert cache.lookup(model, model.stat()) is None


def test_cache_behind_a_link_is_not_believed(cache: StampCache, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "stamps.json"
    path.rename(tmp_path / "elsewhere.json")
    path.symlink_to(tmp_path / "elsewhere.json")
    assert cache.lookup(model, model.stat()) is None


def test_pipe_in_place_of_the_cache_is_not_waited_for(cache: StampCache, model: Path, tmp_path: Path) -> None:
    path = tmp_path / "cache" / "stamps.json"
    path.unlink()
    os.mkfifo(path)
    assert cache.lookup(model, model.stat()) is None


def test_files_are_private(cache: StampCache, tmp_path: Path) -> None:
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "cache" / "stamps.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"XDG_CACHE_HOME": "/c", "HOME": "/h"}, "/c/mindnano"),
        ({"XDG_CACHE_HOME": "", "HOME": "/h"}, "/h/.cache/mindnano"),
        ({"XDG_CACHE_HOME": "relative", "HOME": "/h"}, "/h/.cache/mindnano"),
        ({"HOME": ""}, None),
        ({}, None),
    ],
)
def test_place_of_the_cache(environ: dict[str, str], expected: str | None) -> None:
    assert cache_folder(environ) == (None if expected is None else Path(expected))


@pytest.mark.parametrize("home", ["/dev/null", "/proc/none", "/nonexistent\0x"])
def test_missing_or_read_only_home_is_no_error(model: Path, home: str) -> None:
    found = StampCache.of({"HOME": home})
    assert found.lookup(model, model.stat()) is None
    assert not found.record([(model, stamp_of(model))])


def test_no_home_is_no_error(model: Path) -> None:
    found = StampCache.of({})
    assert not found.record([(model, stamp_of(model))])
    assert found.lookup(model, model.stat()) is None


def test_full_disk_keeps_the_old_stamps(cache: StampCache, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert not cache.record([(model, replace(stamp_of(model), sha256="b" * 64))])
    assert cache.lookup(model, model.stat()) == hashlib.sha256(model.read_bytes()).hexdigest()


def test_oldest_stamps_make_room(tmp_path: Path, model: Path) -> None:
    found = StampCache(tmp_path / "stamps.json")
    stamp = stamp_of(model)
    found.record([(model, stamp)])
    found.record([(tmp_path / str(number), stamp) for number in range(MAX_STAMPS - 1)])
    assert found.lookup(model, model.stat()) is not None
    found.record([(tmp_path / "one-more", stamp)])
    assert found.lookup(model, model.stat()) is None
    assert found.lookup(tmp_path / "one-more", model.stat()) is not None


def test_long_paths_do_not_make_the_cache_unwritable(tmp_path: Path, model: Path) -> None:
    found = StampCache(tmp_path / "stamps.json")
    stamp = stamp_of(model)
    long = "x" * 200
    paths = [tmp_path / long / long / long / long / long / str(number) for number in range(MAX_STAMPS)]
    assert found.record([(path, stamp) for path in paths])
    assert (tmp_path / "stamps.json").stat().st_size <= MAX_BYTES
    assert found.lookup(paths[-1], model.stat()) is not None


def test_path_that_is_no_unicode_is_kept(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"\xff.l3r")
    path.write_bytes(b"x")
    found = StampCache(tmp_path / "stamps.json")
    found.record([(path, stamp_of(path))])
    assert found.lookup(path, path.stat()) is not None


WRITER = """
import sys
from pathlib import Path
from launcher.integrity import state_file
from launcher.integrity.stamps import Stamp, StampCache
state_file._LOCK_SECONDS = 60.0  # however busy the machine is
cache, name = StampCache(Path(sys.argv[1])), sys.argv[2]
print("ready", flush=True)
for number in range(int(sys.argv[3])):
    stamp = Stamp(device=1, inode=number, size=1, mtime_ns=1, ctime_ns=1, sha256="c" * 64)
    cache.record([(Path("/" + name + str(number % 200)), stamp)])
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)], cwd=ROOT, stdout=subprocess.PIPE
    )


def test_killed_writer_leaves_a_whole_cache(tmp_path: Path, model: Path) -> None:
    path = tmp_path / "cache" / "stamps.json"
    for round_number in range(6):
        process = writer(path, "w", 1_000_000)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.03 + 0.013 * round_number)
        process.send_signal(signal.SIGKILL)
        process.wait()
        process.stdout.close()
        if path.exists():
            assert stamps._parse(path.read_bytes())
        found = StampCache(path)
        assert found.record([(model, stamp_of(model))])
        assert found.lookup(model, model.stat()) is not None
    assert path.exists()
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["stamps.json", "stamps.lock"]


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "stamps.json"
    processes = [writer(path, name, 40) for name in "ab"]
    for process in processes:
        process.communicate()
    names = set(stamps._parse(path.read_bytes()))
    assert names == {f"/{name}{number}" for name in "ab" for number in range(40)}


def test_writer_that_waits_too_long_gives_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("launcher.integrity.state_file._LOCK_SECONDS", 0.05)
    with (tmp_path / "x.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert not StateFile(tmp_path / "x.json").update(lambda _: b"{}")
    assert StateFile(tmp_path / "x.json").update(lambda _: b"{}")


def interfere(monkeypatch: pytest.MonkeyPatch, change: Callable[[], object]) -> None:
    """Lets something happen to the file between its first byte being read and its last."""

    def hashing(file: int, **settings: Any) -> FileDigest:
        change()
        return sha256_file(file, **settings)

    monkeypatch.setattr(stamps, "sha256_file", hashing)


@pytest.mark.parametrize("change", [grow, same_size_same_mtime, touched, lambda path: os.truncate(path, 10)])
def test_file_that_changes_while_it_is_read_is_an_error(
    model: Path, monkeypatch: pytest.MonkeyPatch, change: Callable[[Path], None]
) -> None:
    time.sleep(0.02)
    interfere(monkeypatch, lambda: change(model))
    with pytest.raises(PackageError) as caught:
        hashed(model)
    assert (caught.value.slug, caught.value.exit_code) == ("file-changed-while-read", 4)


def test_file_that_is_cut_while_it_is_read_is_an_error(model: Path) -> None:
    with model.open("wb") as file:
        file.truncate(8 << 20)

    def step(_done: int, _total: int) -> bool:
        os.truncate(model, 1 << 20)
        return False

    with pytest.raises(PackageError) as caught:
        hashed(model, progress=step)
    assert caught.value.slug == "file-changed-while-read"


def test_cancelled_hashing_says_so(model: Path) -> None:
    with pytest.raises(Cancelled):
        hashed(model, progress=lambda _done, _total: True)
