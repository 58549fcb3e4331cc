"""An answer that depends on what was evaluated before it: every reuse of a session equals a cold run, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import islice

import pytest

from launcher.conversation import Conversation, Ports
from launcher.engine import Engine, Package, Session
from launcher.engine_sampling import Sampler, Utf8Stream
from launcher.engine_types import EngineOptions, KvType, Sampling, Section, SessionOptions
from launcher.generate import StopReason
from launcher.template import ChatTemplate
from tests.support.demo import require_demo
from tests.support.fake_engine import FakeSession, FakeText, fake_ports

DROPPING = (
    "<role>SYSTEM</role>{{ messages[0].content if messages[0].role == 'system' }} thinking "
    "{{ 'on' if enable_thinking else 'off' }}<|role_end|>"
    "{% for m in messages if m.role != 'system' %}<role>{{ m.role }}</role>{{ m.content }}<|role_end|>{% endfor %}"
    "{% if add_generation_prompt %}<role>A</role><think>{{ '' if enable_thinking else '</think>' }}{% endif %}"
)
"""Leaves the thinking of earlier turns out, as many templates do."""

LONG = "You answer briefly and politely. " * 3


def ask(conversation: Conversation, question: str) -> str:
    return "".join(piece.text for piece in conversation.ask(question))


# -- with stand-ins: how much is reused --


def fake(session: FakeSession, replies: list[str], **settings: object) -> Conversation:
    ports = fake_ports(session, replies)
    return Conversation(ports, ChatTemplate(DROPPING, special_tokens={}), **settings)  # type: ignore[arg-type]


def shown(session: FakeSession) -> str:
    text = FakeText()
    return b"".join(text.token_bytes(token) for token in session.timeline).decode()


def test_dropped_thinking_goes_back_to_the_end_of_the_question() -> None:
    session = FakeSession(checkpoints=4)
    conversation = fake(session, ["hm</think>yes", "hm</think>no"])
    ask(conversation, "first")
    ask(conversation, "second")
    kept = shown(session)[: conversation.stats.reused]
    assert session.resets == 0
    assert session.restores == 1
    assert "hm</think>yes" not in shown(session)
    # tokens of the stand-in are bytes or whole special tokens, so the count is not that of characters
    text = FakeText()
    prefix = b"".join(text.token_bytes(token) for token in session.timeline[: conversation.stats.reused]).decode()
    assert prefix.endswith("first<|role_end|>"), kept


def test_switching_thinking_keeps_the_system_text() -> None:
    session = FakeSession(checkpoints=4)
    conversation = fake(session, ["hm</think>yes", "no"], system=LONG)
    ask(conversation, "first")
    conversation.thinking = False
    ask(conversation, "second")
    assert session.resets == 0
    assert conversation.stats.reused >= len(LONG)
    assert f"{LONG} thinking off<|role_end|>" in shown(session)


def test_a_new_conversation_keeps_the_system_text_and_nothing_else() -> None:
    session = FakeSession(checkpoints=4)
    conversation = fake(session, ["hm</think>yes", "hm</think>no"], system=LONG)
    ask(conversation, "secret")
    conversation.reset()
    assert "secret" not in shown(session)
    assert "yes" not in shown(session)
    ask(conversation, "second")
    assert conversation.stats.reused >= len(LONG)
    assert session.resets == 0


def test_the_same_question_after_a_cancel_costs_only_the_generation_prompt() -> None:
    session = FakeSession(checkpoints=4)
    conversation = fake(session, ["never", "yes"], thinking=False)
    question = "x" * 3000

    def interrupt(ids: object) -> None:
        if session.position > 3000:
            conversation.cancel()

    session.before_eval = interrupt
    assert ask(conversation, question) == ""
    assert conversation.stats.reason is StopReason.CANCELLED
    session.before_eval = lambda ids: None
    ask(conversation, question)
    assert conversation.stats.prompt - conversation.stats.reused < 20


def test_no_slots_no_saves() -> None:
    session = FakeSession()
    conversation = fake(session, ["hm</think>yes", "hm</think>no"])
    ask(conversation, "first")
    ask(conversation, "second")
    assert session.resets == 1
    assert conversation.stats.reused == 0


# -- with the engine: the same as cold --


class Bench:
    """The built-in model behind two conversations: one with checkpoints, one whose session starts again every time."""

    def __init__(self, stack: ExitStack, source: str | None, slots: int) -> None:
        package = stack.enter_context(Package(require_demo()))
        engine = stack.enter_context(Engine(package, EngineOptions(threads=1)))
        template = source or (package.section(Section.CHAT_TEMPLATE) or b"").decode()
        self.sessions: list[Session] = []
        self.conversations: list[Conversation] = []
        for count in (slots, 0):
            options = SessionOptions(context=1024, kv_type=KvType.BF16, checkpoints=count, poison=True)
            session = stack.enter_context(Session(engine, options))
            sampler = stack.enter_context(Sampler(package, Sampling()))
            ports = Ports(
                text=package,
                session=session,
                new_stream=lambda: Utf8Stream(package.library),
                new_sampler=_bound(sampler, session),
                stop_ids=frozenset(package.config.stop_ids),
            )
            self.sessions.append(session)
            self.conversations.append(
                Conversation(ports, ChatTemplate(template, special_tokens={}), system=LONG, max_tokens=40)
            )

    def think(self, on: bool) -> None:
        for conversation in self.conversations:
            conversation.thinking = on

    def reset(self) -> None:
        for conversation in self.conversations:
            conversation.reset()

    def ask(self, question: str, pieces: int | None = None) -> int:
        """Asks both; cancels after so many pieces. Returns how many tokens the first one reused."""
        said = []
        self.sessions[1].reset()
        for conversation in self.conversations:
            reply = conversation.ask(question)
            seen = [piece.text for piece in islice(reply, pieces)]
            if pieces is not None:
                conversation.cancel()
                seen += [piece.text for piece in reply]
            said.append("".join(seen))
        assert said[0] == said[1]
        assert self.sessions[0].tokens() == self.sessions[1].tokens()
        assert self.sessions[0].state_sha256() == self.sessions[1].state_sha256()
        assert self.conversations[0].messages == self.conversations[1].messages
        assert self.conversations[1].stats.reused == 0
        return self.conversations[0].stats.reused


def _bound(sampler: Sampler, session: Session) -> Callable[[], Callable[[], int]]:
    return lambda: lambda: sampler.sample(session)


@pytest.fixture(params=[None, DROPPING], ids=["its own template", "one that drops thinking"])
def source(request: pytest.FixtureRequest) -> str | None:
    found: str | None = request.param
    return found


@pytest.fixture(params=[1, 2, 4])
def bench(request: pytest.FixtureRequest, source: str | None) -> Iterator[Bench]:
    with ExitStack() as stack:
        yield Bench(stack, source, request.param)


def test_turns_with_and_without_thinking_equal_cold_runs(bench: Bench) -> None:
    bench.ask("17+25=?")
    reused = [bench.ask("And 3+4?")]
    bench.think(False)
    bench.ask("Hello!")
    reused.append(bench.ask("你好"))
    bench.think(True)
    bench.ask("17+25=?")
    reused.append(bench.ask("Thank you."))
    assert all(count > 40 for count in reused), reused


def test_stopped_and_repeated_questions_equal_cold_runs(bench: Bench) -> None:
    bench.ask("17+25=?", pieces=3)
    bench.ask("17+25=?")
    bench.ask("Hello!", pieces=1)
    bench.ask("Hello!", pieces=0)
    bench.ask("3+4=?")
    bench.reset()
    bench.ask("3+4=?")
    assert bench.ask("And 5+6?") > 40


def test_slots_save_work(source: str | None) -> None:
    """With the slots the whole system text is kept when thinking is switched and when a new conversation begins."""
    with ExitStack() as stack:
        bench = Bench(stack, source, 4)
        first = bench.conversations[0]
        bench.ask("Hello!")
        whole = first.stats.prompt
        bench.think(False)
        assert bench.ask("Hello!") > whole // 2
        bench.reset()
        assert bench.ask("17+25=?") > whole // 2
