"""A download that is killed, stopped, doubled or out of space: a half file under the final name, or bytes lost."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from launcher.download.part_file import PartFile
from launcher.errors import BusyError, ResourceError, UsageError
from tests.support.downloads import Bench, digest, random_bytes
from tests.support.fault_server import Fault, FaultServer

SIZE = 4_000_000
DATA = random_bytes(SIZE)
FILE = "/x.l3r"
ROOT = Path(__file__).resolve().parents[2]
PATIENCE_SECONDS = 60.0


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        running.add(FILE, DATA)
        yield running


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(folder=tmp_path)


class Child:
    """A real process that downloads; a context manager that leaves none behind."""

    def __init__(self, server: FaultServer, folder: Path, *words: str) -> None:
        self.part = folder / "x.l3r.part"
        command = [sys.executable, "-m", "tests.support.download_child", server.url(FILE), str(folder), digest(DATA)]
        self.process = subprocess.Popen(
            [*command, *words],
            cwd=ROOT,
            env={"HOME": str(folder), "PATH": os.environ["PATH"]},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def wait_for(self, count: int) -> None:
        """Until this many bytes are on the disk, or the process has ended."""
        end = time.monotonic() + PATIENCE_SECONDS
        while self.process.poll() is None and self.size() < count:
            assert time.monotonic() < end, f"{self.size()} of {count} bytes came"
            time.sleep(0.001)

    def size(self) -> int:
        try:
            return self.part.stat().st_size
        except FileNotFoundError:
            return 0

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()


def test_killed_at_random_points_it_continues_and_shows_no_half_file(server: FaultServer, tmp_path: Path) -> None:
    models = tmp_path / "models"
    random = Random(7)
    kept = 0
    for _ in range(5):
        server.fail(FILE, Fault(drip=4096, stall_after=SIZE - kept - 4096))  # it cannot end before it is killed
        goal = kept + random.randrange(1, 600_000)
        with Child(server, models) as child:
            child.wait_for(goal)
            child.process.send_signal(signal.SIGKILL)
            child.process.wait(PATIENCE_SECONDS)
            kept = child.size()
        assert kept >= goal
        assert sorted(path.name for path in models.iterdir()) == ["x.l3r.part", "x.l3r.part.json"]
        assert child.part.read_bytes() == DATA[:kept]
    with Child(server, models) as child:
        out, err = child.process.communicate(timeout=PATIENCE_SECONDS)
        assert child.process.returncode == 0, err
    assert out == f"{models / 'x.l3r'}\n"
    assert (models / "x.l3r").read_bytes() == DATA
    assert [path.name for path in models.iterdir()] == ["x.l3r"]
    asked = [request.headers.get("range") for request in server.requests(FILE)]
    assert asked[0] is None
    assert asked[-1] == f"bytes={kept}-"


def test_interrupt_keeps_the_part_and_says_how_to_continue(server: FaultServer, tmp_path: Path) -> None:
    server.fail(FILE, Fault(stall_after=1_000_000))
    with Child(server, tmp_path) as child:
        child.wait_for(1_000_000)
        child.process.send_signal(signal.SIGINT)
        out, err = child.process.communicate(timeout=PATIENCE_SECONDS)
    assert child.process.returncode == 130
    assert out == ""
    assert "download-stopped" in err
    assert "run the same command to continue" in err
    assert "Traceback" not in err
    assert child.part.read_bytes() == DATA[:1_000_000]


def test_two_downloads_of_one_file_do_not_mix(server: FaultServer, bench: Bench) -> None:
    server.fail(FILE, Fault(stall_after=1_000_000))
    with Child(server, bench.folder / "models") as child:
        child.wait_for(1_000_000)
        with pytest.raises(BusyError) as caught:
            bench.get(server.url(FILE), "--sha256", digest(DATA))
        assert caught.value.exit_code == 7
        assert child.part.read_bytes() == DATA[:1_000_000]
    assert bench.get(server.url(FILE), "--sha256", digest(DATA)).read_bytes() == DATA


def test_lock_taken_too_late_is_no_lock_on_the_finished_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another process finishes between the opening and the locking of the part."""
    target = tmp_path / "x.l3r"
    real, calls = PartFile._lock, []

    def late(self: PartFile, handle: int) -> None:
        if not calls:
            (tmp_path / "x.l3r.part").write_bytes(b"whole")
            (tmp_path / "x.l3r.part").rename(target)
        calls.append(handle)
        real(self, handle)

    monkeypatch.setattr(PartFile, "_lock", late)
    with PartFile(target) as part:
        part.append(b"new")
    assert len(calls) == 2
    assert target.read_bytes() == b"whole"
    assert (tmp_path / "x.l3r.part").read_bytes() == b"new"


def test_limit_of_the_file_size_is_a_full_disk(server: FaultServer, tmp_path: Path) -> None:
    with Child(server, tmp_path, "1500000") as child:
        _, err = child.process.communicate(timeout=PATIENCE_SECONDS)
    assert child.process.returncode == 5
    assert "disk-full" in err
    assert child.part.read_bytes() == DATA[:1_500_000]
    assert not (tmp_path / "x.l3r").exists()


def test_full_disk_keeps_the_part_and_the_next_run_continues(
    server: FaultServer, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.pwrite

    def pwrite(handle: int, data: memoryview, offset: int) -> int:
        room = 1_234_567 - offset
        if room <= 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(handle, data[:room], offset)

    with monkeypatch.context() as full:
        full.setattr(os, "pwrite", pwrite)
        with pytest.raises(ResourceError, match="what is here is kept") as caught:
            bench.get(server.url(FILE), "--sha256", digest(DATA))
    assert caught.value.exit_code == 5
    assert (bench.folder / "models" / "x.l3r.part").read_bytes() == DATA[:1_234_567]
    assert bench.get(server.url(FILE), "--sha256", digest(DATA)).read_bytes() == DATA
    assert server.requests(FILE)[-1].headers["range"] == "bytes=1234567-"


@pytest.mark.parametrize("kind", ["fifo", "link", "folder"])
def test_part_that_is_no_file_is_not_written(bench: Bench, server: FaultServer, kind: str) -> None:
    models = bench.folder / "models"
    models.mkdir()
    part, other = models / "x.l3r.part", bench.folder / "precious"
    other.write_bytes(b"precious")
    if kind == "fifo":
        os.mkfifo(part)
    elif kind == "link":
        part.symlink_to(other)
    else:
        part.mkdir()
    with pytest.raises(UsageError) as caught:
        bench.get(server.url(FILE), "--sha256", digest(DATA))
    assert caught.value.slug == "folder-unwritable"
    assert other.read_bytes() == b"precious"


def test_file_in_place_of_the_folder_is_named(bench: Bench, server: FaultServer) -> None:
    (bench.folder / "models").write_bytes(b"")
    with pytest.raises(UsageError, match="models") as caught:
        bench.get(server.url(FILE), "--sha256", digest(DATA))
    assert "--model-dir" in caught.value.hint


def test_name_appears_only_after_the_bytes_are_durable(
    bench: Bench, server: FaultServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    real_sync, real_rename = os.fsync, Path.rename

    def fsync(handle: int) -> None:
        steps.append(f"sync {Path(f'/proc/self/fd/{handle}').readlink().name}")
        real_sync(handle)

    def rename(self: Path, target: Path) -> Path:
        steps.append(f"rename {Path(target).name}")
        return real_rename(self, target)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "rename", rename)
    bench.get(server.url(FILE), "--sha256", digest(DATA))
    end = steps.index("rename x.l3r")
    assert steps[end - 1 : end + 2] == ["sync x.l3r.part", "rename x.l3r", "sync models"]
