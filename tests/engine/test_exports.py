"""A session that comes back changed, one that is lost to a bad export, or a damaged export that is believed.

An imported session is compared with the one that was exported and with one that was evaluated anew, bit for bit.
"""

from __future__ import annotations

import ctypes
import hashlib
import random
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from engine.build import build_library
from launcher.engine import Engine, Package, Session
from launcher.engine_export import read_export
from launcher.engine_library import Library
from launcher.engine_types import EngineOptions, KvType, Logits, SessionOptions
from launcher.errors import Cancelled, ContextFull, InternalError, UsageError
from tests.support.packages import INTEGER, write_package

# KDA, MLA, KDA, MLA: more than one cache, so that rows of one in place of another's are seen.
LONG = replace(INTEGER, layer_count=4, max_context=512, max_position=512)
SIZE, WIDTH = LONG.vocab_size, LONG.hidden_size
HEADER, DIGEST, ENTRY = 192, 160, 16
PLACES = {0: 11, 2: 30, 3: 47}
LENGTH = 60


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Package]:
    path = write_package(tmp_path_factory.mktemp("exports") / "p.l3r", LONG)
    with Package(path, library=Library(build_library())) as package:
        yield package


@pytest.fixture(scope="module")
def engine(package: Package) -> Iterator[Engine]:
    with Engine(package, EngineOptions(threads=2, mtp=True)) as engine:
        yield engine


@pytest.fixture(scope="module")
def bare(package: Package) -> Iterator[Engine]:
    with Engine(package, EngineOptions(threads=1)) as engine:
        yield engine


@pytest.fixture(params=list(KvType), ids=lambda kind: kind.label)
def options(request: pytest.FixtureRequest) -> SessionOptions:
    return SessionOptions(context=128, kv_type=request.param, chunk=16, poison=True, checkpoints=4)


def ids_of(count: int, seed: int) -> list[int]:
    generator = random.Random(seed)
    return [generator.randrange(SIZE) for _ in range(count)]


def feed(session: Session, ids: Sequence[int], *, mtp: bool) -> bytes:
    """Evaluates ids, and drafts after each where the engine can; returns the logits of both, as bytes."""
    before = session.position
    hidden = array("f", bytes(4 * WIDTH * len(ids)))
    logits = array("f", bytes(4 * SIZE * len(ids)))
    session.eval(ids, mode=Logits.ALL, logits=logits, hidden=hidden)
    drafts = array("f", bytes(4 * SIZE * len(ids)))
    if mtp:
        session.mtp(hidden, ids, before, logits=drafts)
    return logits.tobytes() + drafts.tobytes()


TRUNK = ids_of(LENGTH, 1)
REST = ids_of(25, 2)


def fill(session: Session, *, mtp: bool) -> None:
    """TRUNK with a checkpoint at each of PLACES."""
    done = 0
    for slot, place in PLACES.items():
        feed(session, TRUNK[done:place], mtp=mtp)
        session.save(slot)
        done = place
    feed(session, TRUNK[done:], mtp=mtp)


def exported(session: Session) -> bytearray:
    block = bytearray(session.export_bytes)
    session.export_into(block)
    return block


def block_of(engine: Engine, options: SessionOptions, *, mtp: bool = True) -> bytearray:
    with Session(engine, options) as session:
        fill(session, mtp=mtp)
        return exported(session)


def held(session: Session) -> dict[int, int]:
    return {slot: place for slot in range(8) if (place := session.checkpoint(slot)) is not None}


def cold(engine: Engine, options: SessionOptions, ids: Sequence[int], *, mtp: bool) -> tuple[bytes, bytes]:
    with Session(engine, options) as session:
        seen = feed(session, ids, mtp=mtp)
        half = len(seen) // 2
        tail = 4 * SIZE * len(REST)
        return session.state_sha256(), seen[half - tail : half] + seen[len(seen) - tail :]


# -- there and back --


@pytest.mark.parametrize("mtp", [True, False], ids=["mtp", "trunk"])
def test_an_imported_session_goes_on_as_the_exported_one(
    mtp: bool, engine: Engine, bare: Engine, options: SessionOptions
) -> None:
    used = engine if mtp else bare
    with Session(used, options) as session:
        fill(session, mtp=mtp)
        block = exported(session)
        state = session.state_sha256()
        seen = feed(session, REST, mtp=mtp)
        after = session.state_sha256()
    assert (after, seen) == cold(used, options, TRUNK + REST, mtp=mtp)
    with Session(used, options) as fresh:
        fresh.import_from(block, LENGTH)
        assert (fresh.position, fresh.tokens(), fresh.state_sha256()) == (LENGTH, TRUNK, state)
        assert held(fresh) == PLACES
        assert exported(fresh) == block
        assert (feed(fresh, REST, mtp=mtp), fresh.state_sha256()) == (seen, after)


@pytest.mark.parametrize("mtp", [True, False], ids=["mtp", "trunk"])
def test_an_import_at_a_checkpoint_equals_a_cold_run_to_there(
    mtp: bool, engine: Engine, bare: Engine, options: SessionOptions
) -> None:
    used = engine if mtp else bare
    block = block_of(used, options, mtp=mtp)
    for place in PLACES.values():
        with Session(used, options) as session:
            feed(session, ids_of(70, 3), mtp=mtp)  # what was there before leaves no trace
            session.save(1)
            session.import_from(block, place)
            assert session.tokens() == TRUNK[:place]
            assert held(session) == {slot: at for slot, at in PLACES.items() if at <= place}
            seen = feed(session, REST, mtp=mtp)
            state, expected = cold(used, options, TRUNK[:place] + REST, mtp=mtp)
            assert session.state_sha256() == state
            assert seen == expected
            first = min(PLACES.values())
            session.restore(0)
            assert session.state_sha256() == cold(used, options, TRUNK[:first], mtp=mtp)[0]


@pytest.mark.parametrize("slots", [0, 1, 3, 9])
@pytest.mark.parametrize("context", [LENGTH, LENGTH + 1, 512])
def test_other_slots_and_contexts_take_what_fits(slots: int, context: int, engine: Engine) -> None:
    options = SessionOptions(context=128, kv_type=KvType.INT8, poison=True, checkpoints=4)
    block = block_of(engine, options)
    other = replace(options, context=context, checkpoints=slots, chunk=7)
    with Session(engine, other) as session:
        session.import_from(block, LENGTH)
        kept = {slot: place for slot, place in PLACES.items() if slot < slots}
        assert held(session) == kept
        assert session.state_sha256() == cold(engine, options, TRUNK, mtp=True)[0]
        for slot, place in reversed(kept.items()):
            session.restore(slot)
            assert session.state_sha256() == cold(engine, options, TRUNK[:place], mtp=True)[0]


def test_an_earlier_position_fits_a_context_that_the_whole_does_not(engine: Engine, options: SessionOptions) -> None:
    block = block_of(engine, options)
    with Session(engine, replace(options, context=47)) as session:
        session.import_from(block, 47)
        assert session.state_sha256() == cold(engine, options, TRUNK[:47], mtp=True)[0]


def test_every_start_of_a_buffer_will_do(engine: Engine, options: SessionOptions) -> None:
    with Session(engine, options) as session:
        fill(session, mtp=True)
        state, size = session.state_sha256(), session.export_bytes
        for shift in range(1, 9):
            room = bytearray(b"\xee" * (size + 16))
            with memoryview(room)[shift : shift + size] as view:
                session.export_into(view)
                assert room[:shift] == b"\xee" * shift
                assert room[shift + size :] == b"\xee" * (16 - shift)
                assert read_export(session.library, view).position == LENGTH
                with Session(engine, options) as fresh:
                    fresh.import_from(view, LENGTH)
                    assert fresh.state_sha256() == state


def test_an_empty_session_and_a_checkpoint_at_the_start_can_be_moved(engine: Engine, options: SessionOptions) -> None:
    with Session(engine, options) as session:
        fresh = session.state_sha256()
        empty = exported(session)
        session.save(3)
        fill(session, mtp=True)
        session.import_from(empty, 0)
        assert (session.position, held(session), session.state_sha256()) == (0, {}, fresh)
        session.save(1)
        feed(session, TRUNK, mtp=True)
        block = exported(session)
        session.import_from(block, 0)
        assert (session.position, held(session), session.state_sha256()) == (0, {1: 0}, fresh)
        assert feed(session, REST, mtp=True) == cold(engine, options, REST, mtp=True)[1]


def test_drafts_beyond_the_timeline_come_along(engine: Engine, options: SessionOptions) -> None:
    """A checkpoint may know more rows of the MTP cache than the session does after a return."""
    hidden = array("f", [0.25] * (WIDTH * 6))
    with Session(engine, options) as session, Session(engine, options) as fresh:
        feed(session, TRUNK[:20], mtp=True)
        session.save(0)
        session.mtp(hidden, TRUNK[:6], 20)
        session.save(1)
        drafted = session.state_sha256()
        session.restore(0)
        fresh.import_from(exported(session), 20)
        assert fresh.state_sha256() == session.state_sha256()
        fresh.restore(1)
        assert fresh.state_sha256() == drafted
        with pytest.raises(UsageError, match="the MTP cache holds 26 tokens"):
            fresh.mtp(hidden, [1], 27)
        before = exported(fresh)
        with Session(engine, replace(options, context=25)) as short:
            with pytest.raises(ContextFull, match="26 tokens does not fit a context of 25"):
                short.import_from(before, 20)
            assert (short.position, held(short)) == (0, {})


def test_random_walks_through_exports_end_where_a_straight_one_does(engine: Engine) -> None:
    generator = random.Random(4)
    for walk in range(8):
        kind = generator.choice(list(KvType))
        options = SessionOptions(context=200, kv_type=kind, chunk=generator.choice((1, 5, 64)), checkpoints=3)
        line: list[int] = []
        kept: dict[int, list[int]] = {}
        session = Session(engine, options)
        for step in range(20):
            slot = generator.randrange(3)
            choice = generator.random()
            if choice < 0.3:
                session.save(slot)
                kept[slot] = list(line)
            elif choice < 0.6:
                way = generator.choice([line, *kept.values()])
                block = exported(session)
                session.close()
                session = Session(engine, replace(options, context=generator.choice((190, 250)), poison=True))
                session.import_from(block, len(way))
                line = list(way)
                kept = {s: ids for s, ids in kept.items() if len(ids) <= len(line)}
            elif len(line) < 160:
                more = ids_of(generator.randrange(1, 30), 1000 * walk + step)
                feed(session, more, mtp=True)
                line += more
            assert held(session) == {s: len(ids) for s, ids in kept.items()}
        with session, Session(engine, options) as straight:
            assert session.tokens() == line
            if line:
                feed(straight, line, mtp=True)
            assert session.state_sha256() == straight.state_sha256(), f"walk {walk}"


def test_what_is_pending_around_an_import(engine: Engine, options: SessionOptions) -> None:
    """No logits stay, a forced routing ends, a cancel stays."""
    layers = LONG.layer_count - LONG.dense_layer_count
    routing = [token % 2 + 2 * rank for _ in range(layers) for token in range(128) for rank in (0, 1)]
    block = block_of(engine, options)
    with Session(engine, options) as session:
        session.force_routing(routing, 128)
        session.eval([1, 2, 3])
        session.cancel()
        session.import_from(block, LENGTH)
        with pytest.raises(InternalError, match="no logits"):
            session.logits()
        with pytest.raises(Cancelled):
            session.eval(REST)
        feed(session, REST, mtp=True)
        assert session.state_sha256() == cold(engine, options, TRUNK + REST, mtp=True)[0]


def test_an_export_changes_nothing(engine: Engine, options: SessionOptions) -> None:
    with Session(engine, options) as session:
        fill(session, mtp=True)
        session.eval([5])
        before = session.state_sha256(), session.logits().tobytes(), held(session)
        first = exported(session)
        assert (session.state_sha256(), session.logits().tobytes(), held(session)) == before
        assert exported(session) == first


def test_an_export_says_what_it_is(package: Package, engine: Engine, bare: Engine, options: SessionOptions) -> None:
    info = read_export(package.library, block_of(engine, options))
    assert (info.position, info.kv_type, info.mtp) == (LENGTH, options.kv_type, True)
    assert info.identity == package.identity()
    assert list(info.tokens) == TRUNK
    assert dict(info.checkpoints) == PLACES
    other = read_export(package.library, bytes(block_of(bare, replace(options, checkpoints=4), mtp=False)))
    assert (other.position, other.mtp) == (LENGTH, False)


def test_no_more_is_exported_than_is_used(engine: Engine) -> None:
    options = SessionOptions(context=512, kv_type=KvType.F32, checkpoints=100)
    with Session(engine, options) as session:
        empty = session.export_bytes
        feed(session, TRUNK[:10], mtp=True)
        rows = (LONG.kv_lora_rank + LONG.qk_rope_head_dim) * 4 * 10
        assert session.export_bytes == empty + 4 * 10 + (2 + 1) * rows
        session.save(99)
        states = empty - HEADER
        assert session.export_bytes == empty + 4 * 10 + (2 + 1) * rows + ENTRY + states


# -- what is refused --


@pytest.fixture
def kept(engine: Engine) -> Iterator[Session]:
    """A session whose contents have to survive every refusal."""
    with Session(engine, REFUSING) as session:
        feed(session, ids_of(33, 5), mtp=True)
        session.save(2)
        session.eval([7])
        yield session


REFUSING = SessionOptions(context=128, kv_type=KvType.BF16, checkpoints=4)


def contents(session: Session) -> tuple[object, ...]:
    return session.position, held(session), session.state_sha256(), session.logits().tobytes(), bytes(exported(session))


def refuse(session: Session, block: bytes | bytearray, position: int, words: str) -> None:
    before = contents(session)
    with pytest.raises(UsageError, match=words) as caught:
        session.import_from(block, position)
    assert caught.value.slug in {"session-export", "engine-argument"}
    assert contents(session) == before


def sealed(block: bytearray) -> bytearray:
    """With the header's digest made to fit again, so that the checks behind it are reached."""
    count = int.from_bytes(block[36:40], "little")
    table = block[HEADER : HEADER + ENTRY * count]
    block[DIGEST:HEADER] = hashlib.sha256(block[:DIGEST] + table).digest()
    return block


def test_every_changed_byte_of_the_structure_is_refused(engine: Engine, kept: Session) -> None:
    block = block_of(engine, REFUSING)
    before = contents(kept)
    for place in range(HEADER + ENTRY * len(PLACES)):
        for flip in (0x01, 0x80):
            block[place] ^= flip
            with pytest.raises(UsageError):
                kept.import_from(block, LENGTH)
            with pytest.raises(UsageError):
                read_export(kept.library, block)
            block[place] ^= flip
    assert contents(kept) == before
    kept.import_from(block, LENGTH)


def test_every_changed_number_behind_a_fitting_digest_is_refused(engine: Engine, kept: Session) -> None:
    """Positions of checkpoints and of the MTP cache could be others; everything else is known or makes the length."""
    block = block_of(engine, REFUSING)
    free = {28, 32} | {HEADER + ENTRY * entry + part for entry in range(3) for part in (0, 4, 8)}
    for place in range(0, HEADER + ENTRY * len(PLACES), 4):
        if place in free or DIGEST <= place < HEADER:
            continue
        word = int.from_bytes(block[place : place + 4], "little")
        for other in {word ^ 1, word ^ 1 << 31, (word + 1) % 2**32, (word - 1) % 2**32, 2**32 - 1} - {word}:
            wrong = bytearray(block)
            wrong[place : place + 4] = other.to_bytes(4, "little")
            before = kept.state_sha256()
            with pytest.raises(UsageError):
                kept.import_from(sealed(wrong), LENGTH)
            assert kept.state_sha256() == before, place


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        (0, 0, "its magic"),
        (8, 2, "version 2; this engine reads version 1"),
        (12, 191, "header length is 191; 192 is expected"),
        (16, 10**6, "its header says 1000000 .truncated"),
        (16, 10, "its header says 10 .something was appended"),
        (24, 61, "its parts do not make"),
        (24, 2**32 - 1, "its parts do not make"),
        (32, 61, "its parts do not make"),
        (36, 1025, "1025 checkpoints are not possible"),
        (40, 5, "cache type 5"),
        (40, 0, "has a cache in f32; this session has one in bf16"),
        (44, 0, "do not make"),
        (48, 2**32 - 1, "do not make"),
        (52, 2, "MTP 2"),
        (52, 0, "rows of an MTP cache that it does not have"),
        (60, 2**31, "do not make"),  # the upper half of a 64-bit count
        (64, 2**32 - 1, "do not make"),
        (72, 0, r"of another package \(00000000\.\.\.\) than this one"),
        (104, 0x31676E61, "is of engine 'ang1"),
        (HEADER + 4, LENGTH + 1, "checkpoint 0 at position 61 is not possible"),
        (HEADER, 3, "checkpoint 2 at position"),
        (HEADER + 32, 1024, "checkpoint 1024"),
        (HEADER + 8, 61, "60 rows of the MTP cache are there, 61 are needed"),
        (HEADER + 12, 1, "checkpoint 0 at position 11 is not possible"),
    ],
)
def test_what_is_wrong_behind_a_fitting_digest_is_named(
    place: int, value: int, words: str, engine: Engine, kept: Session
) -> None:
    block = block_of(engine, REFUSING)
    block[place : place + 4] = value.to_bytes(4, "little")
    refuse(kept, sealed(block), LENGTH, words)


def test_every_cut_and_every_addition_is_refused(engine: Engine, kept: Session) -> None:
    block = bytes(block_of(engine, REFUSING))
    before = contents(kept)
    for length in [*range(HEADER + 60), *range(HEADER + 60, len(block), 97), len(block) - 1]:
        with pytest.raises(UsageError, match="session"):
            kept.import_from(block[:length], LENGTH)
        if length > 16:
            with pytest.raises(UsageError):  # a header that agrees with the cut
                kept.import_from(
                    sealed(bytearray(block[:16] + length.to_bytes(8, "little") + block[24:length])), LENGTH
                )
    for more in (b"\0", b"\0" * 8, block):
        with pytest.raises(UsageError, match="something was appended"):
            kept.import_from(block + more, LENGTH)
    assert contents(kept) == before


@pytest.mark.parametrize("bad", [-1, -(2**31), SIZE, 2**31 - 1])
@pytest.mark.parametrize("place", [0, 17, LENGTH - 1])
def test_ids_out_of_range_are_refused(bad: int, place: int, engine: Engine, kept: Session) -> None:
    block = block_of(engine, REFUSING)
    at = HEADER + ENTRY * len(PLACES) + 4 * place
    block[at : at + 4] = bad.to_bytes(4, "little", signed=True)
    refuse(kept, block, LENGTH, rf"token {place} is {bad}; ids are 0 to {SIZE - 1}")
    if place >= min(PLACES.values()):
        refuse(kept, block, min(PLACES.values()), f"token {place}")


@pytest.mark.parametrize("position", [1, 10, 12, LENGTH - 1, LENGTH + 1, 2**32 - 1])
def test_positions_that_were_never_kept_are_refused(position: int, engine: Engine, kept: Session) -> None:
    words = rf"position {position} is neither the exported session's own \({LENGTH}\) nor that of a checkpoint"
    refuse(kept, block_of(engine, REFUSING), position, words)


def test_another_package_is_refused(kept: Session, tmp_path: Path) -> None:
    for number, (config, seed) in enumerate(((LONG, 2), (replace(LONG, rope_theta=9999.0), 1))):
        path = write_package(tmp_path / f"{number}.l3r", config, seed=seed)
        with (
            Package(path, library=kept.library) as package,
            Engine(package, EngineOptions(threads=1, mtp=True)) as engine,
        ):
            refuse(kept, block_of(engine, REFUSING), LENGTH, "is of another package")


def test_the_same_package_in_another_file_is_accepted(engine: Engine, kept: Session, tmp_path: Path) -> None:
    """The order in which tensors are found is that of the file; where they lie and who reads them is not asked."""
    path = tmp_path / "inside"
    data = write_package(tmp_path / "p.l3r", LONG).read_bytes()
    path.write_bytes(bytes(1 << 16) + data)
    with (
        Package(path, window=(1 << 16, len(data)), library=kept.library) as package,
        Engine(package, EngineOptions(threads=1, mtp=True, simd="scalar")) as other,
    ):
        assert package.identity() == engine.package.identity()
        kept.import_from(block_of(other, REFUSING), LENGTH)
        assert kept.state_sha256() == cold(engine, REFUSING, TRUNK, mtp=True)[0]


def test_identities_follow_what_is_computed_and_nothing_else(package: Package, tmp_path: Path) -> None:
    def identity(name: str, **changes: object) -> bytes:
        path = write_package(tmp_path / f"{name}.l3r", replace(LONG, **changes))
        with Package(path, library=package.library) as other:
            return other.identity()

    assert identity("same") == package.identity()
    assert len({package.identity(), identity("eps", rms_eps=1e-5), identity("scale", routed_scaling=2.0)}) == 3


def test_another_cache_type_is_refused(engine: Engine, options: SessionOptions) -> None:
    block = block_of(engine, options)
    for kind in set(KvType) - {options.kv_type}:
        with Session(engine, replace(options, kv_type=kind)) as session:
            session.eval([1])
            words = f"has a cache in {options.kv_type.label}; this session has one in {kind.label}"
            refuse(session, block, LENGTH, words)


def test_sessions_with_and_without_mtp_do_not_mix(engine: Engine, bare: Engine) -> None:
    with Session(engine, REFUSING) as with_mtp, Session(bare, REFUSING) as without:
        with_mtp.eval([1])
        without.eval([1])
        refuse(without, block_of(engine, REFUSING), LENGTH, "has an MTP cache; this session has none")
        refuse(with_mtp, block_of(bare, REFUSING, mtp=False), LENGTH, "has no MTP cache; this session has one")


def test_a_context_that_is_too_small_is_refused(engine: Engine) -> None:
    block = block_of(engine, REFUSING)
    with Session(engine, replace(REFUSING, context=LENGTH - 1)) as session:
        session.eval([1])
        before = contents(session)
        with pytest.raises(ContextFull, match=f"{LENGTH} tokens does not fit a context of {LENGTH - 1}"):
            session.import_from(block, LENGTH)
        assert contents(session) == before
        session.import_from(block, 47)


def test_buffers_of_another_size_or_kind_are_refused(kept: Session) -> None:
    before = contents(kept)
    size = kept.export_bytes
    for length in (0, size - 1, size + 1):
        room = bytearray(b"\xee" * length)
        with pytest.raises(UsageError, match=f"a buffer of {length} bytes for an export of {size}"):
            kept.export_into(room)
        assert room == b"\xee" * length
    with pytest.raises(InternalError):
        kept.export_into(bytes(size))
    with pytest.raises(InternalError):
        kept.import_from("text", 0)
    with pytest.raises(InternalError):
        kept.import_from(memoryview(bytearray(2 * size))[::2], 0)
    assert contents(kept) == before


def test_missing_arguments_are_refused(kept: Session) -> None:
    functions, error = kept.library.functions, None
    block = bytes(exported(kept))
    assert functions.l3_session_export_bytes(None) == 0
    assert functions.l3_session_export(None, None, 0, error) == 1
    assert functions.l3_session_export(kept.address, None, kept.export_bytes, error) == 1
    assert functions.l3_session_import(None, block, len(block), 34, error) == 1
    assert functions.l3_session_import(kept.address, None, len(block), 34, error) == 1
    assert functions.l3_export_read(None, 0, None, error) == 1
    assert functions.l3_export_read(block, len(block), None, error) == 1
    assert functions.l3_export_checkpoint(None, 500, 0) == 2**32 - 1
    assert functions.l3_export_checkpoint(block, len(block), 2) == 33
    assert functions.l3_export_checkpoint(block, len(block), 1) == 2**32 - 1
    assert functions.l3_export_checkpoint(block, len(block) - 1, 2) == 2**32 - 1
    assert functions.l3_package_identity(None, (ctypes.c_uint8 * 32)(), error) == 1
