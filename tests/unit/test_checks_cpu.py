"""Big cores taken for little ones, a governor or a limit that is not noticed, a processor that cannot run it."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.checks.cpu import cpu_findings, parse_cores, read_cores, show_cores
from launcher.checks.report import Finding, Status
from launcher.messages import Catalogue, Language
from tests.fixtures.boards import rk3588 as parts
from tests.fixtures.boards.boards import BOARDS
from tests.fixtures.boards.builder import Board as Machine

ENGLISH = Catalogue(Language.ENGLISH)
CPUS = "/sys/devices/system/cpu"


def look(machine: Machine, root: Path, kernels: tuple[str, ...] | None = None) -> dict[str, Finding]:
    return {finding.slug: finding for finding in cpu_findings(machine.build(root), kernels)}


def without_capacity(machine: Machine) -> Machine:
    for core in range(8):
        machine.remove(f"{CPUS}/cpu{core}/cpu_capacity")
    return machine


@pytest.mark.parametrize("source", ["capacity", "part", "clock"])
def test_big_cores_are_found(source: str, tmp_path: Path) -> None:
    machine = parts.rk3588()
    if source != "capacity":
        without_capacity(machine)
    if source == "clock":
        machine.remove("/proc/cpuinfo")
        for core in range(8):
            machine.file(f"{CPUS}/cpu{core}/cpufreq/cpuinfo_max_freq", "1800000\n" if core < 4 else "2304000\n")
    elif source == "capacity":
        machine.remove("/proc/cpuinfo")
    cores = read_cores(machine.build(tmp_path))
    assert cores is not None
    assert (cores.big, cores.little) == ((4, 5, 6, 7), (0, 1, 2, 3))


def test_cores_that_are_used_are_shown(tmp_path: Path) -> None:
    assert look(BOARDS["nanopi_m6"](), tmp_path)["cpu-cores"].facts == {
        "machine": "aarch64",
        "big": 4,
        "little": 4,
        "used": "4-7",
    }


def test_affinity_without_big_cores_uses_the_little_ones(tmp_path: Path) -> None:
    machine = parts.rk3588()
    parts.identity(machine, groups=(), allowed="0-3")
    found = look(machine, tmp_path)
    assert found["cpu-cores"].facts["used"] == "0-3"
    assert found["cpu-affinity"].facts == {"allowed": "0-3", "forbidden": "4-7"}


def test_offline_core_is_named_with_the_command(tmp_path: Path) -> None:
    machine = parts.rk3588().file(f"{CPUS}/online", "0-3,5,7\n").remove(f"{CPUS}/cpu6/cpu_capacity")
    found = look(machine, tmp_path)
    assert found["cpu-offline"].facts["cores"] == "4,6"
    assert f"echo 1 | sudo tee {CPUS}/cpu6/online" in found["cpu-offline"].next_step(ENGLISH)
    assert found["cpu-cores"].facts["big"] == 4
    assert "cpu-affinity" not in found


@pytest.mark.parametrize("machine_name", ["riscv64", "armv7l", "i686", ""])
def test_processor_that_is_not_supported(machine_name: str, tmp_path: Path) -> None:
    machine = parts.rk3588()
    machine.host.machine = machine_name
    found = look(machine, tmp_path)
    assert list(found) == ["cpu-machine"]
    assert found["cpu-machine"].status is Status.FAIL
    assert found["cpu-machine"].blocking


@pytest.mark.parametrize(
    ("kernels", "slug"),
    [(("dotprod", "neon", "scalar"), "cpu-kernels"), (("scalar",), "cpu-kernels-slow"), ((), "cpu-kernels-slow")],
)
def test_kernels_of_the_engine_come_first(kernels: tuple[str, ...], slug: str, tmp_path: Path) -> None:
    assert slug in look(parts.rk3588(), tmp_path, kernels)


@pytest.mark.parametrize("lacking", [b" asimddp", b" fma", b" avx2"])
def test_missing_instructions_are_named(lacking: bytes, tmp_path: Path) -> None:
    machine = BOARDS["nanopi_m6"]() if lacking == b" asimddp" else BOARDS["pc"]()
    text = machine.files["/proc/cpuinfo"]
    # One core without it is enough: threads move.
    machine.file("/proc/cpuinfo", text.replace(lacking, b"", 1))
    found = look(machine, tmp_path)
    assert found["cpu-features-missing"].facts["missing"] == lacking.decode().strip()


def test_powersave_is_named_with_the_command(tmp_path: Path) -> None:
    """Row 19: a governor that holds the cores low."""
    machine = parts.rk3588()
    for members in ((4, 5), (6, 7)):
        parts.policy(machine, members, 2_304_000, "powersave", current=408_000)
    line = look(machine, tmp_path)["cpu-governor"]
    assert (line.facts["cores"], line.facts["mhz"], line.facts["max_mhz"]) == ("4-7", 408, 2304)
    assert line.next_step(ENGLISH) == (
        f"echo performance | sudo tee {CPUS}/cpufreq/policy4/scaling_governor {CPUS}/cpufreq/policy6/scaling_governor"
    )


@pytest.mark.parametrize(
    ("driver", "governor", "current", "slug"),
    [
        ("cpufreq-dt", "conservative", 408_000, "cpu-governor"),
        ("cpufreq-dt", "ondemand", 408_000, "cpu-clock"),
        ("cpufreq-dt", "ondemand", 2_304_000, "cpu-clock"),
        ("cpufreq-dt", "schedutil", 408_000, "cpu-clock"),
        ("cpufreq-dt", "powersave", 2_304_000, "cpu-governor"),
        ("intel_pstate", "powersave", 408_000, "cpu-clock"),
        ("amd-pstate-epp", "powersave", 408_000, "cpu-clock"),
    ],
)
def test_governors_are_judged_with_their_driver(
    driver: str, governor: str, current: int, slug: str, tmp_path: Path
) -> None:
    machine = parts.rk3588().remove(f"{CPUS}/cpufreq")
    parts.policy(machine, (0, 1, 2, 3, 4, 5, 6, 7), 2_304_000, governor, current=current)
    machine.file(f"{CPUS}/cpufreq/policy0/scaling_driver", driver + "\n")
    assert slug in look(machine, tmp_path)


def test_capped_clock_is_named(tmp_path: Path) -> None:
    machine = parts.rk3588().file(f"{CPUS}/cpufreq/policy6/scaling_max_freq", "1608000\n")
    line = look(machine, tmp_path)["cpu-capped"]
    assert (line.facts["cores"], line.facts["allowed_mhz"]) == ("6-7", 1608)
    assert "echo 2304000 |" in line.next_step(ENGLISH)


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("0-3,6", (0, 1, 2, 3, 6)),
        ("5", (5,)),
        ("0-0", (0,)),
        ("7-0", ()),
        ("", ()),
        ("0-99999", ()),
        ("0-3,x", ()),
        ("-1", ()),
    ],
)
def test_lists_of_cores(text: str, cores: tuple[int, ...]) -> None:
    assert parse_cores(text) == cores


@pytest.mark.parametrize("text", ["0-3,6", "5", "0-1,3-4,9", ""])
def test_lists_are_shown_as_they_are_read(text: str) -> None:
    assert show_cores(parse_cores(text)) == text
