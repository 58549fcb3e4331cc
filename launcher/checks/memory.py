"""Memory against what the package needs: the machine, its control groups, swap, CMA and the NPU's address spaces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from launcher.checks.report import Finding, Group, Status, fail, ok, skip, warn
from launcher.checks.storage import MODEL_BYTES
from launcher.memory import Memory, read_meminfo, read_memory
from launcher.npu.domains import domains_of, plan_domains
from launcher.progress import format_bytes
from launcher.system import SystemView

_SPARE_BYTES = 256 << 20  # with less than this left, anything else that starts makes the kernel drop weights
_CMA_BYTES = 64 << 20  # one piece of an NPU buffer without IOMMU


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """What the package needs with the options that were given.

    Attributes:
        context: tokens.
        bytes: memory for full speed with that context in use.
        largest: tokens of the largest context that fits now; None where none does.
        weights: the named parts that an NPU would hold, in bytes.
    """

    context: int
    bytes: int
    largest: int | None
    weights: Sequence[tuple[str, int]] = ()


def memory_findings(system: SystemView, need: Need | None) -> tuple[Finding, ...]:
    """The machine's memory and its cgroup limit against the need, then swap. The need is None without a package."""
    memory = read_memory(system)
    if memory is None:
        return (skip(Group.MEMORY, "memory-unknown"),)
    return (_against_need(memory, need), *_cgroup(memory), *_swap(system))


def cma_findings(system: SystemView, *, has_iommu: bool | None) -> tuple[Finding, ...]:
    """Contiguous memory, which only an NPU without IOMMU needs; None where that is not known."""
    facts = read_meminfo(system)
    free, total = facts.get("CmaFree", 0), facts.get("CmaTotal", 0)
    values = {"free": format_bytes(free), "total": format_bytes(total)}
    if has_iommu is not False:
        return (ok(Group.MEMORY, "memory-cma-unneeded", **values),) if total else ()
    if free < _CMA_BYTES:
        return (warn(Group.MEMORY, "memory-cma-small", **values),)
    return (ok(Group.MEMORY, "memory-cma", **values),)


def domain_findings(need: Need | None, driver: tuple[int, int, int] | None) -> tuple[Finding, ...]:
    """Whether the weights could lie in the NPU's address spaces. The CPU computes, so a misfit only warns."""
    if need is None or not need.weights:
        return ()
    domains = domains_of(driver)
    plan = plan_domains(need.weights, domains)
    facts = {
        "domains": domains,
        "used": len(plan.used),
        "weights": format_bytes(sum(size for _, size in need.weights)),
        "per_domain": ", ".join(format_bytes(taken) for taken in plan.used) or "-",
        "driver": "?" if driver is None else ".".join(map(str, driver)),
    }
    if plan.misfit is None:
        return (ok(Group.MEMORY, "memory-npu-domains", **facts),)
    facts |= {"buffer": plan.misfit, "missing": format_bytes(plan.missing), "free": format_bytes(plan.free)}
    slug = "memory-npu-domain-single" if domains == 1 else "memory-npu-domains-small"
    return (Finding(group=Group.MEMORY, status=Status.WARN, slug=slug, facts=facts, blocking=False),)


def _against_need(memory: Memory, need: Need | None) -> Finding:
    facts: dict[str, object] = {
        "available": format_bytes(memory.available),
        "total": format_bytes(memory.total),
        "available_bytes": memory.available,
        "total_bytes": memory.total,
    }
    if need is None:
        most = memory.total if memory.cgroup_limit is None else min(memory.total, memory.cgroup_limit)
        facts["need"] = format_bytes(MODEL_BYTES)
        return (warn if most < MODEL_BYTES else ok)(
            Group.MEMORY, "memory-small" if most < MODEL_BYTES else "memory", **facts
        )
    facts |= {"need": format_bytes(need.bytes), "need_bytes": need.bytes, "context": _tokens(need.context)}
    if need.bytes > memory.available:
        if need.largest is not None:
            return fail(Group.MEMORY, "memory-context", **facts, largest=_tokens(need.largest))
        slug = "memory-machine" if need.bytes > memory.total else "memory-busy"
        return fail(Group.MEMORY, slug, **facts)
    if memory.available - need.bytes < _SPARE_BYTES:
        return warn(Group.MEMORY, "memory-tight", **facts)
    return ok(Group.MEMORY, "memory-enough", **facts)


def _cgroup(memory: Memory) -> tuple[Finding, ...]:
    if memory.cgroup_limit is None:
        return ()
    facts = {
        "limit": format_bytes(memory.cgroup_limit),
        "total": format_bytes(memory.total),
        "group": memory.cgroup or "?",
    }
    if memory.cgroup_limit >= memory.total:
        return ()
    line = ok(Group.MEMORY, "memory-cgroup", **facts)
    # Names of containers and of units with user numbers.
    return (Finding(group=line.group, status=line.status, slug=line.slug, facts=facts, private=frozenset({"group"})),)


def _swap(system: SystemView) -> tuple[Finding, ...]:
    swap = read_meminfo(system).get("SwapTotal", 0)
    compressed = 0
    for line in (system.read("/proc/swaps") or "").splitlines()[1:]:
        words = line.split()
        if len(words) >= 3 and words[0].startswith("/dev/zram") and _is_number(words[2]):
            compressed += int(words[2]) * 1024
    if swap == 0:
        return (ok(Group.MEMORY, "memory-no-swap"),)
    if compressed:
        used = sum(_zram_used(system, name) for name in system.names("/sys/block") if name.startswith("zram"))
        facts = {"swap": format_bytes(swap), "zram": format_bytes(compressed), "used": format_bytes(used)}
        return (ok(Group.MEMORY, "memory-zram", **facts),)
    return (ok(Group.MEMORY, "memory-swap", swap=format_bytes(swap)),)


def _zram_used(system: SystemView, name: str) -> int:
    # orig_data_size compr_data_size mem_used_total ...
    words = (system.line(f"/sys/block/{name}/mm_stat") or "").split()
    return int(words[2]) if len(words) > 2 and _is_number(words[2]) else 0


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 20


def _tokens(count: int) -> str:
    return f"{count // 1024}K" if count % 1024 == 0 else str(count)
