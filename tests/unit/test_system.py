"""Memory promised that a container does not have, a reader that fails on a bare machine or leaves its tree."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.memory import read_memory
from launcher.system import SystemView

GIB = 1 << 30
MEMINFO = "MemTotal:       16000000 kB\nMemFree:  1 kB\nMemAvailable:   8388608 kB\nHugePages_Total:       0\n"


def machine(root: Path, files: dict[str, str]) -> SystemView:
    for path, text in files.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return SystemView(root=root)


def test_bare_root_knows_nothing_and_does_not_fail(tmp_path: Path) -> None:
    view = SystemView(root=tmp_path)
    assert read_memory(view) is None
    assert view.read("/proc/version") is None
    assert view.names("/sys") == ()
    assert view.resolve("/a/../b") == "/b"


def test_memory_without_limits(tmp_path: Path) -> None:
    memory = read_memory(machine(tmp_path, {"/proc/meminfo": MEMINFO}))
    assert memory is not None
    assert (memory.available, memory.cgroup_limit) == (8 * GIB, None)


@pytest.mark.parametrize(
    ("files", "available", "limit"),
    [
        (
            {
                "/proc/self/cgroup": "0::/a/b\n",
                "/sys/fs/cgroup/a/b/memory.max": "max\n",
                "/sys/fs/cgroup/a/b/memory.current": "100\n",
                "/sys/fs/cgroup/a/memory.max": f"{4 * GIB}\n",
                "/sys/fs/cgroup/a/memory.current": f"{2 * GIB}\n",
                "/sys/fs/cgroup/a/memory.stat": f"anon 1\ninactive_file {GIB // 2}\nactive_file {GIB // 2}\n",
            },
            3 * GIB,
            4 * GIB,
        ),
        (
            {
                "/proc/self/cgroup": "0::/seen/only/by/the/host\n",
                "/sys/fs/cgroup/memory.max": f"{2 * GIB}\n",
                "/sys/fs/cgroup/memory.current": f"{GIB}\n",
            },
            GIB,
            2 * GIB,
        ),
        (
            {
                "/proc/self/cgroup": "5:cpu,cpuacct:/x\n4:memory:/x\n",
                "/sys/fs/cgroup/memory/x/memory.limit_in_bytes": f"{GIB}\n",
                "/sys/fs/cgroup/memory/x/memory.usage_in_bytes": f"{2 * GIB}\n",
                "/sys/fs/cgroup/memory/x/memory.stat": f"inactive_file {GIB}\ntotal_inactive_file 0\n",
                "/sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
                "/sys/fs/cgroup/memory/memory.usage_in_bytes": "1\n",
            },
            0,
            GIB,
        ),
    ],
    ids=["v2 parent", "v2 in a container", "v1"],
)
def test_cgroup_limits(tmp_path: Path, files: dict[str, str], available: int, limit: int) -> None:
    memory = read_memory(machine(tmp_path, {"/proc/meminfo": MEMINFO, **files}))
    assert memory is not None
    assert (memory.available, memory.cgroup_limit) == (available, limit)


def test_absolute_links_stay_in_the_tree(tmp_path: Path) -> None:
    view = machine(tmp_path, {"/dev/dri/card1": "inside"})
    (tmp_path / "dev" / "rknpu").symlink_to("/dev/dri/card1")
    (tmp_path / "dev" / "loop").symlink_to("/dev/loop")
    assert view.link("/dev/rknpu") == "/dev/dri/card1"
    assert view.resolve("/dev/rknpu") == "/dev/dri/card1"
    assert view.read("/dev/rknpu") == "inside"
    assert view.read("/dev/loop") is None
    assert not view.exists("/dev/loop")


def test_reader_does_not_wait_for_a_pipe_and_takes_no_more_than_it_may(tmp_path: Path) -> None:
    view = machine(tmp_path, {"/big": "x" * 100})
    os.mkfifo(tmp_path / "pipe")
    assert view.read("/pipe") in {None, ""}
    assert view.read_bytes("/big", 10) == b"x" * 10


def test_paths_and_numbers_that_are_none(tmp_path: Path) -> None:
    view = machine(tmp_path, {"/long": "9" * 5000, "/odd": "\u00b2", "/minus": "--3", "/good": "-17\n"})
    for system in (view, SystemView()):
        assert system.read("/a\0b") is None
        assert system.names("/a\0b") == ()
        assert system.link("/a\0b") is None
        assert not system.exists("/a\0b")
        assert system.place("/a\0b") is None
    assert [view.number(path) for path in ("/long", "/odd", "/minus", "/good")] == [None, None, None, -17]
