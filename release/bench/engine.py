"""`mindnano bench --engine`: how fast a package prefills and decodes, and which share of the bandwidth that uses."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final, Protocol

from launcher.engine import Engine, Package, Session
from launcher.engine_types import EngineOptions, KvType, Logits, SessionOptions
from launcher.errors import UsageError
from launcher.progress import Progress, format_bytes

SCHEMA: Final = "mindnano-bench"
VERSION: Final = 1
_BANDWIDTH_BYTES: Final = 256 * 1024 * 1024
_SEED: Final = 20261130


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchOptions:
    """What to measure.

    Attributes:
        prompts: prompt lengths, tokens.
        decode: tokens decoded after each prompt.
        threads: 0 takes one per big core; beside llama.cpp 0 means 1.
        against: a GGUF file of the same model, run by llama.cpp in turns with the package.
        repack: let llama.cpp repack its weights for this CPU.
    """

    package: Path
    prompts: tuple[int, ...] = (128, 512)
    decode: int = 64
    threads: int = 0
    repeat: int = 3
    simd: str = ""
    kv_type: KvType = KvType.BF16
    against: Path | None = None
    repack: bool = False


class Runner(Protocol):
    """Something that can be timed: the engine, or llama.cpp."""

    name: str

    def prefill(self, ids: Sequence[int]) -> None:
        """Starts afresh and consumes the ids in one call; computes the last one's logits."""

    def step(self, token: int) -> None:
        """Consumes one id and computes its logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Tokens per second of one runner at one prompt length, over the repeats."""

    runner: str
    prompt: int
    prefill_best: float
    prefill_median: float
    decode_best: float
    decode_median: float


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchReport:
    """All figures of one run; bytes per token are weight bytes of one decoded token."""

    package: str
    simd: str
    threads: int
    decode: int
    repeat: int
    read_bandwidth: float
    bytes_per_token: int
    speeds: tuple[Speed, ...]

    def bandwidth_share(self, speed: Speed) -> float:
        """Share of the measured read bandwidth that the best decode of the package uses."""
        return speed.decode_best * self.bytes_per_token / self.read_bandwidth

    def ratios(self) -> dict[int, tuple[float, float]]:
        """By prompt length: best prefill and best decode of the package over those of the other runner."""
        own = {speed.prompt: speed for speed in self.speeds if speed.runner == "mindnano"}
        other = {speed.prompt: speed for speed in self.speeds if speed.runner != "mindnano"}
        return {
            prompt: (
                own[prompt].prefill_best / speed.prefill_best,
                own[prompt].decode_best / speed.decode_best,
            )
            for prompt, speed in other.items()
        }

    def to_json(self) -> str:
        """One JSON document with `schema` and `version`."""
        shares = {str(speed.prompt): self.bandwidth_share(speed) for speed in self.speeds if speed.runner == "mindnano"}
        ratios = {
            str(prompt): {"prefill": prefill, "decode": decode} for prompt, (prefill, decode) in self.ratios().items()
        }
        document = {"schema": SCHEMA, "version": VERSION, **asdict(self), "bandwidth_share": shares, "ratios": ratios}
        return json.dumps(document, indent=1)

    def to_text(self) -> str:
        """A table for a reader."""
        threads = "one thread" if self.threads == 1 else f"{self.threads} threads"
        repeats = "one repeat" if self.repeat == 1 else f"{self.repeat} repeats"
        lines = [
            f"{self.package}: {self.simd}, {threads}, {repeats}, {self.decode} tokens decoded",
            f"read bandwidth {format_bytes(self.read_bandwidth)}/s,"
            f" weights per decoded token {format_bytes(self.bytes_per_token)}",
            "",
            f"{'':<10} {'prompt':>7} {'prefill tok/s':>21} {'decode tok/s':>21} {'bandwidth':>10}",
            f"{'':<10} {'':>7} {'best':>10} {'median':>10} {'best':>10} {'median':>10} {'share':>10}",
        ]
        for speed in self.speeds:
            share = f"{self.bandwidth_share(speed):10.0%}" if speed.runner == "mindnano" else ""
            lines.append(
                f"{speed.runner:<10} {speed.prompt:>7} {speed.prefill_best:>10.1f} {speed.prefill_median:>10.1f}"
                f" {speed.decode_best:>10.2f} {speed.decode_median:>10.2f} {share}"
            )
        for prompt, (prefill, decode) in self.ratios().items():
            lines.append(f"{'ratio':<10} {prompt:>7} {prefill:>10.2f} {'':>10} {decode:>10.2f}")
        return "\n".join(lines)


class EngineRunner:
    """The engine with one session."""

    name = "mindnano"

    def __init__(self, session: Session) -> None:
        self._session = session

    def prefill(self, ids: Sequence[int]) -> None:
        self._session.reset()
        self._session.eval(ids, mode=Logits.LAST)

    def step(self, token: int) -> None:
        self._session.eval([token], mode=Logits.LAST)


def bench(options: BenchOptions) -> BenchReport:
    """Measures a package, and llama.cpp in turns with it where a GGUF file is given.

    Raises:
        UsageError: lengths that are not positive or beyond the package's context, or llama_cpp is not installed.
        PackageError, ResourceError, EngineError: as the engine says.
    """
    if not options.prompts or min(*options.prompts, options.decode, options.repeat, 1) < 1:
        raise UsageError("bench-options", "--prompt, --decode and --repeat must be positive")
    threads = options.threads or (1 if options.against is not None else 0)
    context = max(options.prompts) + options.decode
    with ExitStack() as stack:
        package = stack.enter_context(Package(options.package))
        if context > package.config.max_context:
            raise UsageError("bench-options", f"{context} tokens exceed the context of {package.config.max_context}")
        engine_options = EngineOptions(threads=threads, simd=options.simd)
        session_options = SessionOptions(context=context, kv_type=options.kv_type)
        engine = stack.enter_context(Engine(package, engine_options))
        runners: list[Runner] = [EngineRunner(stack.enter_context(Session(engine, session_options)))]
        if options.against is not None:
            from release.bench.llama_baseline import LlamaRunner

            runner = LlamaRunner(options.against, context=context, threads=threads, repack=options.repack)
            runners.append(stack.enter_context(runner))
        ids = _random_ids(package.config.token_count, context)
        return BenchReport(
            package=options.package.name,
            simd=engine.simd,
            threads=engine.threads,
            decode=options.decode,
            repeat=options.repeat,
            read_bandwidth=max(engine.read_bandwidth(_BANDWIDTH_BYTES) for _ in range(3)),
            bytes_per_token=package.plan(engine_options, session_options).bytes_per_token,
            speeds=tuple(_measure(runners, ids, options)),
        )


def _measure(runners: Sequence[Runner], ids: Sequence[int], options: BenchOptions) -> list[Speed]:
    """Runners take turns within each repeat, so that a slower or faster machine meets all of them alike."""
    rounds = len(options.prompts) * options.repeat * len(runners)
    times: dict[tuple[int, str], list[tuple[float, float]]] = {}
    with Progress("Measuring", rounds, unit="rounds") as progress:
        for prompt in options.prompts:
            for runner in runners:
                _round(runner, ids, min(prompt, 8), 1)  # touches every page and buffer once
            for _ in range(options.repeat):
                for runner in runners:
                    times.setdefault((prompt, runner.name), []).append(_round(runner, ids, prompt, options.decode))
                    progress.advance(1)
    return [
        Speed(
            runner=name,
            prompt=prompt,
            prefill_best=prompt / min(prefill for prefill, _ in rows),
            prefill_median=prompt / statistics.median(prefill for prefill, _ in rows),
            decode_best=options.decode / min(decode for _, decode in rows),
            decode_median=options.decode / statistics.median(decode for _, decode in rows),
        )
        for (prompt, name), rows in times.items()
    ]


def _round(runner: Runner, ids: Sequence[int], prompt: int, decode: int) -> tuple[float, float]:
    """Seconds of one prefill and of the decoding after it."""
    start = time.perf_counter()
    runner.prefill(ids[:prompt])
    middle = time.perf_counter()
    for token in ids[prompt : prompt + decode]:
        runner.step(token)
    return middle - start, time.perf_counter() - middle


def _random_ids(token_count: int, count: int) -> list[int]:
    """Fixed random ids: random text spreads over the experts, so no run profits from a few warm ones."""
    generator = random.Random(_SEED)
    return [generator.randrange(token_count) for _ in range(count)]
