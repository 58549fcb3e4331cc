"""Prefill and decode are one computation: how a prompt is cut never changes a bit.

Every run is compared with one plain run of the same prompt, in logits, hidden states, MTP logits and the hash of all
states and caches. Session memory is filled with NaN patterns first, except where a run says otherwise, so reading what
was never written shows as well.
"""

from __future__ import annotations

import random
from functools import cache
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from launcher.engine import Package
from launcher.engine_library import Library
from launcher.engine_types import Dtype, KvType, Logits
from tests.support.models import Evaluation, Models, evaluate, open_session, prompt
from tests.support.packages import ODD, uniform, write_package

COUNT = 200
CHUNKS = (1, 3, 16, 64, 200)
THREADS = (1, 2, 3)
RECIPES = ["f32", "w8a8", "w4a8"]
KV_TYPES = list(KvType)


class Runs:
    """Plain runs to compare with."""

    def __init__(self, models: Models, library: Library) -> None:
        self.models = models
        self.kernel_sets = library.simd_available
        self.plain = cache(self._plain)

    def ids(self, name: str) -> list[int]:
        return prompt(COUNT, self.models.preset(name).vocabulary, seed=11)

    def _plain(self, name: str, recipe: str, kv_type: KvType) -> Evaluation:
        with open_session(self.models.package(name, recipe), context=COUNT, kv_type=kv_type, poison=False) as session:
            result = evaluate(session, self.ids(name))
        assert np.isfinite(result.logits).all()
        assert np.isfinite(result.mtp_logits).all()
        return result


@pytest.fixture(scope="module")
def runs(models: Models, library: Library) -> Runs:
    return Runs(models, library)


def random_cuts(generator: random.Random, most: int = 120) -> list[int]:
    """From no cut to nearly token by token, single tokens and long stretches mixed."""
    count = generator.choice([count for count in (0, 1, 2, 5, 20, 120) if count <= most])
    cuts = set(generator.sample(range(1, COUNT), count))
    singles = generator.sample(sorted(cuts), count // 3)
    return sorted(cuts | {cut + 1 for cut in singles if cut + 1 < COUNT})


def settings(kernel_sets: tuple[str, ...]) -> list[tuple[int, int, str]]:
    """Chunk, threads and kernel set. Threads that share a core wait for each other at every step, so a prompt in
    chunks of one token is left to a single thread."""
    every = product(CHUNKS, THREADS, kernel_sets)
    return [(chunk, threads, simd) for chunk, threads, simd in every if chunk > 1 or threads == 1]


@pytest.mark.parametrize("kv_type", KV_TYPES, ids=lambda kv_type: kv_type.label)
@pytest.mark.parametrize("recipe", RECIPES)
def test_no_split_changes_a_bit(runs: Runs, recipe: str, kv_type: KvType) -> None:
    """Chunk sizes, thread counts and kernel sets, each combination on its own random cuts; a recipe sees them all."""
    expected = runs.plain("micro", recipe, kv_type)
    package = runs.models.package("micro", recipe)
    generator = random.Random(f"{recipe} {kv_type}")
    for chunk, threads, simd in settings(runs.kernel_sets)[KV_TYPES.index(kv_type) :: len(KV_TYPES)]:
        most = 120 if threads == 1 else 20
        cuts, mtp_cuts = random_cuts(generator, most), random_cuts(generator, most)
        poison = generator.random() < 0.8
        context = generator.choice((COUNT, COUNT + 1, 512))
        setting = (
            f"chunk {chunk}, {threads} threads, {simd}, context {context}, poison {poison}, cuts {cuts} {mtp_cuts}"
        )
        with open_session(
            package, context=context, threads=threads, simd=simd, chunk=chunk, kv_type=kv_type, poison=poison
        ) as session:
            result = evaluate(session, runs.ids("micro"), cuts=cuts, mtp_cuts=mtp_cuts)
        assert result.same_bits(expected), setting


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_split_changes_a_bit_of_a_wider_model(runs: Runs, recipe: str) -> None:
    """Matrices of many tiles are shared between threads in more ways."""
    expected = runs.plain("tiny", recipe, KvType.F32)
    generator = random.Random(recipe)
    cases = [(64, 2, "avx2"), (200, 3, "scalar"), (1, 1, "avx2"), (16, 3, "avx2")]
    for chunk, threads, simd in cases:
        cuts = random_cuts(generator, 20)
        simd = simd if simd in runs.kernel_sets else ""
        package = runs.models.package("tiny", recipe)
        with open_session(package, context=COUNT, threads=threads, simd=simd, chunk=chunk) as session:
            result = evaluate(session, runs.ids("tiny"), cuts=cuts)
        assert result.same_bits(expected), f"chunk {chunk}, {threads} threads, {simd}, cuts {cuts}"


@pytest.mark.parametrize("layout", [Dtype.F32X8, Dtype.BF16X8], ids=lambda layout: layout.name)
def test_threads_share_matrices_that_end_within_a_tile(library: Library, tmp_path: Path, layout: Dtype) -> None:
    """The padding rows of the last tile belong to nobody, whoever computes it."""
    ids = prompt(64, ODD.vocab_size)
    with Package(write_package(tmp_path / "odd.l3r", ODD, uniform(layout)), library=library) as package:
        with open_session(package, context=64) as session:
            expected = evaluate(session, ids)
        for threads, simd, chunk in product((2, 3), library.simd_available, (5, 64)):
            with open_session(package, context=64, threads=threads, simd=simd, chunk=chunk) as session:
                for _ in range(3):  # a write to the wrong place may meet a reader or miss it
                    assert evaluate(session, ids).same_bits(expected), f"{threads} threads, {simd}, chunk {chunk}"
                    session.reset()


@pytest.mark.parametrize("recipe", RECIPES)
def test_token_by_token_equals_one_call(runs: Runs, recipe: str) -> None:
    """Decode as a chat does it: last logits only, and the pointer that l3_session_logits gives."""
    expected = runs.plain("micro", recipe, KvType.F32)
    with open_session(runs.models.package("micro", recipe), context=COUNT, threads=2) as session:
        last = np.empty((1, expected.logits.shape[1]), dtype=np.float32)
        for index, token in enumerate(runs.ids("micro")):
            session.eval([token], mode=Logits.LAST, logits=last)
            assert last.tobytes() == expected.logits[index].tobytes(), f"token {index}"
            assert session.logits().tobytes() == last.tobytes()


def test_unwanted_logits_change_nothing(runs: Runs) -> None:
    expected = runs.plain("micro", "w4a8", KvType.F32)
    ids = runs.ids("micro")
    with open_session(runs.models.package("micro", "w4a8"), context=COUNT, chunk=16) as session:
        session.eval(ids[:150], mode=Logits.NONE)
        session.eval(ids[150:], mode=Logits.LAST)
        assert session.logits().tobytes() == expected.logits[-1].tobytes()


@pytest.mark.parametrize("recipe", RECIPES)
def test_no_token_sees_the_future(runs: Runs, recipe: str) -> None:
    """Changing token t changes no logit before t, and does change those from t on."""
    package = runs.models.package("micro", recipe)
    ids = runs.ids("micro")
    expected = runs.plain("micro", recipe, KvType.F32)
    with open_session(package, context=COUNT, threads=2) as session:
        for t in (0, 1, 63, 64, 65, 130, COUNT - 1):
            changed = [*ids[:t], (ids[t] + 1) % package.config.token_count, *ids[t + 1 :]]
            session.reset()
            result = evaluate(session, changed)
            assert result.logits[:t].tobytes() == expected.logits[:t].tobytes(), f"token {t}"
            assert result.hidden[:t].tobytes() == expected.hidden[:t].tobytes(), f"token {t}"
            # The draft at position i knows token i + 1.
            before = max(t - 1, 0)
            assert result.mtp_logits[:before].tobytes() == expected.mtp_logits[:before].tobytes(), f"token {t}"
            assert (result.logits[t:] != expected.logits[t:]).any(axis=1).all(), f"token {t}"
            assert (result.mtp_logits[before:] != expected.mtp_logits[before:]).any(axis=1).all(), f"token {t}"


@pytest.mark.parametrize("recipe", RECIPES)
def test_reset_leaves_nothing_behind(runs: Runs, recipe: str) -> None:
    expected = runs.plain("micro", recipe, KvType.F32)
    ids = runs.ids("micro")
    with open_session(runs.models.package("micro", recipe), context=COUNT) as session:
        fresh = session.state_sha256()
        for other in (prompt(COUNT, 320, seed=12), ids[:50], ids):
            evaluate(session, other)
            session.reset()
            assert session.position == 0
            assert session.state_sha256() == fresh
            assert evaluate(session, ids).same_bits(expected)
            session.reset()


def test_drafts_rewind(runs: Runs) -> None:
    """The MTP cache is overwritten from any earlier position, as rejected drafts demand."""
    expected = runs.plain("micro", "w8a8", KvType.F32)
    ids = runs.ids("micro")
    drafts = len(expected.mtp_logits)
    with open_session(runs.models.package("micro", "w8a8"), context=COUNT, chunk=16) as session:
        evaluate(session, ids)
        for start in (drafts - 1, drafts - 7, 100, 17, 0):
            wrong = np.ones((min(40, drafts - start), expected.hidden.shape[1]), dtype=np.float32)
            session.mtp(wrong, ids[: len(wrong)], start)
            logits = np.full((drafts - start, expected.logits.shape[1]), np.nan, dtype=np.float32)
            session.mtp(expected.hidden[start:drafts], ids[start + 1 :], start, logits=logits)
            assert logits.tobytes() == expected.mtp_logits[start:].tobytes(), f"rewound to {start}"
        assert session.state_sha256() == expected.state
