"""Sessions do what ling3.h promises beyond their numbers: limits, cancelling, rewinding, sharing."""

from __future__ import annotations

import ctypes
import hashlib
import subprocess
import sys
import threading
from array import array
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

from engine.build import build_library
from launcher import engine_abi as abi
from launcher.engine import Engine, Package, Session
from launcher.engine_library import Library
from launcher.engine_types import EngineOptions, Logits, SessionOptions
from launcher.errors import Cancelled, ContextFull, InternalError, PackageError, UsageError
from tests.support.packages import INTEGER, write_package

LONG = replace(INTEGER, max_context=8192, max_position=4096)
IDS = [(7 * i * i + i) % INTEGER.vocab_size for i in range(8192)]


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(build_library())


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(tmp_path_factory.mktemp("session") / "long.l3r", LONG)


@pytest.fixture(scope="module")
def package(path: Path, library: Library) -> Iterator[Package]:
    with Package(path, library=library) as package:
        yield package


@pytest.fixture(scope="module")
def engine(package: Package) -> Iterator[Engine]:
    with Engine(package, EngineOptions(threads=2, mtp=True)) as engine:
        yield engine


@pytest.fixture
def session(engine: Engine) -> Iterator[Session]:
    with Session(engine, SessionOptions(context=64)) as session:
        yield session


def floats(count: int) -> array[float]:
    return array("f", bytes(4 * count))


def outcome(session: Session, ids: Sequence[int]) -> tuple[bytes, bytes]:
    """Digest of the state and the logits after consuming ids; equal where every bit is."""
    session.eval(ids)
    return session.state_sha256(), session.logits().tobytes()


def alone(engine: Engine, ids: Sequence[int], options: SessionOptions) -> tuple[bytes, bytes]:
    with Session(engine, options) as session:
        return outcome(session, ids)


# -- limits --


def test_a_full_context_is_refused_and_nothing_is_consumed(session: Session) -> None:
    expected = alone(session.engine, IDS[:64], SessionOptions(context=64))
    session.eval(IDS[:60])
    before = session.state_sha256(), session.logits()
    with pytest.raises(ContextFull, match="5 more tokens do not fit: 60 of 64 are used"):
        session.eval(IDS[60:65])
    assert session.position == 60
    assert (session.state_sha256(), session.logits()) == before
    assert outcome(session, IDS[60:64]) == expected
    with pytest.raises(ContextFull, match="1 more tokens do not fit: 64 of 64"):
        session.eval([0])
    assert session.tokens() == IDS[:64]


@pytest.mark.parametrize("bad", [-1, -(2**31), INTEGER.vocab_size, 2**31 - 1])
def test_ids_out_of_range_are_refused_before_anything_happens(bad: int, session: Session) -> None:
    session.eval(IDS[:3])
    before = session.state_sha256(), session.logits()
    with pytest.raises(UsageError, match=rf"token 2 is {bad}; ids are 0 to {INTEGER.vocab_size - 1}"):
        session.eval([1, 2, bad])
    assert (session.position, session.state_sha256(), session.logits()) == (3, *before)
    hidden = floats(LONG.hidden_size)
    with pytest.raises(UsageError, match=rf"token 0 is {bad}"):
        session.mtp(hidden, [bad], 0)
    session.eval([0, INTEGER.vocab_size - 1])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (SessionOptions(context=0), "context 0; 1 to 8192 tokens are possible"),
        (SessionOptions(context=8193), "context 8193; 1 to 8192 tokens"),
        (SessionOptions(context=2**32 - 1), "context 4294967295; 1 to 8192 tokens"),
        (SessionOptions(context=8, chunk=4097), "chunk 4097; at most 4096"),
    ],
)
def test_session_options_out_of_range_are_named(
    options: SessionOptions, expected: str, package: Package, engine: Engine
) -> None:
    with pytest.raises(UsageError, match=expected):
        package.plan(EngineOptions(threads=1), options)
    with pytest.raises(UsageError, match=expected):
        Session(engine, options)


def test_engine_options_out_of_range_are_named(package: Package, library: Library, tmp_path: Path) -> None:
    for threads in (257, 2**32 - 1):
        options = EngineOptions(threads=threads)
        with pytest.raises(UsageError, match=f"{threads} threads asked for; 1 to 256 are possible"):
            Engine(package, options)
        with pytest.raises(UsageError, match=f"{threads} threads asked for"):
            package.plan(options, SessionOptions(context=8))
    available = " ".join(library.simd_available)
    with pytest.raises(UsageError, match=f"kernel set 'mmx' is not available here; this CPU can run: {available}"):
        Engine(package, EngineOptions(simd="mmx"))
    with pytest.raises(UsageError, match="not terminated"):
        Engine(package, EngineOptions(simd="x" * 16))
    with Package(write_package(tmp_path / "trunk.l3r", mtp=False), library=library) as trunk:
        assert not trunk.has_mtp
        with pytest.raises(PackageError, match="MTP is asked for, but the package holds no MTP layer"):
            Engine(trunk, EngineOptions(mtp=True))
        with pytest.raises(PackageError, match="MTP is asked for"):
            trunk.plan(EngineOptions(mtp=True), SessionOptions(context=8))


def test_missing_arguments_are_refused_and_results_cleared(package: Package, engine: Engine) -> None:
    functions, error = package.library.functions, abi.CError()
    options, wrong = SessionOptions(context=8).struct(), abi.CSampling(temperature=-1.0)
    unknown = abi.CSessionOptions(context=8, kv_type=5)
    settings = EngineOptions(threads=999).struct()
    for call in (
        lambda out: functions.l3_package_open(None, out, error),
        lambda out: functions.l3_package_open(b"/nowhere", out, error),
        lambda out: functions.l3_engine_create(None, settings, out, error),
        lambda out: functions.l3_engine_create(package.address, settings, out, error),
        lambda out: functions.l3_session_create(None, options, out, error),
        lambda out: functions.l3_session_create(engine.address, None, out, error),
        lambda out: functions.l3_session_create(engine.address, unknown, out, error),
        lambda out: functions.l3_sampler_create(None, wrong, out, error),
        lambda out: functions.l3_sampler_create(package.address, wrong, out, error),
    ):
        pointer = ctypes.c_void_p(0x1000)
        status = call(ctypes.byref(pointer))
        assert status == error.status != 0
        assert error.message
        assert pointer.value is None
        assert call(None) != 0
    assert functions.l3_plan(package.address, settings, None, None, None) == 1


def test_evaluating_nothing_or_into_nothing_is_refused(session: Session) -> None:
    for call in (
        lambda: session.eval([]),
        lambda: session.eval([1], mode=Logits.ALL),
        lambda: session.mtp(floats(LONG.hidden_size), [], 0),
        lambda: session.mtp(None, [1], 0),
    ):
        with pytest.raises(UsageError):
            call()
    assert session.position == 0


def test_logits_exist_only_after_they_were_asked_for(session: Session) -> None:
    for prepare in (lambda: None, lambda: session.eval([1], mode=Logits.NONE), session.reset):
        prepare()
        with pytest.raises(InternalError, match="no logits"):
            session.logits()
    session.eval([1, 2])
    assert len(session.logits()) == LONG.vocab_size
    everything = floats(2 * LONG.vocab_size)
    session.eval([3, 4], mode=Logits.ALL, logits=everything)
    assert session.logits() == everything[LONG.vocab_size :]
    session.eval([5], mode=Logits.NONE)
    with pytest.raises(InternalError, match="no logits"):
        session.logits()


def test_nothing_is_destroyed_twice(package: Package, library: Library) -> None:
    for name in ("l3_session_destroy", "l3_engine_destroy", "l3_package_close", "l3_sampler_destroy"):
        getattr(library.functions, name)(None)
    engine = Engine(package, EngineOptions(threads=2))
    session = Session(engine, SessionOptions(context=8))
    engine.close()  # takes its sessions with it
    session.close()
    engine.close()
    with pytest.raises(InternalError, match="Session is closed"):
        session.eval([1])


def test_resetting_gives_a_new_timeline(session: Session) -> None:
    fresh = session.state_sha256()
    expected = alone(session.engine, IDS[:20], SessionOptions(context=64))
    session.eval(IDS[40:90])
    session.cancel()
    session.reset()
    assert (session.position, session.tokens(), session.state_sha256()) == (0, [], fresh)
    assert outcome(session, IDS[:20]) == expected


# -- the MTP cache --


def test_the_mtp_cache_grows_without_gaps_and_rewinds(session: Session, package: Package) -> None:
    width = LONG.hidden_size
    hidden, logits, again = floats(10 * width), floats(10 * LONG.vocab_size), floats(10 * LONG.vocab_size)
    session.eval(IDS[:10], hidden=hidden)
    with pytest.raises(UsageError, match="position 1 leaves a gap: the MTP cache holds 0 tokens"):
        session.mtp(hidden, IDS[1:3], 1)
    session.mtp(hidden, IDS[1:11], 0, logits=logits)
    with pytest.raises(UsageError, match="position 11 leaves a gap: the MTP cache holds 10 tokens"):
        session.mtp(hidden, IDS[1:2], 11)
    state = session.state_sha256()
    session.mtp(hidden, [5, 6, 7], 4)  # a draft that comes to nothing
    assert session.state_sha256() != state
    with pytest.raises(UsageError, match="position 8 leaves a gap: the MTP cache holds 7 tokens"):
        session.mtp(hidden, IDS[1:2], 8)
    session.mtp(hidden[4 * width :], IDS[5:11], 4, logits=again)
    assert session.state_sha256() == state
    assert again[: 6 * LONG.vocab_size] == logits[4 * LONG.vocab_size :]
    with pytest.raises(ContextFull, match="55 more tokens do not fit: 10 of 64"):
        session.mtp(floats(55 * width), [1] * 55, 10)
    assert session.position == 10


def test_engines_without_mtp_draft_nothing(package: Package) -> None:
    hidden = floats(LONG.hidden_size)
    with Engine(package, EngineOptions(threads=1)) as engine, Session(engine, SessionOptions(context=8)) as session:
        session.eval([1], hidden=hidden)
        with pytest.raises(UsageError, match="without the MTP layer"):
            session.mtp(hidden, [1], 0)


# -- cancelling --


def test_a_cancel_before_evaluating_stops_the_next_evaluation_only(session: Session) -> None:
    expected = alone(session.engine, IDS[:20], SessionOptions(context=64))
    session.cancel()
    with pytest.raises(Cancelled, match="cancelled after 0 of 20 tokens"):
        session.eval(IDS[:20])
    assert session.position == 0
    assert outcome(session, IDS[:20]) == expected


def test_a_cancel_from_another_thread_leaves_a_state_that_goes_on(package: Package) -> None:
    options = SessionOptions(context=2048, chunk=1)
    ids = IDS[:1500]
    with Engine(package, EngineOptions(threads=1)) as engine, Session(engine, options) as session:
        stop = threading.Thread(target=cancel_on_the_way, args=(session, 25))
        stop.start()
        with pytest.raises(Cancelled) as raised:
            session.eval(ids)
        stop.join()
        consumed = session.position
        assert 25 <= consumed < len(ids)
        assert f"cancelled after {consumed} of 1500 tokens" in str(raised.value)
        assert session.tokens() == ids[:consumed]
        with pytest.raises(InternalError, match="no logits"):
            session.logits()
        with Session(engine, options) as other:
            other.eval(ids[:consumed])
            assert session.state_sha256() == other.state_sha256()
        assert outcome(session, ids[consumed:]) == alone(engine, ids, options)


def cancel_on_the_way(session: Session, position: int) -> None:
    while session.position < position:
        pass
    session.cancel()


# -- sharing --


@pytest.mark.parametrize("simd", ["scalar", ""])
def test_thread_counts_change_no_bit(simd: str, package: Package) -> None:
    results = set()
    for threads in (1, 2, 3, 4):
        with Engine(package, EngineOptions(threads=threads, simd=simd)) as engine:
            assert engine.threads == threads
            results.add(alone(engine, IDS[:90], SessionOptions(context=128, chunk=16)))
            with Session(engine, SessionOptions(context=128)) as session:
                for token in IDS[:89]:
                    session.eval([token], mode=Logits.NONE)
                results.add(outcome(session, IDS[89:90]))
    assert len(results) == 1


def test_sessions_of_one_engine_do_not_disturb_each_other(engine: Engine) -> None:
    options = SessionOptions(context=128, chunk=8, poison=True)
    prompts = [IDS[:100], IDS[200:300]]
    expected = [alone(engine, ids, options) for ids in prompts]
    with Session(engine, options) as first, Session(engine, options) as second:
        for start in range(0, 99, 11):
            first.eval(prompts[0][start : start + 11], mode=Logits.NONE)
            second.eval(prompts[1][start : start + 11], mode=Logits.NONE)
        assert [outcome(first, prompts[0][99:]), outcome(second, prompts[1][99:])] == expected


def test_threads_may_use_sessions_of_one_engine_at_the_same_time(engine: Engine) -> None:
    options = SessionOptions(context=2048, chunk=4)
    prompts = [IDS[i * 1000 : i * 1000 + 1200] for i in range(3)]
    expected = [alone(engine, ids, options) for ids in prompts]
    found: list[tuple[bytes, bytes] | None] = [None] * len(prompts)

    def work(index: int) -> None:
        found[index] = alone(engine, prompts[index], options)

    threads = [threading.Thread(target=work, args=(index,)) for index in range(len(prompts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == expected


PROGRAM = """
import hashlib, sys
from pathlib import Path
from launcher.engine import Engine, Package, Session
from launcher.engine_library import Library
from launcher.engine_types import EngineOptions, SessionOptions
package = Package(Path(sys.argv[1]), library=Library(Path(sys.argv[2])))
session = Session(Engine(package, EngineOptions(threads=1)), SessionOptions(context=128))
session.eval([int(word) for word in sys.argv[3].split(",")])
print(hashlib.sha256(session.state_sha256() + session.logits().tobytes()).hexdigest())
"""


def test_engines_and_processes_share_a_package(path: Path, package: Package, library: Library) -> None:
    ids = IDS[:50]
    words = [sys.executable, "-c", PROGRAM, str(path), str(library.path), ",".join(map(str, ids))]
    root = Path(__file__).parents[2]
    with ExitStack() as stack:
        again = stack.enter_context(Package(path, library=library))
        engines = [stack.enter_context(Engine(p, EngineOptions(threads=1))) for p in (package, package, again)]
        sessions = [stack.enter_context(Session(engine, SessionOptions(context=128))) for engine in engines]
        other = subprocess.run(words, cwd=root, capture_output=True, text=True, check=False)
        results = {hashlib.sha256(b"".join(outcome(session, ids))).hexdigest() for session in sessions}
    assert other.returncode == 0, other.stderr
    assert results == {other.stdout.strip()}


def test_read_bandwidth_is_measured_over_at_least_one_mebibyte(engine: Engine) -> None:
    assert engine.read_bandwidth(4 << 20) > 0
    with pytest.raises(UsageError, match="at least 1 MiB"):
        engine.read_bandwidth((1 << 20) - 1)
