"""`--check`: what this machine is, what is there and what is missing.

Without ``=deep`` nothing is started, nothing is written and no device is opened beyond the question what it is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from launcher.checks.board import board_findings, read_board
from launcher.checks.bug_report import bug_report
from launcher.checks.cpu import cpu_findings
from launcher.checks.libc import libc_findings
from launcher.checks.limits import limits_findings
from launcher.checks.memory import cma_findings, domain_findings, memory_findings
from launcher.checks.network import network_findings
from launcher.checks.npu import NpuState, npu_findings, probe_npu
from launcher.checks.package import PackageView, package_view
from launcher.checks.redact import Scrubber
from launcher.checks.report import Finding, Group, Report, fail, ok
from launcher.checks.runtime import engine_view, rknn_view
from launcher.checks.selftest import Run, selftest_findings
from launcher.checks.storage import folders, storage_findings
from launcher.download.model_store import model_folder
from launcher.messages import Catalogue
from launcher.npu.selftest import SelfTest, run_selftest
from launcher.options.parse import Options
from launcher.options.table import MlaBackend
from launcher.system import SystemView
from launcher.terminal import emit

BACKEND = "cpu"


def run_check(options: Options, environ: Mapping[str, str], texts: Catalogue, system: SystemView | None = None) -> int:
    """Prints the report as it was asked for and returns its exit code. By default it is about this machine."""
    machine = SystemView() if system is None else system
    report = examine(options, environ, machine)
    if options.json:
        emit(json.dumps(report.document(), indent=2))
    elif options.report:
        emit(bug_report(report, machine, Scrubber.of(environ, machine)))
    else:
        emit(report.text(texts))
    return report.exit_code


def _run_selftest(
    library: str, environ: Mapping[str, str], locks: Sequence[str], oom_kills: Callable[[], int]
) -> SelfTest:
    return run_selftest(library, environ, locks=locks, oom_kills=oom_kills)


def examine(
    options: Options, environ: Mapping[str, str], system: SystemView, *, selftest: Run = _run_selftest
) -> Report:
    """Looks at the machine and at the package.

    Args:
        options: `check_deep` allows the self test and the hashing of the package.
        environ: the environment.
        system: the machine.
        selftest: runs the NPU's self test.
    """
    required = options.mla_backend is MlaBackend.NPU
    engine = engine_view()
    rknn = rknn_view(system, environ)
    package = package_view(options, environ, system, engine.library)
    need = package.need
    board = read_board(system, options.assume_board)
    npu = probe_npu(system, board)
    kernels = None if engine.library is None else engine.library.simd_available
    found = [
        *board_findings(system, board),
        *cpu_findings(system, kernels),
        *npu_findings(system, board, npu, required),
        *_backend(npu, required=required),
        engine.finding,
        *rknn.findings,
        *libc_findings(system, npu.usable, required),
        *memory_findings(system, need),
        *cma_findings(system, has_iommu=npu.iommu if npu.usable else None),
        *limits_findings(system, None if need is None else need.bytes),
        *storage_findings(
            system, folders(environ, _model_folder(options, environ, package), has_package=package.path is not None)
        ),
        *package.findings,
        *network_findings(system, options.host, options.port),
    ]
    if npu.usable:
        found += domain_findings(need, npu.driver_version)
    if options.check_deep:
        scrub = Scrubber.of(environ, system)
        held = any(line.slug == "npu-held" for line in found)
        found += selftest_findings(system, environ, rknn.library, scrub, selftest, usable=npu.usable, held=held)
    order = list(Group)
    return Report(
        findings=tuple(sorted(found, key=lambda finding: order.index(finding.group))),
        backend=BACKEND,
        largest_context=None if need is None else need.largest,
        strict=options.strict,
    )


def _backend(npu: NpuState, *, required: bool) -> tuple[Finding, ...]:
    """What will compute, where that could surprise."""
    if required:
        return (fail(Group.NPU, "backend-npu"),)
    return (ok(Group.NPU, "backend-cpu"),) if npu.usable else ()


def _model_folder(options: Options, environ: Mapping[str, str], package: PackageView) -> str:
    """Where the package is, or would be put."""
    if package.path is not None:
        return str(package.path.parent)
    return str(model_folder(options, environ).absolute())
