"""`--check`: what this machine is, what is there and what is missing.

Without ``=deep`` nothing is started, nothing is written and no device is opened beyond the question what it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from launcher.checks.limits import limits_findings
from launcher.checks.memory import memory_findings
from launcher.checks.network import network_findings
from launcher.checks.package import PackageView, package_view
from launcher.checks.runtime import engine_view, rknn_view
from launcher.checks.storage import folders, storage_findings
from launcher.messages import Catalogue
from launcher.options import Options
from launcher.report import Group, Report
from launcher.system import SystemView


def run_check(options: Options, environ: Mapping[str, str], texts: Catalogue) -> int:
    """Prints the report as it was asked for and returns its exit code."""
    report = examine(options, environ, SystemView())
    print(json.dumps(report.document(), indent=2) if options.json else report.text(texts))
    return report.exit_code


def examine(options: Options, environ: Mapping[str, str], system: SystemView) -> Report:
    """Looks at the machine and, where one is named, at the package."""
    engine = engine_view()
    rknn = rknn_view(system, environ)
    package = package_view(options, environ, system, engine.library)
    need = package.need
    found = [
        engine.finding,
        *rknn.findings,
        *memory_findings(system, need),
        *limits_findings(system, None if need is None else need.bytes),
        *storage_findings(
            system, folders(environ, _model_folder(options, package), has_package=package.path is not None)
        ),
        *package.findings,
        *network_findings(system, options.host, options.port),
    ]
    order = list(Group)
    found.sort(key=lambda finding: order.index(finding.group))
    return Report(
        findings=tuple(found),
        backend="cpu",
        largest_context=None if need is None else need.largest,
        strict=options.strict,
    )


def _model_folder(options: Options, package: PackageView) -> str:
    """Where the package is, or would be put."""
    if package.path is not None:
        return str(package.path.parent)
    return str((options.model_dir or Path()).absolute())
