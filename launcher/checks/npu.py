"""The NPU: which of the four worlds of drivers this is, whether we may use it, and what to do where we may not.

The worlds: the vendor's driver with a DRM node, the same driver as a misc device, the same driver as a module built
beside a mainline kernel, and mainline's own driver rocket, which the vendor's runtime cannot use.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import Final

from launcher.checks.access import NpuNode, describe_node, read_identity, reason_for_refusal
from launcher.checks.board import BINNED, Board
from launcher.checks.clocks import npu_clock_findings
from launcher.checks.npu_traces import holder_findings, log_findings
from launcher.checks.report import Finding, Group, Status, ok, skip, warn
from launcher.npu.probe import RK3588_HARDWARE, RKNPU, Failure, Magic, NodeProbe, probe_node
from launcher.npu.sysfs import Candidate, NpuTree, misplaced_node, read_npu_tree
from launcher.system import SystemView

_FULL_CORES: Final = 3
# Failures whose cause the kernel's log may name, so that it is worth saying where the log cannot be read.
_EXPLAINED_BY_LOG: Final = frozenset(
    {
        "npu-no-driver",
        "npu-disabled",
        "npu-not-described",
        "npu-node-missing",
        "npu-open",
        "npu-timeout",
        "npu-foreign",
        "npu-no-answer",
    }
)
_OK: Final = "ok"
_NOT_TRIED: Final = "not tried"


class World(Enum):
    """What drives the NPU."""

    NONE = "none"
    VENDOR_DRM = "vendor-drm"
    MISC = "misc"
    OUT_OF_TREE = "out-of-tree"
    ROCKET = "rocket"


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverJudgement:
    """What is known about the versions below `below`, down to the row before."""

    below: tuple[int, int, int]
    status: Status
    slug: str


# Sources: Rockchip's runtime 1.5.2 (refuses below 0.7.0); rknn-llm#413 (int8 with 0.8.2); rknn-toolkit2#294, #320
# (second and third core with 0.9.2 and 0.9.3); the driver's own changes (domains 0.9.6, tight IOVA 0.9.7).
DRIVERS: Final = (
    DriverJudgement(below=(0, 7, 0), status=Status.FAIL, slug="npu-driver-unusable"),
    DriverJudgement(below=(0, 8, 3), status=Status.WARN, slug="npu-driver-int8"),
    DriverJudgement(below=(0, 9, 0), status=Status.WARN, slug="npu-driver-domains"),
    DriverJudgement(below=(0, 9, 6), status=Status.WARN, slug="npu-driver-cores"),
    DriverJudgement(below=(0, 9, 8), status=Status.WARN, slug="npu-driver-older"),
)
_GOOD_DRIVER: Final = DriverJudgement(below=(1 << 32, 0, 0), status=Status.OK, slug="npu-driver")


@dataclass(frozen=True, slots=True, kw_only=True)
class NpuState:
    """The NPU as found.

    Attributes:
        world: what drives it.
        nodes: every node of it, with the result of opening it.
        node: the one to use, a card node where possible because the vendor's runtime opens that; None without.
        driver_version: major, minor, patch.
        hw_version: 0x46495245 for the RK3588's.
        iommu: whether it sees memory through an IOMMU.
        frequency: in Hz, as the driver says.
        cores: None where nothing says how many.
        usable: whether the vendor's runtime may be loaded.
        reason: slug of the finding that says why not; empty where usable.
        error: name of the errno behind the reason, or an empty string.
    """

    world: World
    nodes: tuple[NpuNode, ...] = ()
    node: str | None = None
    driver_version: tuple[int, int, int] | None = None
    hw_version: int | None = None
    iommu: bool | None = None
    frequency: int | None = None
    cores: int | None = None
    usable: bool = False
    reason: str = ""
    error: str = ""


def judge_driver(version: tuple[int, int, int]) -> DriverJudgement:
    """The row of `DRIVERS` for a version; versions newer than all that are known count as good."""
    return next((row for row in DRIVERS if version < row.below), _GOOD_DRIVER)


def probe_npu(system: SystemView, board: Board) -> NpuState:
    """Finds the NPU by sysfs, then asks its driver. Opens no node that sysfs does not tie to an NPU."""
    tree = read_npu_tree(system, assume_npu=board.has_rk3588_npu)
    if not tree.nodes:
        return _without_nodes(system, board, tree)
    found = [(candidate, *_probe(system, candidate)) for candidate in tree.nodes]
    # A node that sysfs ties to no driver by name counts unless its driver says another name.
    ours = [
        (node, probe)
        for candidate, node, probe in found
        if node is not None and probe is not None and (candidate.certain or probe.driver == RKNPU or not probe.opened)
    ]
    misc = tree.nodes[0].magic is Magic.MISC
    state = NpuState(
        world=World.MISC if misc else World.OUT_OF_TREE if tree.out_of_tree else World.VENDOR_DRM,
        nodes=tuple(node for node, _ in ours),
        cores=_cores(tree, board),
    )
    if not ours:
        return _without_files(board, tree, state)
    answered = next(((node, probe) for node, probe in ours if probe.driver == RKNPU and probe.error is None), None)
    if answered is None:
        return _unanswered(system, board, state, [probe for _, probe in ours])
    node, probe = answered
    state = replace(
        state,
        driver_version=probe.version,
        hw_version=probe.hardware,
        iommu=probe.iommu,
        frequency=probe.frequency,
    )
    reason = _objection(state, misc)
    return replace(state, node=None if reason else node.path, usable=not reason, reason=reason)


def npu_findings(system: SystemView, board: Board, state: NpuState, required: bool) -> tuple[Finding, ...]:
    """The NPU's lines. `required`: without it the program must not start, so that its failures block."""
    if state.reason in {"npu-none", "npu-hidden"} and not required:
        return (skip(Group.NPU, state.reason, backend="cpu"),)
    facts = _facts(system, board, state, required)
    found = []
    if state.reason:
        slug = "npu-missing" if state.reason == "npu-none" else state.reason
        found.append(Finding(group=Group.NPU, status=Status.FAIL, slug=slug, facts=facts, blocking=required))
    elif state.driver_version is not None:
        row = judge_driver(state.driver_version)
        found.append(Finding(group=Group.NPU, status=row.status, slug=row.slug, facts=facts))
    if state.usable:
        found += _details(system, board, state, facts)
    place = misplaced_node(system)
    if place is not None and state.world is not World.NONE:
        found.append(warn(Group.NPU, "npu-symlink", target=place))
    found += holder_findings(system, tuple(node.path for node in state.nodes))
    found += log_findings(system, wanted=state.reason in _EXPLAINED_BY_LOG)
    return tuple(found)


def _probe(system: SystemView, candidate: Candidate) -> tuple[NpuNode | None, NodeProbe | None]:
    node = system.devices.stat(candidate.path)
    if node is None:
        return None, None
    probe = probe_node(system.devices, candidate.path, candidate.magic)
    result = _OK if probe.opened else probe.error.code if probe.error is not None else _NOT_TRIED
    return describe_node(system, candidate.path, node, result), probe


def _without_nodes(system: SystemView, board: Board, tree: NpuTree) -> NpuState:
    """No node of the vendor's driver: rocket, no driver, or no NPU."""
    if tree.accel or tree.bound("rocket"):
        nodes = [(path, system.devices.stat(path)) for path in tree.accel]
        shown = tuple(describe_node(system, path, node, _NOT_TRIED) for path, node in nodes if node is not None)
        return NpuState(world=World.ROCKET, nodes=shown, cores=_cores(tree, board), reason="npu-rocket")
    if tree.bound("rknpu"):
        state = NpuState(world=World.OUT_OF_TREE if tree.out_of_tree else World.VENDOR_DRM, cores=_cores(tree, board))
        return _without_files(board, tree, state)
    reason = "npu-none"
    if tree.declared == "disabled" and not tree.devices:
        reason = "npu-disabled"
    elif tree.devices or tree.declared:
        reason = "npu-no-driver"
    elif board.has_rk3588_npu:
        reason = "npu-not-described" if tree.visible else _missing_from_dev(board)
    elif board.masked:
        reason = "npu-hidden"
    return NpuState(world=World.NONE, cores=_cores(tree, board), reason=reason)


def _without_files(board: Board, tree: NpuTree, state: NpuState) -> NpuState:
    """The kernel has the device, /dev has not; or none of the nodes that were asked is an NPU's."""
    if tree.bound("rknpu") or any(candidate.certain for candidate in tree.nodes):
        return replace(state, reason=_missing_from_dev(board))
    return replace(state, world=World.NONE, reason="npu-not-described")


def _missing_from_dev(board: Board) -> str:
    if board.container is None:
        return "npu-node-missing"
    return "npu-kubernetes" if board.container == "kubernetes" else "npu-container"


def _unanswered(system: SystemView, board: Board, state: NpuState, probes: list[NodeProbe]) -> NpuState:
    """No node answered all questions: by the failure that tells most."""
    opened = [probe for probe in probes if probe.opened]
    if opened:
        # Without an error another driver gave its name.
        error = next((probe.error for probe in opened if probe.error is not None), None)
        failure, code = (Failure.FOREIGN, opened[0].driver) if error is None else (error.failure, error.code)
        slug = {Failure.TIMEOUT: "npu-timeout", Failure.FOREIGN: "npu-foreign"}.get(failure, "npu-no-answer")
        return replace(state, reason=slug, error=code)
    failures = {probe.error.failure: probe.error.code for probe in probes if probe.error is not None}
    if Failure.REFUSED in failures:
        return replace(state, reason="npu-refused", error=failures[Failure.REFUSED])
    if Failure.FORBIDDEN in failures:
        closed = tuple(node for node in state.nodes if node.result == "EACCES")
        reason = reason_for_refusal(system, closed, board.container is not None)
        return replace(state, reason=reason, error=failures[Failure.FORBIDDEN])
    return replace(state, reason="npu-open", error=next(iter(failures.values()), "?"))


def _objection(state: NpuState, misc: bool) -> str:
    """Why an NPU that answers cannot be used; empty where it can."""
    if state.hw_version != RK3588_HARDWARE:
        return "npu-other"
    if state.driver_version is not None and judge_driver(state.driver_version).status is Status.FAIL:
        return judge_driver(state.driver_version).slug
    return "npu-misc" if misc else ""


def _cores(tree: NpuTree, board: Board) -> int | None:
    if tree.cores is not None:
        return tree.cores
    return _FULL_CORES if board.has_rk3588_npu and board.soc not in BINNED else None


def _facts(system: SystemView, board: Board, state: NpuState, required: bool) -> dict[str, object]:
    """Facts that every line about the driver may show; all are text or numbers."""
    version = state.driver_version
    closed = [node for node in state.nodes if node.result not in {_OK, _NOT_TRIED}]
    return {
        "world": state.world.value,
        "version": "?" if version is None else ".".join(map(str, version)),
        "node": state.node or (state.nodes[0].path if state.nodes else "-"),
        "nodes": "; ".join(node.show() for node in state.nodes) or "-",
        "groups": ",".join(dict.fromkeys(node.group for node in closed)) or "-",
        "gids": " ".join(f"--group-add {gid}" for gid in dict.fromkeys(node.gid for node in closed)) or "-",
        "kernel": system.line("/proc/sys/kernel/osrelease") or "?",
        "hardware": "?" if state.hw_version is None else f"{state.hw_version:#x}",
        "cores": "?" if state.cores is None else state.cores,
        "soc": board.soc or "?",
        "error": state.error or "-",
        "backend": "none" if required else "cpu",
    }


def _details(system: SystemView, board: Board, state: NpuState, facts: dict[str, object]) -> list[Finding]:
    """What there is to say about an NPU that can be used."""
    found = []
    if all(node.result == _OK for node in state.nodes):
        found.append(ok(Group.NPU, "npu-nodes", nodes=facts["nodes"]))
    else:
        identity = read_identity(system)
        closed = [node for node in state.nodes if node.result != _OK]
        promised = all(node.gid in identity.promised for node in closed)
        slug = "npu-nodes-login" if promised else "npu-nodes-partly"
        found.append(warn(Group.NPU, slug, nodes=facts["nodes"], groups=facts["groups"]))
    if state.cores is not None and state.cores < _FULL_CORES:
        found.append(warn(Group.NPU, "npu-cores", cores=state.cores, full=_FULL_CORES, soc=board.soc or "?"))
    if state.iommu is False:
        found.append(warn(Group.NPU, "npu-no-iommu"))
    found += npu_clock_findings(system, state.frequency)
    return found
