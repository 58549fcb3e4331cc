"""`python -m bundle`: shows the plan of the portable build, or runs it up to a stage."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType

from bundle import pipeline, zig
from bundle.runner import Runner
from bundle.store import Store
from launcher.errors import EXIT_SIGTERM, Cancelled, MindnanoError


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code. Errors go to stderr with what to do next."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, _stop)
    try:
        stages = pipeline.stages(options.target or zig.host_target())
        goals = [stage for name, stage in stages.items() if options.until in (None, name)]
        runner = Runner(store=Store.of_user(), say=_say, jobs=options.jobs, foreign=pipeline.foreign_paths())
        if options.explain:
            print(runner.explain(goals))
            return 0
        for outcome in runner.build(goals)[-1:]:
            print(outcome.folder)
    except MindnanoError as error:
        print(f"error ({error.slug}): {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  next: {error.hint}", file=sys.stderr)
        return EXIT_SIGTERM if error.slug == "terminated" else error.exit_code
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return Cancelled.exit_code
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bundle", description="Builds the portable file, stage by stage.")
    parser.add_argument("--target", choices=("x86_64", "aarch64"), help="processor of the result (default: this one's)")
    parser.add_argument(
        "--until", choices=pipeline.NAMES, metavar="STAGE", help=f"last stage to run: {', '.join(pipeline.NAMES)}"
    )
    parser.add_argument("--explain", action="store_true", help="print the plan and what is cached; build nothing")
    parser.add_argument(
        "--jobs",
        type=_positive,
        default=os.cpu_count() or 1,
        metavar="N",
        help="processes side by side (default: CPUs)",
    )
    return parser


def _positive(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above zero")
    return int(text)


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _stop(number: int, frame: FrameType | None) -> None:
    raise Cancelled("terminated", "stopped by SIGTERM")


if __name__ == "__main__":
    sys.exit(main())
