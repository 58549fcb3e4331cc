"""The command line of `mindnano bench`: of the server, or with --engine of the engine alone."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Final

from launcher.errors import UsageError

_SERVED: Final = ("inputs", "output_tokens", "program", "server_options", "output", "pin_clocks")
_ENGINE: Final = ("prompt", "decode", "against", "repack", "simd")


def add_options(
    parser: argparse.ArgumentParser,
    *,
    positive: Callable[[str], int],
    positives: Callable[[str], tuple[int, ...]],
    kv_types: tuple[str, ...],
) -> None:
    """The options of both kinds; those of the other kind are refused in `run`."""
    parser.description = (
        "Starts the local server on a free port and measures time to the first token, prefill, decoding and peak memory"
        " by the length of the input. With --engine it measures the engine alone, and the share of the measured read"
        " bandwidth that decoding uses."
    )
    parser.add_argument("package", type=Path, metavar="X.l3r")
    parser.add_argument("--engine", action="store_true", help="the engine alone, without a server")
    parser.add_argument("--repeat", type=positive, default=3, metavar="R", help="rounds (default: 3)")
    parser.add_argument("--json", action="store_true", help="one JSON document on stdout")
    parser.add_argument("--threads", type=positive, metavar="N", help="threads (default: the big cores)")
    parser.add_argument("--kv-cache", choices=kv_types, default="bf16", help="element type (default: %(default)s)")
    served = parser.add_argument_group("server")
    served.add_argument(
        "--inputs",
        type=positives,
        metavar="N,N",
        help="tokens in (default: those of 128,512,1024,2048,4096,8192,16384 that fit the context)",
    )
    served.add_argument("--output-tokens", type=positive, metavar="N", help="tokens out (default: 64)")
    served.add_argument("--program", type=Path, metavar="FILE", help="measure this mindnano-infer")
    served.add_argument("--server-options", type=shlex.split, metavar="'WORDS'", help="further options of the server")
    served.add_argument("--output", type=Path, metavar="NAME", help="write NAME.json and NAME.md, never over others")
    served.add_argument(
        "--pin-clocks",
        action="store_true",
        default=None,
        help="lock CPU, NPU and DDR to their maximum meanwhile (root); they are put back however it ends",
    )
    engine = parser.add_argument_group("with --engine")
    engine.add_argument("--prompt", type=positives, metavar="N,N", help="prompt lengths (default: 128,512)")
    engine.add_argument("--decode", type=positive, metavar="N", help="tokens to decode (default: 64)")
    engine.add_argument(
        "--against",
        type=Path,
        metavar="GGUF",
        help="run llama.cpp on this file in turns (needs llama-cpp-python); one thread each unless --threads",
    )
    engine.add_argument(
        "--repack", action="store_true", default=None, help="let llama.cpp repack its weights for this CPU"
    )
    engine.add_argument("--simd", metavar="S", help="kernel set: scalar, avx2 or neon (default: the best)")


def run(arguments: argparse.Namespace, kv_types: tuple[str, ...]) -> None:
    """Measures and prints.

    Raises:
        UsageError: an option belongs to the other kind.
    """
    wrong = [name for name in (_SERVED if arguments.engine else _ENGINE) if getattr(arguments, name) is not None]
    if wrong:
        option = "--" + wrong[0].replace("_", "-")
        raise UsageError(
            "bench-options",
            f"{option} does not go with --engine" if arguments.engine else f"{option} needs --engine",
            hint="mindnano bench --help lists which option belongs to which kind.",
        )
    if arguments.engine:
        _engine(arguments, kv_types)
    else:
        _served(arguments)


def _engine(arguments: argparse.Namespace, kv_types: tuple[str, ...]) -> None:
    from launcher.engine_types import KvType
    from release.bench.engine import BenchOptions, bench

    options = BenchOptions(
        package=arguments.package,
        prompts=arguments.prompt or (128, 512),
        decode=arguments.decode or 64,
        threads=arguments.threads or 0,
        repeat=arguments.repeat,
        simd=arguments.simd or "",
        kv_type=KvType(kv_types.index(arguments.kv_cache)),
        against=arguments.against,
        repack=bool(arguments.repack),
    )
    report = bench(options)
    print(report.to_json() if arguments.json else report.to_text())


def _served(arguments: argparse.Namespace) -> None:
    from release.bench.served import ServedOptions, bench_served
    from release.signals import ended_in_good_order

    threads = () if arguments.threads is None else ("--threads", str(arguments.threads))
    options = ServedOptions(
        package=arguments.package,
        inputs=arguments.inputs,
        output_tokens=arguments.output_tokens or 64,
        repeat=arguments.repeat,
        program=arguments.program,
        server_options=("--kv-cache", arguments.kv_cache, *threads, *(arguments.server_options or ())),
        output=arguments.output,
        pin_clocks=bool(arguments.pin_clocks),
    )
    with ended_in_good_order():  # a signal must not leave the server running or the clocks locked
        report = bench_served(options)
    print(report.to_json() if arguments.json else report.to_markdown())
