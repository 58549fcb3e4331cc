"""A board called big enough that is not, a limit that is not named, an NPU address space that overflows unseen."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.checks.memory import Need, cma_findings, domain_findings, memory_findings
from launcher.checks.report import Finding, Status
from launcher.messages import Catalogue, Language
from launcher.npu.domains import DOMAIN_BYTES, domains_of, plan_domains
from launcher.system import SystemView
from tests.fixtures.boards.boards import BOARDS
from tests.fixtures.boards.builder import Board

GIB = 1 << 30
BIG = Need(context=8192, bytes=5 * GIB, largest=None, weights=(("weights", 4400 << 20),))
ENGLISH = Catalogue(Language.ENGLISH)


def machine(tmp_path: Path, available: int, total: int = 16 * GIB, **more: int) -> SystemView:
    facts = {"MemTotal": total, "MemAvailable": available, **more}
    text = "".join(f"{name}:    {count // 1024} kB\n" for name, count in facts.items())
    return Board().file("/proc/meminfo", text).build(tmp_path)


def first(system: SystemView, need: Need | None) -> Finding:
    return memory_findings(system, need)[0]


@pytest.mark.parametrize(
    ("available", "total", "largest", "slug", "status"),
    [
        (14 * GIB, 16 * GIB, 262144, "memory-enough", Status.OK),
        (5 * GIB + (100 << 20), 16 * GIB, 8192, "memory-tight", Status.WARN),
        (5 * GIB - 4096, 16 * GIB, 4096, "memory-context", Status.FAIL),
        (4 * GIB, 16 * GIB, None, "memory-busy", Status.FAIL),
        (3 * GIB, 4 * GIB, None, "memory-machine", Status.FAIL),
    ],
)
def test_memory_is_held_against_the_need(
    tmp_path: Path, available: int, total: int, largest: int | None, slug: str, status: Status
) -> None:
    need = Need(context=8192, bytes=5 * GIB, largest=largest)
    found = first(machine(tmp_path, available, total), need)
    assert (found.slug, found.status) == (slug, status)
    assert "5.0 GiB" in found.text(ENGLISH)
    assert (found.next_step(ENGLISH) == "") == (status is Status.OK)


def test_failure_names_the_context_that_fits(tmp_path: Path) -> None:
    found = first(machine(tmp_path, 4 * GIB), Need(context=65536, bytes=5 * GIB, largest=16384))
    assert found.next_step(ENGLISH) == "--context 16K"
    assert found.group.exit_code == 5


def test_four_gib_board_fails_with_numbers(tmp_path: Path) -> None:
    found = first(BOARDS["four_gib_board"]().build(tmp_path), BIG)
    assert (found.slug, found.status) == ("memory-machine", Status.FAIL)
    assert found.facts["need"] == "5.0 GiB"
    assert str(found.facts["total"]).startswith("3.")


def test_small_machine_is_warned_before_the_download(tmp_path: Path) -> None:
    found = first(machine(tmp_path, 3 * GIB, 4 * GIB), None)
    assert (found.slug, found.status) == ("memory-small", Status.WARN)
    assert first(machine(tmp_path / "b", 3 * GIB, 8 * GIB), None).status is Status.OK


def test_limiting_group_is_named(tmp_path: Path) -> None:
    system = BOARDS["cgroup_limited"]().build(tmp_path)
    found = next(line for line in memory_findings(system, BIG) if line.slug == "memory-cgroup")
    assert found.facts["group"] == "/sys/fs/cgroup/system.slice/mindnano.service"
    assert found.facts["limit"] == "2.0 GiB"
    assert first(system, BIG).slug == "memory-busy"


def test_lowest_of_several_limits_is_named(tmp_path: Path) -> None:
    board = Board().file("/proc/meminfo", f"MemTotal: {16 << 20} kB\nMemAvailable: {15 << 20} kB\n")
    board.file("/proc/self/cgroup", "0::/a/b\n")
    for path, limit in (("/a/b", 8 * GIB), ("/a", 6 * GIB), ("", 12 * GIB)):
        board.file(f"/sys/fs/cgroup{path}/memory.max", f"{limit}\n").file(f"/sys/fs/cgroup{path}/memory.current", "0\n")
    found = next(line for line in memory_findings(board.build(tmp_path), None) if line.slug == "memory-cgroup")
    assert (found.facts["group"], found.facts["limit"]) == ("/sys/fs/cgroup/a", "6.0 GiB")


def test_zram_is_told_from_swap(tmp_path: Path) -> None:
    board = Board().file("/proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 8000000 kB\nSwapTotal: 3145728 kB\n")
    head = "Filename Type Size Used Priority\n"
    board.file("/proc/swaps", head + "/dev/zram0 partition 2097152 0 100\n/swapfile file 1048576 0 -2\n")
    board.file("/sys/block/zram0/mm_stat", f"100 50 {64 << 20} 0 0 0 0 0 0\n")
    found = memory_findings(board.build(tmp_path), None)[-1]
    assert found.slug == "memory-zram"
    assert (found.facts["swap"], found.facts["zram"], found.facts["used"]) == ("3.0 GiB", "2.0 GiB", "64.0 MiB")
    board.file("/proc/swaps", head + "/swapfile file 3145728 0 -2\n")
    assert memory_findings(board.build(tmp_path / "b"), None)[-1].slug == "memory-swap"


def test_cma_matters_only_without_iommu(tmp_path: Path) -> None:
    small = machine(tmp_path / "a", GIB, CmaTotal=8 << 20, CmaFree=7 << 20)
    large = machine(tmp_path / "b", GIB, CmaTotal=512 << 20, CmaFree=400 << 20)
    for known in (True, None):
        assert [line.slug for line in cma_findings(small, has_iommu=known)] == ["memory-cma-unneeded"]
    assert [line.slug for line in cma_findings(small, has_iommu=False)] == ["memory-cma-small"]
    assert [line.slug for line in cma_findings(large, has_iommu=False)] == ["memory-cma"]


@pytest.mark.parametrize(
    ("driver", "domains"),
    [(None, 1), ((0, 8, 8), 1), ((0, 9, 5), 1), ((0, 9, 6), 16), ((0, 9, 8), 16), ((1, 0, 0), 16)],
)
def test_domains_come_with_the_driver(driver: tuple[int, int, int] | None, domains: int) -> None:
    assert domains_of(driver) == domains


def test_big_model_needs_two_domains() -> None:
    (old,) = domain_findings(BIG, (0, 9, 3))
    assert (old.slug, old.status, old.blocking) == ("memory-npu-domain-single", Status.WARN, False)
    assert old.facts["buffer"] == "weights"
    # 4400 MiB in pieces of 64 into 3.9e9 bytes: 58 pieces find place.
    assert old.facts["missing"] == "688 MiB"
    assert old.facts["free"] == "7.3 MiB"
    (new,) = domain_findings(BIG, (0, 9, 8))
    assert (new.slug, new.status, new.facts["used"]) == ("memory-npu-domains", Status.OK, 2)


def test_sixteen_domains_can_be_too_few() -> None:
    (found,) = domain_findings(Need(context=1, bytes=1, largest=1, weights=(("weights", 70 * 10**9),)), (0, 9, 8))
    assert found.slug == "memory-npu-domains-small"


def test_pieces_fill_domains_without_overflow() -> None:
    plan = plan_domains([("a", DOMAIN_BYTES), ("b", 10), ("c", 100 << 20)], 2)
    assert plan.misfit is None
    assert all(used <= DOMAIN_BYTES for used in plan.used)
    assert sum(plan.used) >= DOMAIN_BYTES + 10 + (100 << 20)
    assert plan_domains([("a", 2 * DOMAIN_BYTES), ("b", 1)], 2).misfit in {"a", "b"}
    assert plan_domains([], 1).used == ()


def test_nothing_is_said_about_domains_without_a_package() -> None:
    assert domain_findings(None, (0, 9, 8)) == ()


@pytest.mark.parametrize("text", [b"", b"MemTotal: x kB\n", b"\xff" * 100, b"MemTotal:\n" * 10])
def test_unreadable_meminfo_is_skipped(tmp_path: Path, text: bytes) -> None:
    system = Board().file("/proc/meminfo", text).build(tmp_path)
    assert [line.slug for line in memory_findings(system, BIG)] == ["memory-unknown"]
