"""The command line of the portable build: shows the plan, runs it, and puts the result where it is looked for."""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from launcher.errors import EXIT_SIGTERM, Cancelled, MindnanoError, UsageError

if TYPE_CHECKING:
    from bundle.assemble import Freight
    from bundle.stages import Stage

STAGES = (
    "packages",
    "llguidance",
    "zlib",
    "libffi",
    "openssl",
    "cpython",
    "python_runtime",
    "msgspec",
    "nuitka",
    "link",
    "assemble",
    "smoke",
)
_ASSEMBLED = STAGES.index("assemble")
_DIST = Path(__file__).parents[1] / "dist"


def main(arguments: Sequence[str] | None = None) -> int:
    """`python -m bundle`: runs the command line; returns the exit code. Errors go to stderr with what to do next."""
    parser = argparse.ArgumentParser(prog="python -m bundle", description="Builds the portable file, stage by stage.")
    add_options(parser, demo=None)
    options = parser.parse_args(arguments)
    try:
        run(options)
    except MindnanoError as error:
        print(f"error ({error.slug}): {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  next: {error.hint}", file=sys.stderr)
        return EXIT_SIGTERM if error.slug == "terminated" else error.exit_code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return Cancelled.exit_code
    return 0


def add_options(parser: argparse.ArgumentParser, *, demo: Path | None) -> None:
    """Declares the options. `demo` is the built-in model that is carried unless the user says otherwise."""
    parser.add_argument("--target", choices=("x86_64", "aarch64"), help="processor of the result (default: this one's)")
    runtime = parser.add_mutually_exclusive_group()
    runtime.add_argument(
        "--rknn-runtime",
        type=Path,
        metavar="FILE",
        help="librknnrt.so to carry, its LICENSE beside it (default for aarch64: the published 2.3.2)",
    )
    runtime.add_argument("--without-rknn-runtime", action="store_true", help="carry none (default for x86_64)")
    model = parser.add_mutually_exclusive_group()
    default = "none" if demo is None else "the packed one"
    model.add_argument(
        "--with-demo",
        type=Path,
        nargs="?",
        const=demo,
        default=demo,
        metavar="FILE",
        dest="demo",
        help=f"built-in model to carry (default: {default})",
    )
    model.add_argument("--without-demo", action="store_const", const=None, dest="demo", help="carry none")
    parser.add_argument("--until", choices=STAGES, metavar="STAGE", help=f"last stage to run: {', '.join(STAGES)}")
    parser.add_argument("--explain", action="store_true", help="print the plan and what is cached; build nothing")
    parser.add_argument("--size", action="store_true", help="print what takes how much room")
    parser.add_argument("--out", type=Path, default=_DIST, metavar="DIR", help="folder of the results (default: dist)")
    parser.add_argument(
        "--jobs",
        type=_positive,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes side by side (default: CPUs)",
    )


def run(options: argparse.Namespace) -> None:
    """Builds what the options ask for and prints the path of the last result.

    Raises:
        MindnanoError: what is asked for cannot be had or built; SIGTERM came.
    """
    from bundle import pipeline, zig
    from bundle.runner import Runner
    from bundle.store import Store

    previous = signal.signal(signal.SIGTERM, _stop)
    try:
        target = options.target or zig.host_target()
        stages = pipeline.stages(target, _freight(options, target))
        goals = [stages[options.until or STAGES[-1]]]
        runner = Runner(store=Store.of_user(), say=_say, jobs=options.jobs, foreign=pipeline.foreign_paths())
        if options.explain:
            print(runner.explain(goals))
            return
        results = {outcome.step.stage.label: outcome.folder for outcome in runner.build(goals)}
        print(_published(options, target, stages, results))
    finally:
        signal.signal(signal.SIGTERM, previous)


def _freight(options: argparse.Namespace, target: str) -> Freight:
    """What goes into the payload. Rockchip's library is fetched first, so that its absence shows before the build."""
    from bundle import rknn_source
    from bundle.assemble import Freight

    if STAGES.index(options.until or STAGES[-1]) < _ASSEMBLED:
        return Freight(runtime=None, demo=None)
    runtime = None
    if options.rknn_runtime is not None:
        runtime = rknn_source.from_file(options.rknn_runtime)
    elif target == "aarch64" and not options.without_rknn_runtime:
        runtime = rknn_source.cached() if options.explain else rknn_source.from_publisher(_say)
    if options.demo is not None and not options.demo.is_file():
        raise UsageError(
            "demo-missing",
            f"the built-in model is not at {options.demo}",
            hint="run scripts/run once, which packs it, or build with --without-demo",
        )
    return Freight(runtime=runtime, demo=options.demo)


def _published(options: argparse.Namespace, target: str, stages: dict[str, Stage], results: dict[str, Path]) -> Path:
    """Puts the finished program into the folder of results; the folder of the last stage where it is not finished."""
    from bundle import assemble
    from bundle.size import check_sizes, table
    from launcher.payload.carried import SBOM

    label = stages["assemble"].label
    if label not in results:
        return results[stages[options.until].label]
    made = results[label]
    folder: Path = options.out / target
    folder.mkdir(parents=True, exist_ok=True)
    for name in (assemble.NAME, SBOM):
        _put(made / name, folder / name)
    if options.size:
        print(table(check_sizes(json.loads((made / assemble.SIZES).read_text(encoding="utf-8")))))
    _say((made / assemble.POLICY).read_text(encoding="utf-8").rstrip())
    return folder / assemble.NAME


def _put(source: Path, target: Path) -> None:
    """Copies a file at once, so that nobody ever starts half of one."""
    if target.is_file() and filecmp.cmp(source, target, shallow=False):
        return
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        shutil.copy(source, partial)
        partial.replace(target)
    finally:
        partial.unlink(missing_ok=True)


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above zero")
    return int(text)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Cancelled("terminated", "stopped by SIGTERM")
