"""The sampler picks what an independent implementation allows, as often as it says, and nothing else."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest

from engine.build import build_library
from launcher.engine import Engine, Package, Session
from launcher.engine_library import Library
from launcher.engine_sampling import Sampler
from launcher.engine_types import EngineOptions, Sampling, SessionOptions
from launcher.errors import EngineCrash, UsageError
from tests.support.packages import INTEGER, TOKENS, write_package

VOCABULARY = INTEGER.vocab_size
Logits = npt.NDArray[np.float32]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Package]:
    path = write_package(tmp_path_factory.mktemp("sampler") / "small.l3r")
    with Package(path, library=Library(build_library())) as package:
        yield package


def padded(values: Sequence[float] | Logits, fill: float = 1e30) -> array[float]:
    """Logits of all rows; ids beyond `values` up to the tokenizer's are hopeless, padding rows are tempting."""
    logits = np.full(VOCABULARY, -1e4, dtype=np.float32)
    logits[: len(values)] = values
    logits[TOKENS:] = fill
    return array("f", logits.tobytes())


def draws(
    package: Package, sampling: Sampling, logits: array[float], count: int, history: Sequence[int] = ()
) -> list[int]:
    with Sampler(package, sampling) as sampler:
        return [sampler.sample_from(logits, history) for _ in range(count)]


def distribution(logits: array[float], sampling: Sampling, history: Sequence[int] = ()) -> dict[int, float]:
    """Probability of every id that may come, from the definitions: penalty, top-k, temperature, top-p, min-p."""
    values = np.array(logits, dtype=np.float32)[:TOKENS]
    penalty = np.float32(sampling.repetition_penalty)
    for token in {token for token in history if 0 <= token < TOKENS}:
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    order = sorted(range(TOKENS), key=lambda token: (-values[token], token))
    order = order[: sampling.top_k] if sampling.top_k else order
    if sampling.temperature == 0:
        return {order[0]: 1.0}
    scaled = values[order].astype(np.float64) / np.float64(np.float32(sampling.temperature))
    chances = np.exp(scaled - scaled.max())
    chances /= chances.sum()
    before = np.cumsum(chances) - chances  # what the more likely ones have together
    nucleus = before < np.float64(np.float32(sampling.top_p))
    likely = chances >= np.float64(np.float32(sampling.min_p)) * chances[0]
    kept = {token: float(p) for token, p, a, b in zip(order, chances, nucleus, likely, strict=True) if a and b}
    total = sum(kept.values())
    return {token: p / total for token, p in kept.items()}


def chi_square_limit(degrees: int) -> float:
    """The value that chance exceeds once in a million times (Wilson and Hilferty 1931)."""
    spread = 2 / (9 * degrees)
    return float(degrees * (1 - spread + 4.7534 * spread**0.5) ** 3)


def check_distribution(ids: Sequence[int], expected: dict[int, float]) -> None:
    """Nothing else may come, everything likely must, and the frequencies must not be those of another distribution."""
    counts = Counter(ids)
    assert set(counts) <= set(expected), sorted(set(counts) - set(expected))
    assert all(counts[token] for token, p in expected.items() if p * len(ids) > 20)
    common = {token: p for token, p in expected.items() if p * len(ids) >= 8}
    cells = [(counts[token], p * len(ids)) for token, p in common.items()]
    rare = 1 - sum(common.values())
    if rare * len(ids) >= 8:
        cells.append((len(ids) - sum(counts[token] for token in common), rare * len(ids)))
    if len(cells) > 1:
        statistic = sum((seen - wanted) ** 2 / wanted for seen, wanted in cells)
        assert statistic < chi_square_limit(len(cells) - 1), (statistic, cells)


SETTINGS = [
    Sampling(temperature=1.0),
    Sampling(temperature=0.3),
    Sampling(temperature=3.0),
    Sampling(temperature=1.0, top_k=1),
    Sampling(temperature=1.0, top_k=7),
    Sampling(temperature=2.0, top_k=1000),
    Sampling(temperature=1.0, top_p=0.5),
    Sampling(temperature=1.5, top_p=0.95),
    Sampling(temperature=1.0, top_p=1e-6),
    Sampling(temperature=1.0, min_p=0.1),
    Sampling(temperature=2.0, min_p=0.5),
    Sampling(temperature=0.7, top_k=20, top_p=0.9, min_p=0.02),
    Sampling(temperature=1.0, repetition_penalty=1.3),
    Sampling(temperature=1.0, repetition_penalty=0.7, top_k=12),
    Sampling(temperature=0.9, top_k=40, top_p=0.8, min_p=0.01, repetition_penalty=1.1),
]


@pytest.mark.parametrize(
    "sampling", SETTINGS, ids=lambda s: f"T{s.temperature} k{s.top_k} p{s.top_p} m{s.min_p} r{s.repetition_penalty}"
)
def test_draws_follow_the_definitions(sampling: Sampling, package: Package) -> None:
    generator = np.random.default_rng(5)
    history = [int(token) for token in generator.integers(0, 40, 30)] + [VOCABULARY - 1, -1, 2**31 - 1]
    for seed, spread in enumerate((0.5, 2.0, 5.0)):
        logits = padded(generator.normal(0.0, spread, 60).astype(np.float32))
        ids = draws(package, replace(sampling, seed=seed), logits, 3000, history)
        check_distribution(ids, distribution(logits, sampling, history))


def test_the_check_itself_tells_distributions_apart(package: Package) -> None:
    logits = padded(np.random.default_rng(6).normal(0.0, 1.0, 60).astype(np.float32))
    ids = draws(package, Sampling(temperature=1.0, top_k=20), logits, 6000)
    for other in (Sampling(temperature=1.2, top_k=20), Sampling(temperature=1.0, top_k=19)):
        with pytest.raises(AssertionError):
            check_distribution(ids, distribution(logits, other))


def test_greedy_takes_the_largest_whatever_else_is_set(package: Package) -> None:
    generator = np.random.default_rng(7)
    for seed in range(200):
        values = generator.normal(0.0, 3.0, TOKENS).astype(np.float32)
        sampling = Sampling(temperature=0.0, top_k=seed % 3 * 10, top_p=0.5, min_p=0.2, seed=seed)
        assert draws(package, sampling, padded(values), 1) == [int(values.argmax())]


def test_the_penalty_counts_each_token_once_and_spares_the_others(package: Package) -> None:
    logits = padded([2.0, 1.9, -1.0])
    greedy = Sampling(temperature=0.0, repetition_penalty=1.04)
    assert draws(package, greedy, logits, 1) == [0]
    assert draws(package, greedy, logits, 1, [0]) == [0]  # 2.0 / 1.04 is still the largest
    assert draws(package, greedy, logits, 1, [0, 0, 0, 0]) == [0]
    assert draws(package, replace(greedy, repetition_penalty=1.06), logits, 1, [0]) == [1]
    negative = padded([-1.0, -1.05])
    assert draws(package, replace(greedy, repetition_penalty=1.04), negative, 1, [0]) == [0]
    assert draws(package, replace(greedy, repetition_penalty=1.06), negative, 1, [0]) == [1]


def test_ties_go_to_the_lowest_ids(package: Package) -> None:
    flat = padded([1.0, 5.0, 5.0, 5.0, 5.0])
    assert draws(package, Sampling(), flat, 3) == [1, 1, 1]
    assert set(draws(package, Sampling(temperature=1.0, top_k=2, seed=1), flat, 200)) == {1, 2}
    assert set(draws(package, Sampling(temperature=1.0, top_p=0.6, seed=1), flat, 200)) == {1, 2, 3}
    everything = padded(np.zeros(TOKENS, dtype=np.float32))
    assert draws(package, Sampling(), everything, 1) == [0]
    assert set(draws(package, Sampling(temperature=1.0, top_k=5), everything, 500)) == {0, 1, 2, 3, 4}


@pytest.mark.parametrize("fill", [1e30, float("inf"), float("nan")])
def test_padded_rows_of_the_vocabulary_never_come(fill: float, package: Package) -> None:
    assert package.config.token_count < package.config.vocab_size
    logits = padded(np.zeros(TOKENS, dtype=np.float32), fill)
    for sampling in (Sampling(), Sampling(temperature=100.0), Sampling(temperature=1.0, top_k=TOKENS + 5)):
        assert max(draws(package, sampling, logits, 3000)) < TOKENS


def test_equal_seeds_repeat_and_others_differ(package: Package) -> None:
    logits = padded(np.random.default_rng(8).normal(0.0, 1.0, 60).astype(np.float32))
    first, again, other = (draws(package, Sampling(temperature=1.0, seed=s), logits, 400) for s in (3, 3, 4))
    assert first == again
    assert first != other
    with Sampler(package, Sampling(temperature=1.0, seed=3)) as a, Sampler(package, Sampling(temperature=1.0)) as b:
        mixed = [(a.sample_from(logits), b.sample_from(logits))[0] for _ in range(400)]
    assert mixed == first


def split_mix(seed: int) -> Iterator[int]:
    """SplitMix64, from its paper (Steele, Lea and Flood 2014)."""
    mask = (1 << 64) - 1
    while True:
        seed = (seed + 0x9E3779B97F4A7C15) & mask
        z = (seed ^ (seed >> 30)) * 0xBF58476D1CE4E5B9 & mask
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB & mask
        yield z ^ (z >> 31)


@pytest.mark.parametrize("seed", [0, 1, 2**63, 2**64 - 1])
def test_the_stream_of_a_seed_is_the_documented_one(seed: int, package: Package) -> None:
    # Sixteen equal logits: the id is the top four bits of each number, on every machine.
    logits = padded([0.0] * 16)
    expected = [number >> 60 for number, _ in zip(split_mix(seed), range(500), strict=False)]
    assert draws(package, Sampling(temperature=1.0, top_k=16, seed=seed), logits, 500) == expected


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("place", [0, 17, TOKENS - 1])
def test_logits_that_are_not_finite_are_refused_with_their_token(bad: float, place: int, package: Package) -> None:
    logits = padded(np.zeros(TOKENS, dtype=np.float32))
    logits[place] = bad
    for sampling in (Sampling(), Sampling(temperature=1.0, top_k=3)):
        with Sampler(package, sampling) as sampler, pytest.raises(EngineCrash, match=f"token {place} is not finite"):
            sampler.sample_from(logits)


@pytest.mark.parametrize(
    ("field", "wrong", "right"),
    [
        ("temperature", (-0.1, 100.5, float("nan"), float("inf")), (0.0, 1e-30, 100.0)),
        ("top_p", (0.0, -1.0, 1.001, float("nan")), (1e-30, 1.0)),
        ("min_p", (-0.01, 1.0, float("nan")), (0.0, 0.999)),
        ("repetition_penalty", (0.0, -1.0, 101.0, float("nan"), float("inf")), (1e-3, 100.0)),
    ],
)
def test_settings_out_of_range_are_named(
    field: str, wrong: tuple[float, ...], right: tuple[float, ...], package: Package
) -> None:
    logits = padded(np.linspace(-3, 3, 50, dtype=np.float32))
    for value in wrong:
        with pytest.raises(UsageError, match=rf"^{field} "):
            Sampler(package, replace(Sampling(temperature=1.0), **{field: value}))
    for value in right:
        ids = draws(package, replace(Sampling(temperature=1.0), **{field: value}), logits, 20, [49])
        assert set(ids) <= set(range(50))


def test_a_session_is_sampled_from_its_logits_and_timeline(package: Package) -> None:
    sampling = Sampling(temperature=1.0, repetition_penalty=1.5, seed=9)
    with Engine(package, EngineOptions(threads=1)) as engine, Session(engine, SessionOptions(context=32)) as session:
        session.eval([1, 2, 3, 3, 2])
        with Sampler(package, sampling) as one, Sampler(package, sampling) as other:
            ids = [one.sample(session) for _ in range(50)]
            assert ids == [other.sample_from(session.logits(), session.tokens()) for _ in range(50)]
        unpenalised = draws(package, replace(sampling, repetition_penalty=1.0), session.logits(), 50)
        assert ids != unpenalised


def test_an_id_that_no_token_has_is_never_sampled(tmp_path: Path) -> None:
    """The flag of a hole is set in the package's tokenizer table, whose contents are not hashed when it is opened."""
    path = write_package(tmp_path / "holes.l3r")
    data = bytearray(path.read_bytes())
    tables = data.index(b"BPE1")
    flags = tables + int.from_bytes(data[tables + 40 : tables + 44], "little")
    hole = 7
    data[flags + hole] |= 4
    path.write_bytes(data)
    logits = padded([0.0] * TOKENS)
    logits[hole] = 50.0
    with Package(path, library=Library(build_library())) as package:
        assert draws(package, Sampling(temperature=0.0), logits, 1) == [0]
        assert hole not in draws(package, Sampling(temperature=5.0, seed=1), logits, 400)
        logits[hole] = float("nan")
        assert draws(package, Sampling(temperature=0.0), logits, 1) == [0]
