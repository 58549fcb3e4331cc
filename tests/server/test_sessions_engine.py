"""A reply of the real engine that depends on what was evaluated before: each equals a cold run, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from launcher.engine import Engine, Package, Session
from launcher.engine_types import EngineOptions, KvType, SessionOptions
from launcher.errors import MindnanoError
from launcher.server.events import CacheSource
from launcher.server.request import MarkKind
from launcher.server.session_facts import Begun
from launcher.server.session_files import SessionFiles
from launcher.server.session_format import Origin
from launcher.server.sessions import SessionStore
from tests.support.demo import require_demo

SYSTEM = "<role>SYSTEM</role>You answer briefly.\ndetailed thinking on<|role_end|>"
PLENTY = 1 << 30


class Board:
    """An engine with one session for the store and one that always runs cold."""

    def __init__(self, stack: ExitStack, kv_type: KvType) -> None:
        self.package = stack.enter_context(Package(require_demo()))
        engine = stack.enter_context(Engine(self.package, EngineOptions(threads=1)))
        options = SessionOptions(context=512, kv_type=kv_type, checkpoints=4)
        self.session = stack.enter_context(Session(engine, options))
        self._cold = stack.enter_context(Session(engine, options))
        self.system = self.package.tokenize(SYSTEM)

    def prompt(self, *texts: str) -> list[int]:
        turns = "".join(f"<role>HUMAN</role>{text}<|role_end|>" for text in texts)
        return [*self.system, *self.package.tokenize(turns + "<role>ASSISTANT</role>\n<think>")]

    def cold(self, ids: Sequence[int]) -> tuple[bytes, bytes]:
        """State and logits of a session that never saw anything else."""
        self._cold.reset()
        self._cold.eval(ids)
        return self._cold.state_sha256(), self._cold.logits().tobytes()

    def ask(
        self, store: SessionStore, ids: Sequence[int], *, name: str | None, owner: str = "", reply: int = 6
    ) -> tuple[Begun, list[int]]:
        """A request with greedy tokens; compares with a cold run after the prompt and at the end."""
        begun = store.begin(owner=owner, name=name, ids=ids)
        assert self.session.tokens() == list(ids[: begun.reused])
        for place, kind in ((len(self.system), MarkKind.SYSTEM), (len(ids) - 3, MarkKind.TURN)):
            if self.session.position < place:
                self.session.eval(ids[self.session.position : place])
                store.keep(kind)
        self.session.eval(ids[self.session.position :])
        assert (self.session.state_sha256(), self.session.logits().tobytes()) == self.cold(ids)
        said: list[int] = []
        for _ in range(reply):
            logits = self.session.logits()
            said.append(max(range(self.package.config.token_count), key=logits.__getitem__))
            self.session.eval(said[-1:])
        assert (self.session.state_sha256(), self.session.logits().tobytes()) == self.cold([*ids, *said])
        store.end()
        return begun, said


@pytest.fixture(params=[KvType.BF16, KvType.INT8], ids=lambda kind: kind.label)
def board(request: pytest.FixtureRequest) -> Iterator[Board]:
    with ExitStack() as stack:
        yield Board(stack, request.param)


def test_sessions_that_alternate_answer_as_if_alone(board: Board) -> None:
    store = SessionStore(board.session, budget=PLENTY)
    first, other = board.prompt("Who are you?"), board.prompt("List 3 animals.")
    _, said = board.ask(store, first, name="a")
    begun, _ = board.ask(store, other, name="b")
    assert begun == Begun(reused=len(board.system), source=CacheSource.LIVE)
    begun, _ = board.ask(store, [*first, *said, *first[-4:]], name="a")
    assert begun == Begun(reused=len(first) + len(said), source=CacheSource.RAM)
    begun, _ = board.ask(store, other, name="b")
    assert begun.reused == len(other) - 3
    store.close()


def test_a_reply_left_out_of_the_next_prompt_costs_one_turn_at_most(board: Board) -> None:
    store = SessionStore(board.session, budget=PLENTY)
    first = board.prompt("Who are you?")
    board.ask(store, first, name="a")
    second = [*first[:-3], *board.prompt("And you?", "Really?")[len(board.system) :]]
    begun, _ = board.ask(store, second, name="a")
    assert begun == Begun(reused=len(first) - 3, source=CacheSource.LIVE)


def test_a_saved_session_answers_as_if_it_had_never_been_away(board: Board, tmp_path: Path) -> None:
    reports: list[MindnanoError] = []
    origin = Origin(identity=board.package.identity(), template_sha256=bytes(32), kv="x", engine="y")

    def start() -> SessionStore:
        board.session.reset()
        files = SessionFiles(tmp_path / "s", limit_bytes=PLENTY, origin=origin, report=reports.append)
        return SessionStore(board.session, budget=PLENTY, files=files)

    store = start()
    first = board.prompt("Who are you?")
    _, said = board.ask(store, first, name="a")
    board.ask(store, board.prompt("List 3 animals."), name="b")
    store.close()
    store = start()
    saved = {info.name: info.tokens for info in store.listing("")}
    longer = [*first, *said, *first[-4:]]
    begun, _ = board.ask(store, longer, name="a")
    assert begun == Begun(reused=saved["a"], source=CacheSource.DISK)
    begun, _ = board.ask(store, board.prompt("List 3 animals."), name="b")
    assert begun.source is CacheSource.DISK
    store.close()
    assert reports == []


def test_any_order_of_requests_with_little_memory_gives_what_cold_runs_give(board: Board) -> None:
    board.session.eval(board.prompt("Who are you?"))
    store = SessionStore(board.session, budget=3 * board.session.export_bytes)
    board.session.reset()
    chance = random.Random(5)
    histories: dict[tuple[str, str | None], list[str]] = {}
    sources = set()
    for _ in range(40):
        who = chance.choice(("x", "y")), chance.choice((None, "a", "b"))
        texts = histories.setdefault(who, [])
        if len(texts) > 3 or chance.random() < 0.2:
            del texts[chance.randrange(len(texts) + 1) :]
        texts.append(chance.choice(("Who are you?", "Count to 3.", "你好")))
        begun, _ = board.ask(store, board.prompt(*texts), owner=who[0], name=who[1], reply=2)
        sources.add(begun.source)
        assert store.usage().bytes <= store.usage().budget
    assert {CacheSource.LIVE, CacheSource.RAM} <= sources
    assert store.usage().evictions
    store.close()


def test_an_export_of_another_kind_of_cache_is_refused_and_runs_cold(board: Board, tmp_path: Path) -> None:
    origin = Origin(identity=bytes(32), template_sha256=bytes(32), kv="unsaid", engine="y")
    files = SessionFiles(tmp_path / "s", limit_bytes=PLENTY, origin=origin, report=lambda error: None)
    store = SessionStore(board.session, budget=PLENTY, files=files)
    ids = board.prompt("Who are you?")
    board.ask(store, ids, name="a")
    store.close()
    with ExitStack() as stack:
        other = Board(stack, KvType.F16)
        files = SessionFiles(tmp_path / "s", limit_bytes=PLENTY, origin=origin, report=lambda error: None)
        store = SessionStore(other.session, budget=PLENTY, files=files)
        begun, _ = other.ask(store, ids, name="a")
        assert begun == Begun(reused=0, source=CacheSource.NONE)
        store.close()
