"""The processor: its cores by size, its instructions, its clocks, and which cores this process may use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from launcher.checks.report import Finding, Group, fail, ok, skip, warn
from launcher.system import SystemView

X86: Final = frozenset({"x86_64", "amd64"})
ARM64: Final = frozenset({"aarch64", "arm64"})

_CPUS: Final = "/sys/devices/system/cpu"
_CORE_NAME: Final = re.compile(r"cpu([0-9]{1,4})")
_POLICY_NAME: Final = re.compile(r"policy([0-9]{1,4})")
_MAX_CORES: Final = 4096
# MIDR part numbers of Arm's small cores (A53, A55, A510, A520); every other part counts as big.
_SMALL_PARTS: Final = frozenset({0xD03, 0xD05, 0xD46, 0xD80})
# Under these drivers `powersave` means that the hardware chooses, and it chooses well.
_SELF_CLOCKED: Final = frozenset({"intel_pstate", "amd-pstate-epp", "amd_pstate_epp"})
# An idle core under `ondemand` or `schedutil` is slow and right to be; this one climbs too slowly for bursts.
_STEPPING: Final = frozenset({"conservative"})
_LOW: Final = 0.6


@dataclass(frozen=True, slots=True, kw_only=True)
class Cores:
    """Numbers of the cores. `big` holds all where they are alike; `usable` is online and allowed to this process."""

    big: tuple[int, ...]
    little: tuple[int, ...]
    offline: tuple[int, ...]
    usable: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Policy:
    """A frequency policy; clocks in MHz, 0 where unknown."""

    folder: str
    cores: tuple[int, ...]
    driver: str
    governor: str
    current: int
    allowed: int
    most: int


def cpu_findings(system: SystemView, kernels: tuple[str, ...] | None) -> tuple[Finding, ...]:
    """Judges the processor. `kernels`: names of the engine's kernels that run here, best first; None without it."""
    machine = system.host.machine
    if machine.lower() not in X86 | ARM64:
        return (fail(Group.CPU, "cpu-machine", machine=machine or "?"),)
    found = []
    cores = read_cores(system)
    if cores is None:
        found.append(skip(Group.CPU, "cpu-cores-unknown", machine=machine))
    else:
        found.append(_count(machine, cores))
    found.append(_instructions(system, machine, kernels))
    if cores is not None:
        found += _missing(system, cores)
    found += _clocks(system)
    return tuple(found)


def read_cores(system: SystemView) -> Cores | None:
    """The cores by size: by cpu_capacity, else by their MIDR part, else by their highest clock. None without sysfs."""
    present = parse_cores(system.line(f"{_CPUS}/present") or "")
    if not present:
        names = (_CORE_NAME.fullmatch(name) for name in system.names(_CPUS))
        present = tuple(sorted(int(match[1]) for match in names if match is not None))
    if not present:
        return None
    online = parse_cores(system.line(f"{_CPUS}/online") or "") or present
    allowed = _allowed(system) or online
    sizes = _sizes(system, present)
    largest = max(sizes.values(), default=0)
    # A core that is offline has no capacity to read; it counts as big, so that its absence is not passed over.
    big = tuple(core for core in present if sizes.get(core, largest) == largest)
    return Cores(
        big=big,
        little=tuple(core for core in present if core not in set(big)),
        offline=tuple(core for core in present if core not in set(online)),
        usable=tuple(core for core in online if core in set(allowed)),
    )


def parse_cores(text: str) -> tuple[int, ...]:
    """``"0-3,6"`` -> (0, 1, 2, 3, 6), as the kernel writes lists; nothing where it is no such list."""
    found: set[int] = set()
    for piece in text.strip().split(","):
        first, dash, last = piece.strip().partition("-")
        if not _is_core(first) or (dash and not _is_core(last)):
            return ()
        found.update(range(int(first), int(last if dash else first) + 1))
    return tuple(sorted(found))


def show_cores(cores: tuple[int, ...]) -> str:
    """(0, 1, 2, 3, 6) -> ``"0-3,6"``."""
    pieces: list[str] = []
    rest = sorted(cores)
    while rest:
        length = next((step for step, core in enumerate(rest) if core != rest[0] + step), len(rest))
        pieces.append(str(rest[0]) if length == 1 else f"{rest[0]}-{rest[length - 1]}")
        rest = rest[length:]
    return ",".join(pieces)


def _count(machine: str, cores: Cores) -> Finding:
    usable = set(cores.usable)
    used = tuple(core for core in cores.big if core in usable) or cores.usable
    if not cores.little:
        return ok(Group.CPU, "cpu-cores-alike", machine=machine, count=len(cores.big), used=show_cores(used))
    return ok(
        Group.CPU,
        "cpu-cores",
        machine=machine,
        big=len(cores.big),
        little=len(cores.little),
        used=show_cores(used),
    )


def _instructions(system: SystemView, machine: str, kernels: tuple[str, ...] | None) -> Finding:
    if kernels is not None:
        slow = kernels[:1] in {(), ("scalar",)}
        slug = "cpu-kernels-slow" if slow else "cpu-kernels"
        return (warn if slow else ok)(Group.CPU, slug, kernels=" ".join(kernels) or "-")
    wanted = ("avx2", "fma") if machine.lower() in X86 else ("asimddp",)
    features = _features(system)
    if not features:
        return skip(Group.CPU, "cpu-features-unknown")
    missing = [name for name in wanted if name not in features]
    if missing:
        return warn(Group.CPU, "cpu-features-missing", missing=" ".join(missing))
    return ok(Group.CPU, "cpu-features", features=" ".join(wanted))


def _missing(system: SystemView, cores: Cores) -> list[Finding]:
    found = []
    if cores.offline:
        commands = "; ".join(f"echo 1 | sudo tee {_CPUS}/cpu{core}/online" for core in cores.offline)
        found.append(warn(Group.CPU, "cpu-offline", cores=show_cores(cores.offline), commands=commands))
    everyone = set(cores.big) | set(cores.little)
    forbidden = tuple(sorted(everyone - set(cores.offline) - set(cores.usable)))
    if forbidden:
        found.append(warn(Group.CPU, "cpu-affinity", allowed=show_cores(cores.usable), forbidden=show_cores(forbidden)))
    return found


def _clocks(system: SystemView) -> list[Finding]:
    """One line for all policies that are alike."""
    alike: dict[tuple[str, str, int, int, bool], list[_Policy]] = {}
    for policy in _policies(system):
        key = (policy.driver, policy.governor, policy.allowed, policy.most, _is_held(policy))
        alike.setdefault(key, []).append(policy)
    found = []
    for policies in alike.values():
        first = policies[0]
        facts: dict[str, object] = {
            "cores": show_cores(tuple(core for policy in policies for core in policy.cores)),
            "mhz": min(policy.current for policy in policies),
            "max_mhz": first.most,
            "governor": first.governor,
        }
        if _is_held(first):
            places = " ".join(f"{policy.folder}/scaling_governor" for policy in policies)
            found.append(warn(Group.CPU, "cpu-governor", **facts, command=f"echo performance | sudo tee {places}"))
        elif 0 < first.allowed < first.most:
            places = " ".join(f"{policy.folder}/scaling_max_freq" for policy in policies)
            command = f"echo {first.most * 1000} | sudo tee {places}"
            found.append(warn(Group.CPU, "cpu-capped", **facts, allowed_mhz=first.allowed, command=command))
        else:
            found.append(ok(Group.CPU, "cpu-clock", **facts))
    return found


def _is_held(policy: _Policy) -> bool:
    if policy.driver in _SELF_CLOCKED:
        return False
    if policy.governor == "powersave":
        return True
    return policy.governor in _STEPPING and 0 < policy.current < policy.most * _LOW


def _policies(system: SystemView) -> list[_Policy]:
    found = []
    folders = (_POLICY_NAME.fullmatch(name) for name in system.names(f"{_CPUS}/cpufreq"))
    for match in sorted((match for match in folders if match is not None), key=lambda match: int(match[1])):
        folder = f"{_CPUS}/cpufreq/{match[0]}"
        governor = system.line(f"{folder}/scaling_governor")
        if governor is None:
            continue
        members = [word for word in (system.line(f"{folder}/affected_cpus") or "").split() if _is_core(word)]
        current = _megahertz(system, f"{folder}/scaling_cur_freq")
        found.append(
            _Policy(
                folder=folder,
                cores=tuple(int(word) for word in members) or (int(match[1]),),
                driver=system.line(f"{folder}/scaling_driver") or "",
                governor=governor,
                current=current,
                allowed=_megahertz(system, f"{folder}/scaling_max_freq"),
                most=_megahertz(system, f"{folder}/cpuinfo_max_freq") or current,
            )
        )
    return found


def _megahertz(system: SystemView, path: str) -> int:
    return max(0, system.number(path) or 0) // 1000


def _sizes(system: SystemView, present: tuple[int, ...]) -> dict[int, int]:
    """A number for each core that is larger for larger cores; empty where nothing tells them apart."""
    capacities = {core: system.number(f"{_CPUS}/cpu{core}/cpu_capacity") for core in present}
    known = {core: value for core, value in capacities.items() if value is not None}
    if known:
        return known
    parts = _parts(system)
    if parts:
        return {core: int(part not in _SMALL_PARTS) for core, part in parts.items() if core in present}
    clocks = {core: system.number(f"{_CPUS}/cpu{core}/cpufreq/cpuinfo_max_freq") for core in present}
    return {core: value for core, value in clocks.items() if value is not None}


def _parts(system: SystemView) -> dict[int, int]:
    """MIDR part by core, from /proc/cpuinfo of arm64."""
    found = {}
    core = None
    for line in (system.read("/proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        word = value.strip()
        if name.strip() == "processor":
            core = int(word) if _is_core(word) else None
        elif name.strip() == "CPU part" and core is not None and re.fullmatch(r"0x[0-9a-f]{1,8}", word):
            found[core] = int(word, 16)
    return found


def _features(system: SystemView) -> frozenset[str]:
    """Instructions that every core has."""
    lines = []
    for line in (system.read("/proc/cpuinfo") or "").splitlines():
        name, _, value = line.partition(":")
        if name.strip() in {"Features", "flags"}:
            lines.append(frozenset(value.split()))
    return frozenset.intersection(*lines) if lines else frozenset()


def _allowed(system: SystemView) -> tuple[int, ...]:
    for line in (system.read("/proc/self/status") or "").splitlines():
        name, _, value = line.partition(":")
        if name == "Cpus_allowed_list":
            return parse_cores(value)
    return ()


def _is_core(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 4 and int(word) < _MAX_CORES
