"""Penalties of a reply, biases and allowed ids that are counted, placed or forgotten wrongly; wrong log-probabilities.

The oracle follows OpenAI's API reference in float64: logit - count * frequency - (count > 0) * presence.
"""

from __future__ import annotations

import math
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
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
from launcher.errors import EngineCrash, InternalError, UsageError
from tests.support.packages import INTEGER, TOKENS, write_package

VOCABULARY = INTEGER.vocab_size
WORDS = (VOCABULARY + 31) // 32
Float64 = npt.NDArray[np.float64]


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Package]:
    path = write_package(tmp_path_factory.mktemp("choices") / "small.l3r")
    with Package(path, library=Library(build_library())) as package:
        yield package


@pytest.fixture
def session(package: Package) -> Iterator[Session]:
    with Engine(package, EngineOptions(threads=1)) as engine, Session(engine, SessionOptions(context=64)) as session:
        yield session


def random_logits(seed: int, spread: float = 2.0) -> array[float]:
    """Logits of all rows; padding rows are tempting."""
    values = np.random.default_rng(seed).normal(0.0, spread, VOCABULARY).astype(np.float32)
    values[TOKENS:] = 1e30
    return array("f", values.tobytes())


def adjusted(
    logits: array[float], sampling: Sampling, history: Sequence[int], reply: int, biases: Mapping[int, float]
) -> Float64:
    """What the sampler chooses from, by id."""
    values = np.array(logits, dtype=np.float64)[:TOKENS]
    penalty = np.float64(np.float32(sampling.repetition_penalty))
    for token in {token for token in history if 0 <= token < TOKENS}:
        values[token] = values[token] / penalty if values[token] > 0 else values[token] * penalty
    counts = Counter(history[len(history) - reply :])
    for token in range(TOKENS):
        values[token] -= counts[token] * np.float64(np.float32(sampling.frequency_penalty))
        values[token] -= (counts[token] > 0) * np.float64(np.float32(sampling.presence_penalty))
        values[token] += np.float64(np.float32(biases.get(token, 0.0)))
    return values


def mask_of(tokens: Sequence[int]) -> array[int]:
    mask = array("I", [0] * WORDS)
    assert mask.itemsize == 4
    for token in tokens:
        mask[token // 32] |= 1 << token % 32
    return mask


def pick(
    package: Package,
    sampling: Sampling,
    logits: array[float],
    history: Sequence[int] = (),
    reply: int = 0,
    *,
    biases: Mapping[int, float] | None = None,
    allowed: array[int] | None = None,
    count: int = 1,
) -> list[int]:
    with Sampler(package, sampling) as sampler:
        sampler.bias(biases or {})
        return [sampler.sample_from(logits, history, reply_length=reply, allowed=allowed) for _ in range(count)]


# -- frequency and presence --


@pytest.mark.parametrize("repetition", [1.0, 1.3])
@pytest.mark.parametrize(("frequency", "presence"), [(0.5, 0.0), (0.0, 0.7), (2.0, -2.0), (-0.3, 1.5), (-2.0, -2.0)])
def test_greedy_follows_the_definition(frequency: float, presence: float, repetition: float, package: Package) -> None:
    generator = np.random.default_rng(3)
    sampling = Sampling(frequency_penalty=frequency, presence_penalty=presence, repetition_penalty=repetition)
    moved = 0
    for seed in range(150):
        logits = random_logits(seed)
        likely = np.argsort(np.array(logits)[:TOKENS])[::-1][:6]
        history = [int(token) for token in generator.choice(likely, 12)] + [-1, VOCABULARY - 1, 2**31 - 1]
        history += [int(token) for token in generator.choice(likely, 9)]
        reply = int(generator.integers(0, len(history) + 1))
        biases = {int(token): float(generator.normal(0, 1)) for token in generator.choice(likely, 2)}
        values = adjusted(logits, sampling, history, reply, biases)
        order = np.argsort(values)[::-1]
        if values[order[0]] - values[order[1]] < 1e-4:
            continue  # float32 may see it otherwise
        assert pick(package, sampling, logits, history, reply, biases=biases) == [int(order[0])], seed
        moved += int(order[0]) != int(likely[0])
    assert moved > 20


def test_what_came_before_the_reply_is_not_counted(package: Package) -> None:
    logits = array("f", [0.0] * VOCABULARY)
    logits[5], logits[6] = 3.0, 2.5
    sampling = Sampling(frequency_penalty=0.3)
    assert pick(package, sampling, logits, [5, 5, 5, 5, 9], 1) == [5]
    assert pick(package, sampling, logits, [5, 5, 5, 5, 9], 2) == [5]
    assert pick(package, sampling, logits, [5, 5, 5, 5, 9], 3) == [6]
    assert pick(package, sampling, logits, [5, 5, 5, 5, 9], 0) == [5]
    assert pick(package, replace(sampling, frequency_penalty=0.0, presence_penalty=0.6), logits, [5, 9], 2) == [6]
    assert pick(package, replace(sampling, frequency_penalty=0.0, presence_penalty=0.4), logits, [5] * 9, 9) == [5]


def test_counts_are_those_of_this_pick_alone(package: Package) -> None:
    logits = array("f", [0.0] * VOCABULARY)
    logits[5], logits[6] = 3.0, 2.5
    with Sampler(package, Sampling(frequency_penalty=0.1, temperature=1e-6)) as sampler:
        for _ in range(20):
            assert sampler.sample_from(logits, [5] * 4, reply_length=4) == 5
            assert sampler.sample_from(logits, [5] * 6, reply_length=6) == 6


def test_draws_follow_the_penalised_distribution(package: Package) -> None:
    logits = random_logits(8, 1.0)
    sampling = Sampling(temperature=0.8, top_k=12, frequency_penalty=0.4, presence_penalty=0.3, seed=5)
    history = [int(token) for token in np.argsort(np.array(logits)[:TOKENS])[::-1][:4]] * 2
    biases = {3: 4.0, 17: -100.0}
    values = adjusted(logits, sampling, history, 8, biases)
    order = np.argsort(values)[::-1][:12]
    chances = np.exp((values[order] - values[order[0]]) / 0.8)
    chances /= chances.sum()
    counts = Counter(pick(package, sampling, logits, history, 8, biases=biases, count=6000))
    assert set(counts) <= {int(token) for token in order}
    for token, chance in zip(order, chances, strict=True):
        spread = math.sqrt(6000 * chance * (1 - chance))
        assert abs(counts[int(token)] - 6000 * chance) < 5 * spread + 1, token


def test_penalties_out_of_range_are_named(package: Package) -> None:
    for field in ("frequency_penalty", "presence_penalty"):
        for value in (-2.01, 2.01, float("nan"), float("inf")):
            with pytest.raises(UsageError, match=rf"^{field} .*; -2 to 2 is possible"):
                Sampler(package, replace(Sampling(), **{field: value}))
        for value in (-2.0, 2.0):
            Sampler(package, replace(Sampling(), **{field: value})).close()


def test_a_reply_longer_than_the_history_is_refused(package: Package, session: Session) -> None:
    with pytest.raises(UsageError, match="a reply of 3 ids in a history of 2"):
        pick(package, Sampling(), random_logits(1), [1, 2], 3)
    session.eval([1, 2])
    with Sampler(package, Sampling()) as sampler, pytest.raises(UsageError, match="a reply of 3 ids in a history of 2"):
        sampler.sample(session, reply_length=3)


# -- biases --


def test_a_bias_replaces_the_one_before_and_ends(package: Package) -> None:
    logits = array("f", [0.0] * VOCABULARY)
    logits[9] = 1.0
    with Sampler(package, Sampling()) as sampler:
        for biases, expected in (({7: 5.0}, 7), ({8: 2.0, 9: 2.0}, 9), ({9: -100.0, 0: 0.5}, 0), ({}, 9)):
            sampler.bias(biases)
            assert [sampler.sample_from(logits) for _ in range(3)] == [expected] * 3


def test_wrong_biases_are_refused_and_the_old_ones_stay(package: Package) -> None:
    logits = array("f", [0.0] * VOCABULARY)
    with Sampler(package, Sampling()) as sampler:
        sampler.bias({7: 5.0})
        for token in (-1, TOKENS, VOCABULARY, 2**31 - 1, -(2**31)):
            with pytest.raises(UsageError, match=f"a bias for id {token}, which no token has"):
                sampler.bias({3: 9.0, token: 1.0})
        for value in (float("nan"), float("inf"), float("-inf")):
            with pytest.raises(UsageError, match="the bias for token 3 is not finite"):
                sampler.bias({3: value})
        assert sampler.sample_from(logits) == 7


def test_sums_that_leave_float32_do_not_spoil_the_others(package: Package) -> None:
    """Two infinite logits would make every probability NaN."""
    logits = array("f", [0.0] * VOCABULARY)
    logits[1], logits[2], logits[3] = 3e38, 3e38, -3e38
    with Sampler(package, Sampling(temperature=1.0, seed=2)) as sampler:
        sampler.bias({1: 3e38, 2: 3e38, 3: -3e38})
        assert {sampler.sample_from(logits) for _ in range(100)} == {1, 2}
    assert pick(package, Sampling(repetition_penalty=0.001, temperature=1.0), logits, [1, 2], count=50) != [1] * 50


# -- allowed ids --


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=3.0), Sampling(temperature=2.0, top_k=5)])
def test_only_allowed_ids_come_and_each_of_them(sampling: Sampling, package: Package) -> None:
    generator = np.random.default_rng(11)
    for count in (1, 2, 3, 40, TOKENS):
        tokens = sorted(int(token) for token in generator.choice(TOKENS, count, replace=False))
        logits = random_logits(count, 0.1)
        best = sorted(tokens, key=lambda token: (-logits[token], token))
        seen = set(pick(package, sampling, logits, allowed=mask_of(tokens), count=1500))
        if sampling.temperature == 0:
            assert seen == {best[0]}
        elif sampling.top_k:
            assert seen == set(best[: sampling.top_k])
        else:
            assert seen <= set(tokens)
            assert count > 40 or seen == set(tokens)


def test_everything_allowed_is_as_if_nothing_was_said(package: Package) -> None:
    full = array("I", [2**32 - 1] * WORDS)  # padding rows included
    for seed, sampling in enumerate((Sampling(), Sampling(temperature=1.0), Sampling(temperature=0.7, top_k=9))):
        logits = random_logits(seed)
        plain = pick(package, sampling, logits, [1, 2, 3], count=300)
        assert pick(package, sampling, logits, [1, 2, 3], 2, allowed=full, count=300) == plain
        assert pick(package, sampling, logits, [1, 2, 3], biases={5: 0.0}, count=300) == plain


def test_words_are_read_in_order_and_bits_from_the_lowest(package: Package) -> None:
    for token in (0, 31, 32, 33, 63, 64, TOKENS - 1):
        assert pick(package, Sampling(), random_logits(token), allowed=mask_of([token])) == [token]


def test_nothing_allowed_is_an_error(package: Package) -> None:
    for mask in (array("I", [0] * WORDS), mask_of(range(TOKENS, VOCABULARY))):
        with pytest.raises(UsageError, match="none of the tokens is allowed"):
            pick(package, Sampling(), random_logits(1), allowed=mask)


def test_masks_may_be_bytes_and_longer_but_not_shorter(package: Package) -> None:
    mask = mask_of([4])
    with Sampler(package, Sampling()) as sampler:
        for buffer in (bytes(mask), bytearray(mask.tobytes()), mask + array("I", [7]), np.array(mask, dtype=np.uint32)):
            assert sampler.sample_from(random_logits(2), allowed=buffer) == 4
        for short in (bytes(4 * WORDS - 1), array("I", [1] * (WORDS - 1)), b""):
            with pytest.raises(InternalError, match=f"expected {4 * WORDS} bytes of allowed ids"):
                sampler.sample_from(random_logits(2), allowed=short)


def test_a_session_is_sampled_with_all_of_it(package: Package, session: Session) -> None:
    sampling = Sampling(temperature=1.0, frequency_penalty=1.0, presence_penalty=0.5, seed=9)
    session.eval([1, 2, 3, 3, 2])
    mask = mask_of(range(0, TOKENS, 3))
    with Sampler(package, sampling) as one, Sampler(package, sampling) as other:
        one.bias({3: 2.0})
        other.bias({3: 2.0})
        ids = [one.sample(session, reply_length=3, allowed=mask) for _ in range(60)]
        logits, tokens = session.logits(), session.tokens()
        assert ids == [other.sample_from(logits, tokens, reply_length=3, allowed=mask) for _ in range(60)]


# -- log-probabilities --


def log_softmax(logits: array[float]) -> Float64:
    values = np.array(logits, dtype=np.float64)[:TOKENS]
    return values - values.max() - np.log(np.exp(values - values.max()).sum())


def test_log_probabilities_are_those_of_the_softmax(package: Package, session: Session) -> None:
    for step in range(12):
        session.eval([(step * 37 + 5) % VOCABULARY])
        expected = log_softmax(session.logits())
        order = sorted(range(TOKENS), key=lambda token: (-expected[token], token))
        for top in (0, 1, 2, 20, 64):
            token = order[(step * 11 + top) % TOKENS]
            own, best = package.log_probabilities(session, token, top)
            assert own == pytest.approx(expected[token], abs=2e-6)
            assert [other for other, _ in best] == order[:top]
            assert [value for _, value in best] == pytest.approx([expected[other] for other in order[:top]], abs=2e-6)


def raw_log_probabilities(package: Package, logits: array[float], token: int, top: int) -> tuple[float, list[int]]:
    own, ids, values = array("f", [7.0]), array("i", [-7] * max(1, top)), array("f", [7.0] * max(1, top))
    addresses = [package.library.functions.l3_log_probabilities.argtypes[place] for place in (1, 5)]
    floats, ints = (kind._type_ for kind in addresses)
    package.library.call(
        "l3_log_probabilities",
        package.address,
        (floats * VOCABULARY).from_buffer(logits),
        token,
        (floats * 1).from_buffer(own),
        top,
        (ints * len(ids)).from_buffer(ids),
        (floats * len(values)).from_buffer(values),
    )
    return own[0], list(ids[:top])


def test_equal_logits_come_by_id_and_extremes_stay_finite(package: Package) -> None:
    flat = array("f", [0.0] * VOCABULARY)
    own, ids = raw_log_probabilities(package, flat, 9, 64)
    assert own == pytest.approx(-math.log(TOKENS))
    assert ids == list(range(64))
    for place in (63, 64, 200):
        flat[place] = 1.0
    assert raw_log_probabilities(package, flat, 9, 5)[1] == [63, 64, 200, 0, 1]
    high = array("f", [-3e38] * VOCABULARY)
    high[7] = 3e38
    assert raw_log_probabilities(package, high, 7, 2) == (0.0, [7, 0])


def test_wrong_questions_about_probabilities_are_refused(package: Package, session: Session) -> None:
    with pytest.raises(InternalError, match="no logits"):
        package.log_probabilities(session, 1, 1)
    session.eval([1])
    for token in (-1, TOKENS, VOCABULARY, 2**31 - 1):
        with pytest.raises(UsageError, match=f"id {token}, which no token has"):
            package.log_probabilities(session, token, 1)
    with pytest.raises(UsageError, match="at most 64"):
        package.log_probabilities(session, 1, 65)
    for bad in (float("nan"), float("inf"), float("-inf")):
        logits = random_logits(1)
        logits[TOKENS - 1] = bad
        with pytest.raises(EngineCrash, match=f"token {TOKENS - 1} is not finite"):
            raw_log_probabilities(package, logits, 1, 1)


def test_ids_that_no_token_has_take_no_part(tmp_path: Path) -> None:
    """The flag of a hole is set in the package's tokenizer table, whose contents are not hashed when it is opened."""
    path = write_package(tmp_path / "holes.l3r")
    data = bytearray(path.read_bytes())
    tables = data.index(b"BPE1")
    flags = tables + int.from_bytes(data[tables + 40 : tables + 44], "little")
    data[flags + 7] |= 4
    path.write_bytes(data)
    logits = array("f", [0.0] * VOCABULARY)
    logits[7] = float("nan")
    with Package(path, library=Library(build_library())) as package:
        own, ids = raw_log_probabilities(package, logits, 9, 10)
        assert own == pytest.approx(-math.log(TOKENS - 1))
        assert ids == [0, 1, 2, 3, 4, 5, 6, 8, 9, 10]
        with pytest.raises(UsageError, match="id 7, which no token has"):
            raw_log_probabilities(package, logits, 7, 1)
        with pytest.raises(UsageError, match="a bias for id 7"):
            pick(package, Sampling(), logits, biases={7: 1.0})
        with pytest.raises(UsageError, match="none of the tokens is allowed"):
            pick(package, Sampling(), logits, allowed=mask_of([7]))
