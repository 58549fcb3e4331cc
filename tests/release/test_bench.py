"""`mindnano bench` measures what it was asked to measure and computes its ratios the right way round."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.errors import UsageError
from release.bench import engine as bench_module
from release.bench.engine import BenchOptions, BenchReport, Speed, bench

Convert = Callable[..., Path]


def test_every_prompt_length_is_measured(micro: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "_BANDWIDTH_BYTES", 8 << 20)
    options = BenchOptions(package=convert(micro, "w4a8"), prompts=(8, 16), decode=4, threads=1, repeat=2)
    report = bench(options)
    assert [(speed.runner, speed.prompt) for speed in report.speeds] == [("mindnano", 8), ("mindnano", 16)]
    for speed in report.speeds:
        assert speed.prefill_best >= speed.prefill_median > 0
        assert speed.decode_best >= speed.decode_median > 0
    document = json.loads(report.to_json())
    assert (document["schema"], document["threads"], document["repeat"]) == ("mindnano-bench", 1, 2)
    assert document["bytes_per_token"] > 0
    assert set(document["bandwidth_share"]) == {"8", "16"}
    assert document["ratios"] == {}
    assert sum(line.startswith("mindnano ") for line in report.to_text().splitlines()) == 2


class Recorder:
    """A runner that writes down what it was asked to do."""

    def __init__(self, name: str, log: list[tuple[str, int]]) -> None:
        self.name = name
        self._log = log

    def prefill(self, ids: Sequence[int]) -> None:
        self._log.append((self.name, len(ids)))

    def step(self, token: int) -> None:
        assert token >= 0


def test_runners_take_turns_on_the_same_lengths() -> None:
    log: list[tuple[str, int]] = []
    options = BenchOptions(package=Path("x"), prompts=(20, 30), decode=2, repeat=2)
    speeds = bench_module._measure([Recorder("a", log), Recorder("b", log)], list(range(32)), options)
    assert log == [(name, size) for prompt in (20, 30) for size in (8, prompt, prompt) for name in "ab"]
    assert [(speed.runner, speed.prompt) for speed in speeds] == [("a", 20), ("b", 20), ("a", 30), ("b", 30)]


def test_ratios_and_shares_are_ours_over_theirs() -> None:
    def speed(runner: str, prefill: float, decode: float) -> Speed:
        return Speed(
            runner=runner,
            prompt=128,
            prefill_best=prefill,
            prefill_median=prefill / 2,
            decode_best=decode,
            decode_median=decode / 2,
        )

    report = BenchReport(
        package="x",
        simd="avx2",
        threads=1,
        decode=64,
        repeat=1,
        read_bandwidth=1e9,
        bytes_per_token=10_000_000,
        speeds=(speed("mindnano", 300, 40), speed("llama.cpp", 100, 50)),
    )
    assert report.ratios() == {128: (3.0, 0.8)}
    assert report.bandwidth_share(report.speeds[0]) == pytest.approx(0.4)
    assert "one thread, one repeat, 64 tokens" in report.to_text()
    assert "2 threads, 3 repeats," in replace(report, threads=2, repeat=3).to_text()
    assert report.to_text().splitlines()[-1].split() == ["ratio", "128", "3.00", "0.80"]


@pytest.mark.parametrize("changes", [{"prompts": (1020,)}, {"prompts": ()}, {"decode": 0}, {"repeat": 0}])
def test_lengths_that_cannot_be_measured_are_refused(micro: Path, convert: Convert, changes: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        bench(BenchOptions(package=convert(micro), **changes))  # type: ignore[arg-type]


def test_a_missing_llama_cpp_says_how_to_get_it(micro: Path, convert: Convert, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    with pytest.raises(UsageError, match="llama-cpp-python") as caught:
        bench(BenchOptions(package=convert(micro), prompts=(8,), against=Path("x.gguf")))
    assert "pip install" in caught.value.hint
