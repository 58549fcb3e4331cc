"""`mindnano`: the publisher's command line. Each command's module is imported only when it is asked for."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from io import TextIOWrapper
from pathlib import Path

import launcher
from launcher.errors import EXIT_SIGTERM, InternalError, MindnanoError
from launcher.integrity.release_files import printable
from release.arguments import count, label, positive, positive_list, words
from release.help_text import EXIT_CODES, CommandHelp
from release.signals import ended_in_good_order
from release.system_errors import system_error

_INTERRUPTED = 130
_DEMO = Path(__file__).resolve().parents[1] / "build" / "demo" / "demo.l3r"  # where set-up packs the built-in model
_KV_TYPES = ("f32", "bf16", "fp16", "fp8", "int8")

Command = Callable[[argparse.Namespace], int | None]
"""Returns the exit code where it is not 0 although nothing went wrong."""


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit code. Errors go to stderr with what to do next."""
    _show_any_name()
    arguments = _parser().parse_args(argv)
    command: Command = arguments.command
    try:
        with ended_in_good_order():
            code = command(arguments) or 0
        if sys.stdout is not None:
            sys.stdout.flush()  # a full disk shows here at the latest
    except MindnanoError as error:
        return _report(error)
    except KeyboardInterrupt:
        print("mindnano: interrupted", file=sys.stderr)
        return _INTERRUPTED
    except SystemExit as stop:
        print("mindnano: terminated", file=sys.stderr)
        return stop.code if isinstance(stop.code, int) else 1
    except BrokenPipeError:
        sys.stdout = None  # the reader has gone: nothing more can be said, and closing must not complain
        return 0
    except OSError as error:
        sys.stdout = None  # as above
        return _report(system_error(error))
    except MemoryError:
        print("mindnano: error: not enough memory", file=sys.stderr)
        return 5
    return code


def _show_any_name() -> None:
    """Names of files need not be UTF-8. Written as an escape, such a byte neither ends the program nor spoils JSON."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _report(error: MindnanoError) -> int:
    lines = map(printable, error.message.split("\n"))  # a name out of a file must not move the cursor
    print("mindnano: error: " + "\n".join(lines) + f" [{error.slug}]", file=sys.stderr)
    if isinstance(error, InternalError) and error.slug != "system-error":
        print("mindnano: this is a bug; please report it with the command that led to it", file=sys.stderr)
    if error.hint:
        print(f"mindnano: {error.hint}", file=sys.stderr)
    return EXIT_SIGTERM if error.slug == "terminated" else error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="mindnano",
        description="Converts Ling-3.0 checkpoints to .l3r packages, measures them, builds the portable program,\n"
        "and makes, checks and publishes releases. `mindnano COMMAND --help` lists the options of a command.",
        epilog=EXIT_CODES,
        formatter_class=CommandHelp,
    )
    parser.add_argument("--version", action="version", version=f"mindnano {launcher.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    _add_calibrate(commands.add_parser("calibrate", help="learn from texts which columns of the matrices count"))
    _add_quantize(commands.add_parser("quantize", help="convert a checkpoint to assets and manifest.json"))
    _add_pack(commands.add_parser("pack", help="join assets to one .l3r file"))
    _add_mtp(commands.add_parser("mtp", help="take out, put in and compare the MTP layer"))
    _add_inspect(commands.add_parser("inspect", help="print what a package holds"))
    _add_logits(commands.add_parser("logits", help="write the logits of every position"))
    _add_fidelity(commands.add_parser("fidelity", help="measure how far packages are from their checkpoint"))
    _add_bench(commands.add_parser("bench", help="measure the server, or the engine alone"))
    _add_bundle(commands.add_parser("bundle", help="build the portable program"))
    _add_finalize(commands.add_parser("finalize", help="make a release folder of program and package"))
    _add_verify(commands.add_parser("verify", help="check a release folder"))
    _add_publish(commands.add_parser("publish", help="upload a release to Hugging Face in one commit"))
    return parser


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.description = "Runs texts through a bf16 or f32 package; writes weights for quantize --calibration-scales."
    parser.add_argument("--package", type=Path, required=True, metavar="X.l3r")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE.safetensors")
    parser.add_argument(
        "--text",
        type=Path,
        nargs="+",
        metavar="FILE",
        help="UTF-8 text, or conversations in .jsonl (default: a small set of our own)",
    )
    parser.add_argument(
        "--context", type=positive, default=512, metavar="N", help="tokens per window (default: %(default)s)"
    )
    parser.add_argument("--tokens", type=count, default=0, metavar="N", help="at most so many tokens (default: all)")
    parser.add_argument("--force", action="store_true", help="replace FILE.safetensors")
    parser.set_defaults(command=_calibrate)


def _calibrate(arguments: argparse.Namespace) -> None:
    from release.calibration.calibrate import CALIBRATION_TEXT, CalibrateOptions, calibrate

    options = CalibrateOptions(
        package=arguments.package,
        output=arguments.output,
        texts=tuple(arguments.text or [CALIBRATION_TEXT]),
        context=arguments.context,
        tokens=arguments.tokens,
        force=arguments.force,
    )
    print(calibrate(options))


def _add_quantize(parser: argparse.ArgumentParser) -> None:
    parser.description = "Converts a checkpoint folder in Hugging Face layout, tensor by tensor."
    parser.add_argument("--source", type=Path, required=True, metavar="DIR", help="folder with config.json and weights")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="folder to write")
    parser.add_argument(
        "--recipe",
        default="w4a8",
        choices=("f32", "bf16", "w8a8", "w4a8", "w4a8-plain"),
        help="f32: exact reference; bf16; w8a8: int8; w4a8: int4 and int8 mixed;"
        " w4a8-plain: the same by plain rounding (default: %(default)s)",
    )
    parser.add_argument(
        "--max-context",
        type=positive,
        metavar="N",
        help="largest context the package may be opened with, tokens, up to 16777216"
        " (default: twice the native one, at most 262144)",
    )
    parser.add_argument(
        "--calibration-scales", type=Path, metavar="FILE", help="safetensors file of per-channel scales to fold in"
    )
    parser.add_argument("--drop-mtp", action="store_true", help="leave out the MTP layer")
    parser.add_argument("--name", type=label, help="name of the model (default: name of the source folder)")
    parser.add_argument("--license", type=label, help="licence of the weights, for the metadata")
    parser.add_argument("--repository", type=label, help="where the checkpoint comes from, for the metadata")
    parser.add_argument("--revision", type=label, help="revision of the repository, for the metadata")
    parser.add_argument("--threads", type=positive, default=0, metavar="N", help="threads (default: every processor)")
    parser.add_argument(
        "--report", type=Path, metavar="FILE.json", help="write what the conversion took and what rounding cost"
    )
    parser.add_argument("--force", action="store_true", help="replace an earlier result in DIR, and FILE.json")
    parser.set_defaults(command=_quantize)


def _quantize(arguments: argparse.Namespace) -> None:
    from release.mtp.record import conversion_note
    from release.output import check_output_file
    from release.quantization.quantize import QuantizeOptions, quantize_with_report

    options = QuantizeOptions(
        source=arguments.source,
        output=arguments.output,
        recipe=arguments.recipe,
        max_context=arguments.max_context,
        calibration_scales=arguments.calibration_scales,
        drop_mtp=arguments.drop_mtp,
        name=arguments.name,
        license=arguments.license,
        repository=arguments.repository,
        revision=arguments.revision,
        threads=arguments.threads,
        force=arguments.force,
    )
    if arguments.report is not None:
        check_output_file(arguments.report, force=arguments.force)
    manifest, report = quantize_with_report(options)
    print(report.to_text(), file=sys.stderr)
    _write_report(arguments, report.to_json())
    print(conversion_note(manifest), file=sys.stderr)
    print(manifest)


def _add_pack(parser: argparse.ArgumentParser) -> None:
    parser.description = "Joins what mindnano quantize wrote; equal assets give equal bytes."
    parser.add_argument("manifest", type=Path, metavar="MANIFEST.json")
    parser.add_argument("output", type=Path, metavar="OUT.l3r")
    parser.add_argument("--report", type=Path, metavar="FILE.json", help="write what packing took")
    parser.add_argument("--force", action="store_true", help="replace OUT.l3r and FILE.json")
    parser.set_defaults(command=_pack)


def _pack(arguments: argparse.Namespace) -> None:
    from release.output import check_output_file
    from release.package.pack import PackOptions, pack_with_report

    if arguments.report is not None:
        check_output_file(arguments.report, force=arguments.force)
    report = pack_with_report(PackOptions(manifest=arguments.manifest, output=arguments.output, force=arguments.force))
    print(report.to_text(), file=sys.stderr)
    _write_report(arguments, report.to_json())
    print(arguments.output)


def _write_report(arguments: argparse.Namespace, text: str) -> None:
    from release.output import partial_file

    if arguments.report is not None:
        with partial_file(arguments.report, force=arguments.force) as file:
            file.write(text.encode(errors="backslashreplace"))


def _add_mtp(parser: argparse.ArgumentParser) -> None:
    from release.mtp.cli import add_commands

    add_commands(parser)


def _add_inspect(parser: argparse.ArgumentParser) -> None:
    parser.description = "Prints config, provenance, sections and tensors of a package."
    parser.add_argument("package", type=Path, metavar="X.l3r")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--verify", action="store_true", help="hash every section and tensor")
    parser.set_defaults(command=_inspect)


def _inspect(arguments: argparse.Namespace) -> None:
    from release.package.inspection import inspect_package

    report = inspect_package(arguments.package, verify=arguments.verify)
    print(report.to_json() if arguments.json else report.to_text())


def _add_logits(parser: argparse.ArgumentParser) -> None:
    parser.description = "Evaluates ids and writes ids, logits [T, V] and hidden [T, H] as float32 arrays."
    parser.add_argument("--package", type=Path, required=True, metavar="X.l3r")
    parser.add_argument("--ids", type=Path, required=True, metavar="FILE", help="text file of ids")
    parser.add_argument("--out", type=Path, required=True, metavar="OUT.npz")
    parser.add_argument("--split", type=count, metavar="N", help="N ids in one call, the rest one by one")
    parser.add_argument("--mtp", action="store_true", help="also mtp_logits [T-1, V]")
    parser.add_argument("--force", action="store_true", help="replace OUT.npz")
    _add_engine(parser, kv_default="f32")
    parser.set_defaults(command=_logits)


def _logits(arguments: argparse.Namespace) -> None:
    from launcher.engine_types import KvType
    from release.fidelity.logits import LogitsOptions, dump_logits

    options = LogitsOptions(
        package=arguments.package,
        ids=arguments.ids,
        output=arguments.out,
        split=arguments.split,
        mtp=arguments.mtp,
        threads=arguments.threads,
        simd=arguments.simd,
        kv_type=KvType(_KV_TYPES.index(arguments.kv_cache)),
        force=arguments.force,
    )
    print(dump_logits(options))


def _add_fidelity(parser: argparse.ArgumentParser) -> None:
    parser.description = "Runs packages and their checkpoint over the same text and compares every position's logits."
    parser.add_argument(
        "--reference", type=Path, required=True, metavar="DIR|X.l3r", help="checkpoint folder, or a bf16 or f32 package"
    )
    parser.add_argument("--package", type=Path, required=True, nargs="+", metavar="X.l3r")
    parser.add_argument(
        "--text", type=Path, required=True, nargs="+", metavar="FILE", help="UTF-8 text, or conversations in .jsonl"
    )
    parser.add_argument(
        "--context", type=positive, default=1024, metavar="N", help="tokens per window (default: %(default)s)"
    )
    parser.add_argument(
        "--kv-cache",
        type=_kv_types,
        default=("bf16",),
        metavar="T,T",
        help=f"cache formats out of {', '.join(_KV_TYPES)}; each but bf16 is also compared with bf16 (default: bf16)",
    )
    parser.add_argument(
        "--positions",
        choices=("all", "answers"),
        default="all",
        help="all, or those that predict what the assistant says",
    )
    parser.add_argument("--backend", type=words, default=("cpu",), metavar="B,B", help="backends (default: cpu)")
    parser.add_argument("--plot", type=Path, metavar="FILE.svg", help="draw the error by position")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where the checkpoint may be packed for the run")
    parser.add_argument("--threads", type=positive, default=0, metavar="N", help="threads (default: the big cores)")
    parser.add_argument("--simd", default="", metavar="S", help="kernel set: scalar, avx2 or neon (default: the best)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--force", action="store_true", help="replace FILE.svg")
    parser.set_defaults(command=_fidelity)


def _fidelity(arguments: argparse.Namespace) -> None:
    from launcher.engine_types import KvType
    from release.fidelity.compare import FidelityOptions, fidelity

    options = FidelityOptions(
        reference=arguments.reference,
        packages=tuple(arguments.package),
        texts=tuple(arguments.text),
        context=arguments.context,
        positions=arguments.positions,
        backends=arguments.backend,
        kv_types=tuple(KvType(_KV_TYPES.index(name)) for name in arguments.kv_cache),
        plot=arguments.plot,
        scratch=arguments.scratch,
        threads=arguments.threads,
        simd=arguments.simd,
        force=arguments.force,
    )
    report = fidelity(options)
    print(report.to_json() if arguments.json else report.to_text())


def _add_bench(parser: argparse.ArgumentParser) -> None:
    from release.bench.cli import add_options

    add_options(parser, positive=positive, positives=positive_list, kv_types=_KV_TYPES)
    parser.set_defaults(command=_bench)


def _bench(arguments: argparse.Namespace) -> None:
    from release.bench.cli import run

    run(arguments, _KV_TYPES)


def _add_publish(parser: argparse.ArgumentParser) -> None:
    from release.upload.cli import add_options, run

    add_options(parser)
    parser.set_defaults(command=run)


def _add_bundle(parser: argparse.ArgumentParser) -> None:
    from bundle.cli import add_options, run

    parser.description = "Builds mindnano-infer as one file for x86-64 or arm64 Linux; what is there already is kept."
    add_options(parser, demo=_DEMO)
    parser.set_defaults(command=run)


def _add_finalize(parser: argparse.ArgumentParser) -> None:
    from release.folder.cli import add_finalize

    add_finalize(parser, demo=_DEMO)


def _add_verify(parser: argparse.ArgumentParser) -> None:
    from release.folder.cli import add_verify

    add_verify(parser)


def _add_engine(parser: argparse.ArgumentParser, *, kv_default: str) -> None:
    parser.add_argument("--threads", type=positive, default=0, metavar="N", help="threads (default: the big cores)")
    parser.add_argument("--simd", default="", metavar="S", help="kernel set: scalar, avx2 or neon (default: the best)")
    parser.add_argument(
        "--kv-cache", choices=_KV_TYPES, default=kv_default, help="element type of the cache (default: %(default)s)"
    )


def _kv_types(text: str) -> tuple[str, ...]:
    names = words(text)
    unknown = next((name for name in names if name not in _KV_TYPES), None)
    if unknown is not None:
        raise argparse.ArgumentTypeError(f"{unknown!r} is no cache format; choose from {', '.join(_KV_TYPES)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
