"""A timeline that differs from what the next prompt says, a cancel that hits the wrong turn, turns that get lost."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from launcher.conversation import Conversation
from launcher.errors import ContextFull, UsageError
from launcher.generate import PREFILL_SLICE, StopReason
from launcher.reply import Kind
from launcher.template import ChatTemplate
from tests.support.fake_engine import FakeSession, FakeText, fake_ports

TEMPLATE = ChatTemplate(
    "<role>SYSTEM</role>{{ 'on' if enable_thinking else 'off' }}<|role_end|>"
    "{% for m in messages %}"
    "{% if m.role == 'assistant' %}<role>A</role><think>{{ m.reasoning_content }}</think>{{ m.content }}<|role_end|>"
    "{% else %}<role>{{ m.role }}</role>{{ m.content }}<|role_end|>{% endif %}"
    "{% endfor %}<role>A</role><think>{{ '' if enable_thinking else '</think>' }}",
    special_tokens={},
)


def talk(session: FakeSession, replies: list[str], **settings: object) -> Conversation:
    return Conversation(fake_ports(session, replies), TEMPLATE, **settings)  # type: ignore[arg-type]


def ask(conversation: Conversation, question: str) -> tuple[str, str]:
    pieces = list(conversation.ask(question))
    return (
        "".join(piece.text for piece in pieces if piece.kind is Kind.REASONING),
        "".join(piece.text for piece in pieces if piece.kind is Kind.CONTENT),
    )


def timeline_text(session: FakeSession) -> str:
    text = FakeText()
    return b"".join(text.token_bytes(token) for token in session.timeline).decode()


def test_second_turn_evaluates_only_what_is_new() -> None:
    session = FakeSession()
    conversation = talk(session, ["a</think>你好", "b</think>好"])
    assert ask(conversation, "hi") == ("a", "你好")
    first = session.position
    assert ask(conversation, "再见") == ("b", "好")
    assert session.resets == 0
    assert conversation.stats.reused == first
    assert session.evaluated == session.position
    expected = TEMPLATE.render(conversation.messages, enable_thinking=True)
    assert expected.startswith(timeline_text(session) + "<|role_end|>")


def test_switching_thinking_off_starts_the_session_again() -> None:
    session = FakeSession()
    conversation = talk(session, ["a</think>b", "c"])
    ask(conversation, "hi")
    conversation.thinking = False
    assert ask(conversation, "ho") == ("", "c")
    assert session.resets == 1
    assert conversation.stats.reused == 0
    assert timeline_text(session).startswith("<role>SYSTEM</role>off")


def test_invalid_bytes_in_a_reply_do_not_leave_a_false_timeline() -> None:
    session = FakeSession()
    ports = fake_ports(session, [])
    script = [0xE4, 0xBD, 256, ord("x"), 256]
    conversation = Conversation(
        type(ports)(
            text=ports.text,
            session=session,
            new_stream=ports.new_stream,
            new_sampler=lambda: lambda: script.pop(0),
            stop_ids=ports.stop_ids,
        ),
        TEMPLATE,
        thinking=False,
    )
    assert ask(conversation, "hi")[1] == "\ufffd"
    ask(conversation, "ho")
    assert session.resets == 1


def test_stopped_answer_stays_in_the_conversation_and_the_next_turn_continues_it() -> None:
    session = FakeSession()
    conversation = talk(session, ["abcdef", "next"], thinking=False)
    for seen, _piece in enumerate(conversation.ask("hi"), start=1):
        if seen == 3:
            conversation.cancel()
    assert conversation.stats.reason is StopReason.CANCELLED
    assert conversation.messages[-1].content == "abc"
    session.before_eval = lambda ids: None
    before = session.position
    list(conversation.ask("go on"))
    assert session.resets == 0
    assert conversation.stats.reused == before
    assert timeline_text(session).count("abc<|role_end|>") == 1


def test_late_cancel_does_not_stop_the_next_answer() -> None:
    session = FakeSession()
    conversation = talk(session, ["one", "two"], thinking=False)
    ask(conversation, "hi")
    conversation.cancel()
    assert ask(conversation, "ho") == ("", "two")
    assert conversation.stats.reason is StopReason.STOP


def test_cancel_while_the_prompt_is_read_drops_the_question() -> None:
    session = FakeSession()
    conversation = talk(session, ["never"], thinking=False)

    def interrupt(ids: Sequence[int]) -> None:
        if session.position >= PREFILL_SLICE:
            conversation.cancel()

    session.before_eval = interrupt
    assert ask(conversation, "x" * 3 * PREFILL_SLICE) == ("", "")
    assert conversation.stats.reason is StopReason.CANCELLED
    assert conversation.stats.evaluated == PREFILL_SLICE  # so that the speed is not that of the whole prompt
    assert conversation.messages == ()
    session.before_eval = lambda ids: None
    assert ask(conversation, "short") == ("", "never")
    assert timeline_text(session).count("x") == 0


def test_question_that_does_not_fit_is_not_kept() -> None:
    session = FakeSession(context=100)
    conversation = talk(session, ["ok"], thinking=False)
    with pytest.raises(ContextFull):
        ask(conversation, "x" * 200)
    assert conversation.messages == ()
    assert ask(conversation, "y") == ("", "ok")


def test_question_that_does_not_fit_costs_no_evaluation() -> None:
    session = FakeSession(context=3 * PREFILL_SLICE)
    with pytest.raises(ContextFull, match=f"the context holds {3 * PREFILL_SLICE}"):
        ask(talk(session, ["ok"], thinking=False), "x" * 3 * PREFILL_SLICE)
    assert session.evaluated == 0


def test_answer_that_fills_the_context_is_kept_in_part() -> None:
    session = FakeSession(context=64)
    conversation = talk(session, ["z" * 100], thinking=False)
    _, content = ask(conversation, "y")
    assert conversation.stats.reason is StopReason.CONTEXT
    assert conversation.messages[-1].content == content
    assert 0 < len(content) < 100


def test_max_tokens_cuts() -> None:
    conversation = talk(FakeSession(), ["abcdef"], thinking=False, max_tokens=4)
    assert ask(conversation, "y") == ("", "abcd")
    assert conversation.stats.reason is StopReason.LENGTH


def test_progress_counts_the_prompt_to_its_end() -> None:
    seen: list[tuple[int, int]] = []
    conversation = talk(FakeSession(), ["a"], thinking=False)
    list(conversation.ask("x" * 700, lambda done, total: seen.append((done, total))))
    assert seen == sorted(seen)
    assert seen[-1][0] == seen[-1][1] == conversation.stats.prompt


def test_reset_forgets() -> None:
    session = FakeSession()
    conversation = talk(session, ["a", "b"], thinking=False)
    ask(conversation, "remember")
    conversation.reset()
    ask(conversation, "what?")
    assert "remember" not in timeline_text(session)


def test_system_text_comes_first() -> None:
    session = FakeSession()
    ask(talk(session, ["a"], thinking=False, system="Be brief."), "x")
    assert "<role>system</role>Be brief." in timeline_text(session)


def test_text_that_is_no_unicode_is_the_users_error() -> None:
    conversation = talk(FakeSession(), ["a"])
    with pytest.raises(UsageError):
        ask(conversation, "\udcff")
