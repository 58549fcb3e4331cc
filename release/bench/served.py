"""`mindnano bench`: how fast the local server answers, by the length of the input."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from launcher.errors import InternalError, MindnanoError, UsageError
from launcher.progress import Progress
from launcher.system import SystemView
from release.bench import machine
from release.bench.clocks import pinned_clocks
from release.bench.machine import Sampler
from release.bench.report import Row, ServedReport, result_files, write_results
from release.bench.server import BenchServer, Completion
from release.package.reader import read_package

INPUTS: Final = (128, 512, 1024, 2048, 4096, 8192, 16384)
_SEED: Final = 20261130
_WARM_TOKENS: Final = 512
_OWN_OPTIONS: Final = (
    "--model",
    "--demo",
    "--host",
    "--port",
    "--tls-cert",
    "--tls-key",
    "--api-key",
    "--api-key-file",
)
_SERVER_FACTS: Final = ("model", "version", "system_fingerprint", "context", "kv_cache", "threads", "simd", "mtp")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedOptions:
    """What to measure.

    Attributes:
        inputs: lengths of the prompt in tokens; None takes those of `INPUTS` that fit the package's context.
        program: the portable program; None takes the launcher of this installation.
        server_options: further words of the server's command line.
        output: NAME of NAME.json and NAME.md.
        root: of sysfs, for the clocks and what the machine says of itself.
    """

    package: Path
    inputs: tuple[int, ...] | None = None
    output_tokens: int = 64
    repeat: int = 3
    program: Path | None = None
    server_options: tuple[str, ...] = ()
    output: Path | None = None
    pin_clocks: bool = False
    root: Path = Path("/")


def bench_served(options: ServedOptions) -> ServedReport:
    """Starts the server, measures, ends it, and writes the results, also those of a run that ends early.

    Raises:
        UsageError: an input does not fit, or a result exists.
        DeviceError: clocks shall be locked and cannot be.
        PackageError, ResourceError, EngineError, EngineCrash: as the server's exit code says.
        InternalError: the server answered otherwise than it should.
    """
    files = result_files(options.output)
    _check_server(options)
    config = read_package(options.package).config
    inputs, left_out = _fitting(options, config.max_context)
    system = SystemView(root=options.root)
    context = max(inputs) + options.output_tokens
    server = BenchServer(options.program, options.package, ("--context", str(context), *options.server_options))
    report = ServedReport(
        output_tokens=options.output_tokens,
        repeat=options.repeat,
        left_out=left_out,
        facts={
            "started": machine.now(),
            "package": {
                "file": options.package.name,
                "bytes": options.package.stat().st_size,
                "sha256": machine.file_digest(options.package),
            },
            "program": {
                "name": "mindnano-infer" if options.program is None else options.program.name,
                "sha256": None if options.program is None else machine.file_digest(options.program),
                "version": machine.program_version(server.program),
                "options": list(server.options),
            },
            "machine": machine.describe_machine(system),
            "clocks": {"pinned": []},
            "load_before": machine.load(system),
        },
    )
    try:
        with _clocks(options, report, system), server, Sampler(system) as sampler:
            facts = server.facts()
            report.facts["server"] = {name: facts[name] for name in _SERVER_FACTS if name in facts}
            # A portable program may hold the model in another process than the one that was started.
            _measure(facts.get("process_id", server.process_id), server, sampler, report, inputs, config.token_count)
    except BaseException as error:
        report.ended = str(error) or type(error).__name__
        raise
    finally:
        report.facts["ended_at"] = machine.now()
        report.facts["load_after"] = machine.load(system)
        if report.rows or report.ended is None:
            _keep(report, files)
    return report


def _check_server(options: ServedOptions) -> None:
    """What the benchmark itself chooses or relies on cannot be an option of the server."""
    for word in options.server_options:
        name = word.partition("=")[0]
        if name in _OWN_OPTIONS:
            raise UsageError(
                "bench-options",
                f"--server-options has {name}, which the benchmark decides itself",
                hint="Measure the package and context that you name here; the server listens on this machine alone.",
            )
    if options.program is not None and not options.program.is_file():
        raise UsageError(
            "bench-program", f"there is no file {options.program}", hint="Give an executable mindnano-infer."
        )


def _fitting(options: ServedOptions, context: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    wanted = INPUTS if options.inputs is None else tuple(dict.fromkeys(options.inputs))
    if not wanted or min(*wanted, options.output_tokens, options.repeat, 1) < 1:
        raise UsageError("bench-options", "--inputs, --output-tokens and --repeat must be positive")
    fitting = tuple(sorted(size for size in wanted if size + options.output_tokens <= context))
    left_out = tuple(sorted(set(wanted) - set(fitting)))
    if not fitting or (left_out and options.inputs is not None):
        raise UsageError(
            "bench-options",
            f"{left_out[0]} tokens in and {options.output_tokens} out exceed the context of {context} tokens",
            hint="Give shorter --inputs or fewer --output-tokens.",
        )
    return fitting, left_out


def _keep(report: ServedReport, files: tuple[Path, ...]) -> None:
    """Writes the results; where that fails, they are shown, since they took long."""
    try:
        write_results(report, files)
    except MindnanoError:
        print(report.to_markdown(), file=sys.stderr)
        raise


@contextmanager
def _clocks(options: ServedOptions, report: ServedReport, system: SystemView) -> Iterator[None]:
    if not options.pin_clocks:
        yield
        return
    left: list[Any] = []
    try:
        with pinned_clocks(options.root) as (pinned, left):
            report.facts["clocks"] = {"pinned": [[each.path, each.value] for each in pinned.settings]}
            report.facts["machine"] = machine.describe_machine(system)
            _warn(report, [f"not locked: {each}" for each in pinned.warnings])
            yield
    finally:
        _warn(report, [f"not put back: {each}" for each in left])


def _warn(report: ServedReport, warnings: Sequence[str]) -> None:
    report.warnings += warnings
    for warning in warnings:
        print(f"mindnano: warning: {warning}", file=sys.stderr)


def _measure(
    process_id: int,
    server: BenchServer,
    sampler: Sampler,
    report: ServedReport,
    inputs: Sequence[int],
    token_count: int,
) -> None:
    prompts = _Prompts(token_count)
    # Random tokens spread over the experts, so a few hundred touch nearly every page of the package.
    warm = min(max(inputs), max(min(inputs), _WARM_TOKENS))
    _run(server, prompts, warm, report.output_tokens)
    sampler.take()
    with Progress("Measuring", len(inputs) * report.repeat, unit="runs") as progress:
        for size in inputs:
            is_reset = machine.reset_peak(process_id)
            runs = []
            for _ in range(report.repeat):
                runs.append(_run(server, prompts, size, report.output_tokens))
                progress.advance(1)
            report.rows.append(
                Row(
                    input_tokens=size,
                    runs=tuple(runs),
                    resident=machine.resident(process_id),
                    peak_reset=is_reset,
                    sensors=sampler.take(),
                )
            )


def _run(server: BenchServer, prompts: _Prompts, size: int, tokens: int) -> Completion:
    session = f"bench-{prompts.count}"
    done = server.complete(prompts.next(size), tokens, session=session)
    found = (done.prompt_tokens, done.cached_tokens, done.generated_tokens)
    if found != (size, 0, tokens):
        raise InternalError(
            "bench-answer",
            f"prompt, cached and generated tokens were {found}, expected {(size, 0, tokens)}: this cannot be measured",
        )
    server.forget(session)
    return done


class _Prompts:
    """Random ids, the same in every run of the program; no two prompts begin with the same token."""

    def __init__(self, token_count: int) -> None:
        self._random = random.Random(_SEED)
        self._token_count = token_count
        self._firsts = self._random.sample(range(token_count), token_count)
        self.count = 0

    def next(self, size: int) -> list[int]:
        first = self._firsts[self.count % self._token_count]
        self.count += 1
        return [first, *(self._random.randrange(self._token_count) for _ in range(size - 1))]
