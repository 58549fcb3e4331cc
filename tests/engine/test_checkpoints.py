"""A return to an earlier position that leaves a trace of what came after, or a checkpoint that outlives its caches.

Every session that returned is compared with one that never went further: state, caches, logits and MTP results.
"""

from __future__ import annotations

import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from engine.build import build_library
from launcher.engine import Engine, Package, Session
from launcher.engine_library import Library
from launcher.engine_types import EngineOptions, KvType, Logits, SessionOptions
from launcher.errors import Cancelled, InternalError, UsageError
from tests.support.packages import INTEGER, write_package

LONG = replace(INTEGER, max_context=1024, max_position=1024)
SIZE, WIDTH = LONG.vocab_size, LONG.hidden_size


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path = write_package(tmp_path_factory.mktemp("checkpoints") / "p.l3r", LONG)
    with (
        Package(path, library=Library(build_library())) as package,
        Engine(package, EngineOptions(threads=2, mtp=True)) as engine,
    ):
        yield engine


@pytest.fixture(params=list(KvType), ids=lambda kind: kind.label)
def options(request: pytest.FixtureRequest) -> SessionOptions:
    return SessionOptions(context=256, kv_type=request.param, chunk=16, poison=True, checkpoints=4)


def ids_of(count: int, seed: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(SIZE) for _ in range(count)]


def feed(session: Session, ids: Sequence[int], cuts: Sequence[int] = ()) -> bytes:
    """Evaluates ids in pieces, then the MTP layer over what its cache lacks; returns the logits of both, as bytes."""
    seen = b""
    edges = [0, *cuts, len(ids)]
    for start, stop in pairwise(edges):
        part = ids[start:stop]
        before = session.position
        hidden = array("f", bytes(4 * WIDTH * len(part)))
        logits = array("f", bytes(4 * SIZE * len(part)))
        session.eval(part, mode=Logits.ALL, logits=logits, hidden=hidden)
        drafts = array("f", bytes(4 * SIZE * len(part)))
        session.mtp(hidden, part, before, logits=drafts)
        seen += logits.tobytes() + drafts.tobytes()
    return seen


def cold(engine: Engine, options: SessionOptions, ids: Sequence[int]) -> tuple[bytes, bytes]:
    with Session(engine, options) as session:
        seen = feed(session, ids)
        return session.state_sha256(), seen


def rows_from(seen: bytes, count: int, first: int) -> bytes:
    """Of `feed`'s result for `count` ids in one piece, the part from row `first` on."""
    half = len(seen) // 2
    return seen[4 * SIZE * first : half] + seen[half + 4 * SIZE * first :]


def test_each_return_equals_a_session_that_never_went_further(engine: Engine, options: SessionOptions) -> None:
    trunk = ids_of(90, 1)
    with Session(engine, options) as session:
        places = {0: 1, 1: 30, 2: 47, 3: 90}
        done = 0
        for slot, place in places.items():
            feed(session, trunk[done:place])
            session.save(slot)
            done = place
        for seed, (slot, place) in enumerate(reversed(places.items())):
            feed(session, ids_of(60, 50 + seed), cuts=(7, 8, 40))  # a way that is given up
            session.restore(slot)
            assert session.position == place
            assert session.tokens() == trunk[:place]
            assert session.state_sha256() == cold(engine, options, trunk[:place])[0]
            other = ids_of(35, 80 + seed)
            seen = feed(session, other)
            state, expected = cold(engine, options, trunk[:place] + other)
            assert session.state_sha256() == state
            assert seen == rows_from(expected, place + 35, place)
            session.restore(slot)


def test_a_return_empties_what_lies_beyond_it_and_nothing_else(engine: Engine, options: SessionOptions) -> None:
    with Session(engine, options) as session:
        assert [session.checkpoint(slot) for slot in range(5)] == [None] * 5
        for slot, count in ((2, 10), (0, 10), (3, 10), (1, 10)):
            session.eval(ids_of(count, slot))
            session.save(slot)
        assert [session.checkpoint(slot) for slot in range(4)] == [20, 40, 10, 30]
        session.restore(3)
        assert [session.checkpoint(slot) for slot in range(4)] == [20, None, 10, 30]
        session.restore(3)  # again, from the same place
        with pytest.raises(UsageError, match="checkpoint 1 is empty"):
            session.restore(1)
        assert session.position == 30
        session.save(2)  # takes the place of an older one
        assert session.checkpoint(2) == 30
        session.reset()
        assert [session.checkpoint(slot) for slot in range(4)] == [None] * 4


def test_the_start_can_be_kept(engine: Engine, options: SessionOptions) -> None:
    ids = ids_of(20, 3)
    with Session(engine, options) as session:
        fresh = session.state_sha256()
        session.save(1)
        assert session.checkpoint(1) == 0
        feed(session, ids_of(50, 4))
        session.restore(1)
        assert session.state_sha256() == fresh
        assert (feed(session, ids), session.state_sha256()) == cold(engine, options, ids)[::-1]


def test_slots_that_do_not_exist_are_refused(engine: Engine, options: SessionOptions) -> None:
    with Session(engine, options) as session, Session(engine, replace(options, checkpoints=0)) as bare:
        for call in (session.save, session.restore):
            with pytest.raises(UsageError, match="checkpoint 4; the session was created with 4"):
                call(4)
        for call in (bare.save, bare.restore):
            with pytest.raises(UsageError, match="checkpoint 0; the session was created with 0"):
                call(0)
        for name in ("l3_session_save", "l3_session_restore"):
            with pytest.raises(UsageError, match="session is NULL"):
                session.library.call(name, None, 0)
        assert session.library.functions.l3_session_checkpoint(None, 0) == 2**32 - 1


def test_there_are_no_logits_after_a_return(engine: Engine, options: SessionOptions) -> None:
    with Session(engine, options) as session:
        session.eval([1, 2, 3])
        session.save(0)
        assert session.logits()
        session.restore(0)
        with pytest.raises(InternalError, match="no logits"):
            session.logits()


def test_a_return_after_a_cancel_is_clean(engine: Engine, options: SessionOptions) -> None:
    ids = ids_of(40, 5)
    with Session(engine, options) as session:
        feed(session, ids)
        session.save(0)
        session.eval(ids_of(20, 6))
        session.cancel()
        with pytest.raises(Cancelled):
            session.eval(ids_of(40, 7))
        session.restore(0)
        assert session.state_sha256() == cold(engine, options, ids)[0]
        session.eval([1])


def test_a_pending_cancel_and_a_forced_routing_survive(engine: Engine, options: SessionOptions) -> None:
    """The MoE layers are those after the dense one; the forced experts are not what the router picks everywhere."""
    layers, count = LONG.layer_count - LONG.dense_layer_count, 30
    routing = [token % 2 + 2 * (rank % 2) for _ in range(layers) for token in range(count) for rank in (0, 1)]
    ids = ids_of(count, 8)

    def forced(session: Session) -> bytes:
        session.force_routing(routing, count)
        session.eval(ids[:10])
        session.save(0)
        return b""

    with Session(engine, options) as plain, Session(engine, options) as session, Session(engine, options) as free:
        forced(plain)
        plain.eval(ids[10:])
        free.eval(ids)
        forced(session)
        session.eval(ids_of(20, 9))
        session.cancel()
        session.restore(0)
        with pytest.raises(Cancelled):
            session.eval(ids[10:])
        session.eval(ids[10:])
        assert session.state_sha256() == plain.state_sha256()
        assert plain.logits() != free.logits()


def test_mtp_rows_that_were_drafted_over_are_not_returned_to(engine: Engine, options: SessionOptions) -> None:
    """A draft beyond the timeline may be overwritten after a save; the cache then ends where that began."""
    ids = ids_of(60, 10)
    hidden = array("f", bytes(4 * WIDTH * 20))
    with Session(engine, options) as session:
        feed(session, ids[:20])
        session.mtp(hidden, ids_of(4, 11), 20)  # a draft: the MTP cache holds 24 rows
        session.save(0)
        session.save(1)
        session.mtp(hidden, ids_of(2, 12), 22)
        session.restore(0)
        with pytest.raises(UsageError, match="position 23 leaves a gap: the MTP cache holds 22 tokens"):
            session.mtp(hidden, [1], 23)
        session.mtp(hidden, [1], 18)
        session.restore(1)
        with pytest.raises(UsageError, match="the MTP cache holds 18 tokens"):
            session.mtp(hidden, [1], 19)


def test_random_walks_end_where_a_straight_one_does(engine: Engine) -> None:
    generator = random.Random(13)
    for walk in range(12):
        options = SessionOptions(
            context=300,
            kv_type=generator.choice(list(KvType)),
            chunk=generator.choice((1, 5, 64)),
            poison=True,
            checkpoints=3,
        )
        line: list[int] = []
        kept: dict[int, list[int]] = {}
        with Session(engine, options) as session:
            for step in range(25):
                slot = generator.randrange(3)
                if generator.random() < 0.45:
                    session.save(slot)
                    kept[slot] = list(line)
                elif slot in kept and generator.random() < 0.6:
                    session.restore(slot)
                    line = list(kept[slot])
                    kept = {s: ids for s, ids in kept.items() if len(ids) <= len(line)}
                elif len(line) < 240:
                    more = ids_of(generator.randrange(1, 40), 1000 * walk + step)
                    feed(session, more, cuts=(1,) if len(more) > 1 else ())
                    line += more
                held = {slot: place for slot in range(3) if (place := session.checkpoint(slot)) is not None}
                assert held == {slot: len(ids) for slot, ids in kept.items()}
            assert session.tokens() == line
            with Session(engine, options) as straight:
                if line:
                    feed(straight, line)
                assert session.state_sha256() == straight.state_sha256(), f"walk {walk}"
