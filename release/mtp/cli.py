"""The command line of `mindnano mtp`. Each command's module is imported only when it is asked for."""

from __future__ import annotations

import argparse
from pathlib import Path

from release.arguments import label

DIFFERENT = 1
"""Exit code of an audit that found a difference."""


def add_commands(parser: argparse.ArgumentParser) -> None:
    """Declares extract, append, strip, audit and inspect."""
    parser.description = (
        "Takes the MTP layer (which drafts tokens ahead) from where there is one, puts it into a package without one,"
        " takes it out again, and compares. No command replaces a file."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_extract(commands.add_parser("extract", help="write a side-car NAME.mtp.l3r"))
    _add_append(commands.add_parser("append", help="join a package and an MTP layer"))
    _add_strip(commands.add_parser("strip", help="give back the package without its MTP layer"))
    _add_audit(commands.add_parser("audit", help="compare tensor by tensor; exit code 1 if anything differs"))
    _add_inspect(commands.add_parser("inspect", help="print what a file says of its MTP layer"))


def _add_extract(parser: argparse.ArgumentParser) -> None:
    parser.description = "Writes the MTP layer of a base checkpoint or a package, and nothing else, as a side-car."
    parser.add_argument("source", type=Path, metavar="DIR|X.l3r", help="checkpoint folder, package or side-car")
    parser.add_argument("output", type=Path, metavar="NAME.mtp.l3r")
    parser.add_argument(
        "--trunk",
        type=Path,
        metavar="T.l3r",
        help="package that the layer is for (default: the one it is taken from; required for a checkpoint)",
    )
    parser.add_argument(
        "--recipe",
        choices=("f32", "bf16", "w8a8", "w4a8", "w4a8-plain"),
        help="how to store a checkpoint's layer, as in mindnano quantize (default: w8a8)",
    )
    parser.add_argument(
        "--calibration-scales",
        type=Path,
        metavar="FILE",
        help="what to round a checkpoint's layer by, as in mindnano quantize; what it says of the trunk is left alone",
    )
    parser.add_argument("--name", type=label, help="name of the donor (default: what the source says)")
    parser.add_argument("--license", type=label, help="licence of the donor's weights")
    parser.add_argument("--repository", type=label, help="where the donor comes from")
    parser.add_argument("--revision", type=label, help="revision of the repository")
    parser.set_defaults(command=_extract)


def _extract(arguments: argparse.Namespace) -> None:
    from release.mtp.extract import ExtractOptions, extract

    options = ExtractOptions(
        source=arguments.source,
        output=arguments.output,
        trunk=arguments.trunk,
        recipe=arguments.recipe,
        calibration_scales=arguments.calibration_scales,
        name=arguments.name,
        license=arguments.license,
        repository=arguments.repository,
        revision=arguments.revision,
    )
    print(extract(options))


def _add_append(parser: argparse.ArgumentParser) -> None:
    parser.description = "Writes a new package: the trunk, not a byte of its weights changed, and the MTP layer."
    parser.add_argument("trunk", type=Path, metavar="TRUNK.l3r", help="package without an MTP layer")
    parser.add_argument("donor", type=Path, metavar="NAME.mtp.l3r", help="side-car, or package with an MTP layer")
    parser.add_argument("output", type=Path, metavar="OUT.l3r")
    parser.add_argument(
        "--any-trunk",
        action="store_true",
        help="accept a layer that was made for another trunk of the same dimensions; the package will say so",
    )
    parser.set_defaults(command=_append)


def _append(arguments: argparse.Namespace) -> None:
    from release.mtp.append import AppendOptions, append

    options = AppendOptions(
        trunk=arguments.trunk, donor=arguments.donor, output=arguments.output, any_trunk=arguments.any_trunk
    )
    print(append(options))


def _add_strip(parser: argparse.ArgumentParser) -> None:
    parser.description = "Gives back the file that an MTP layer was appended to, bit for bit."
    parser.add_argument("package", type=Path, metavar="X.l3r", help="package with an MTP layer")
    parser.add_argument("output", type=Path, metavar="OUT.l3r")
    parser.set_defaults(command=_strip)


def _strip(arguments: argparse.Namespace) -> None:
    from release.mtp.append import StripOptions, strip

    print(strip(StripOptions(package=arguments.package, output=arguments.output)))


def _add_audit(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Hashes every tensor and compares. Without anything to compare with: with the file's own record."
    )
    parser.add_argument("package", type=Path, metavar="X.l3r")
    parser.add_argument("other", type=Path, nargs="?", metavar="Y.l3r", help="a package that should be the same")
    parser.add_argument("--trunk", type=Path, metavar="T.l3r", help="what the trunk should be")
    parser.add_argument(
        "--donor", type=Path, metavar="N.mtp.l3r|DIR", help="what the MTP layer should be, or the checkpoint it is from"
    )
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(command=_audit)


def _audit(arguments: argparse.Namespace) -> int:
    from release.mtp.audit import AuditOptions, audit
    from release.showing import show

    options = AuditOptions(
        package=arguments.package, other=arguments.other, trunk=arguments.trunk, donor=arguments.donor
    )
    report = audit(options)
    show(report.to_json() if arguments.json else report.to_text())
    return DIFFERENT if report.differs else 0


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.description = "Prints donor, trunk and tensors of the MTP layer."
    parser.add_argument("file", type=Path, metavar="X.l3r", help="side-car or package")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.set_defaults(command=_inspect)


def _inspect(arguments: argparse.Namespace) -> None:
    from release.mtp.inspection import inspect_mtp

    report = inspect_mtp(arguments.file)
    print(report.to_json() if arguments.json else report.to_text())
