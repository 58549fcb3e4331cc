"""Memory promised that a container does not have, an NPU that is overlooked, a reader that fails on a bare machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.system import SystemView

GIB = 1 << 30
MEMINFO = "MemTotal:       16000000 kB\nMemFree:  1 kB\nMemAvailable:   8388608 kB\nHugePages_Total:       0\n"


def machine(root: Path, files: dict[str, str]) -> SystemView:
    for path, text in files.items():
        place = root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return SystemView(root)


def test_bare_root_knows_nothing_and_does_not_fail(tmp_path: Path) -> None:
    view = SystemView(tmp_path)
    assert view.memory() is None
    assert view.board() is None
    assert view.npu() is None
    assert view.cpu_features() == frozenset()


def test_memory_without_limits(tmp_path: Path) -> None:
    memory = machine(tmp_path, {"/proc/meminfo": MEMINFO}).memory()
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
                "/sys/fs/cgroup/a/memory.stat": f"anon 1\ninactive_file {GIB}\n",
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
    memory = machine(tmp_path, {"/proc/meminfo": MEMINFO, **files}).memory()
    assert memory is not None
    assert (memory.available, memory.cgroup_limit) == (available, limit)


@pytest.mark.parametrize(
    "path",
    ["/sys/class/devfreq/fdab0000.npu/cur_freq", "/sys/module/rknpu/version", "/sys/bus/platform/drivers/RKNPU/bind"],
)
def test_npu_is_found(tmp_path: Path, path: str) -> None:
    assert machine(tmp_path, {path: "1"}).npu() is not None


def test_board_and_features(tmp_path: Path) -> None:
    view = machine(
        tmp_path,
        {
            "/proc/device-tree/model": "FriendlyElec NanoPi M6\0",
            "/proc/device-tree/compatible": "friendlyelec,nanopi-m6\0rockchip,rk3588s\0",
            "/proc/cpuinfo": "processor : 0\nFeatures\t: fp asimd asimddp\n",
        },
    )
    assert view.board() == "FriendlyElec NanoPi M6"
    assert "rockchip,rk3588s" in view.compatible()
    assert "asimddp" in view.cpu_features()
