"""Thinking that goes on beyond its limit, is closed in a wrong place or twice, or leaves a wrong timeline or count."""

from __future__ import annotations

import pytest

from launcher.server.events import ChoiceFinished, Content, Deltas, FinishReason, Metrics, Paused, Reasoning
from launcher.server.request import GenerationRequest, Style, Tool
from launcher.server.thinking_limit import ThinkingLimit
from tests.support.fake_generation import STOP, Bench, CountingGrammar, Listener, request

END = tuple(b"</think>")
THOUGHT = b"0123456789abcdef"
SCRIPT = [*THOUGHT, *END, *b"own answer", STOP]


def thinker(name: str = "a", *, budget: int | None = None, **more: object) -> GenerationRequest:
    settings: dict[str, object] = {"max_tokens": 60, "style": Style.CHAT, "reasoning": True, "thinking_end": END}
    return request(name, thinking_budget=budget, **(settings | more))


def said(listener: Listener, choice: int = 0) -> tuple[str, str]:
    """Thinking and answer."""
    listener.text(choice)
    deltas = [delta for event in listener.of(Deltas) if event.choice == choice for delta in event.deltas]
    thought = "".join(delta.text for delta in deltas if isinstance(delta, Reasoning))
    return thought, "".join(delta.text for delta in deltas if isinstance(delta, Content))


def metrics(listener: Listener, choice: int = 0) -> Metrics:
    listener.end()
    return listener.of(ChoiceFinished)[choice].metrics


def reason(listener: Listener, choice: int = 0) -> FinishReason:
    listener.end()
    return listener.of(ChoiceFinished)[choice].reason


@pytest.mark.parametrize("budget", [0, 1, 5, 15])
def test_the_thinking_has_as_many_tokens_as_it_may(budget: int) -> None:
    with Bench(scripts={"a": [*THOUGHT[:budget], *b"answer", STOP]}) as bench:
        listener = bench.submit(thinker(budget=budget))
        assert said(listener) == (THOUGHT[:budget].decode(), "answer")
        assert bench.engine.timeline == [*b"hello", *THOUGHT[:budget], *END, *b"answer"]
    counted = metrics(listener)
    assert (counted.reasoning, counted.generated) == (budget, budget + len(END) + len("answer"))
    assert reason(listener) is FinishReason.STOP


@pytest.mark.parametrize("budget", [None, len(THOUGHT) + len(END), 1000])
def test_a_thinking_that_ends_by_itself_is_left_alone(budget: int | None) -> None:
    with Bench(scripts={"a": SCRIPT}) as bench:
        listener = bench.submit(thinker(budget=budget))
        assert said(listener) == (THOUGHT.decode(), "own answer")
        assert bench.engine.timeline == [*b"hello", *SCRIPT[:-1]]


def test_a_limit_where_the_model_would_have_ended_changes_nothing_but_the_count() -> None:
    """The tokens are those that the model would have picked: what is kept of the one serves the other."""
    timelines = []
    for script, budget in ((SCRIPT, None), ([*THOUGHT, *b"own answer", STOP], len(THOUGHT))):
        with Bench(scripts={"a": script}) as bench:
            bench.submit(thinker(budget=budget)).text()
            timelines.append(bench.engine.timeline)
    assert timelines[0] == timelines[1]


def test_a_request_that_does_not_think_is_not_closed() -> None:
    with Bench(scripts={"a": [*b"plain", STOP]}) as bench:
        listener = bench.submit(thinker(budget=0, reasoning=False))
        assert said(listener) == ("", "plain")


@pytest.mark.parametrize(
    ("data", "waits"),
    [
        (b"a", 0),
        ("é".encode(), 0),
        ("é".encode()[:1], 1),
        ("想".encode()[:1], 2),
        ("想".encode()[:2], 1),
        ("a😀".encode()[:-3], 3),
        ("😀".encode()[:-1], 1),
        ("😀".encode(), 0),
        (b"\xf0", 3),
        (b"\x80\x80\x80", 0),
    ],
)
def test_a_character_that_has_begun_is_finished(data: bytes, waits: int) -> None:
    limit = ThinkingLimit(budget=1, end=END, is_ended=lambda: False)
    for byte in data:
        limit.follow(bytes([byte]))
    full = next((text.encode() for text in ("é", "想", "a😀", "😀") if text.encode().startswith(data)), data)
    rest = list(full[len(data) :])
    for place in range(waits):
        assert limit.next_token(thinking=True, thought=1 + place) is None
        limit.follow(bytes([rest[place]]) if place < len(rest) else b"")
    assert [limit.next_token(thinking=True, thought=9) for _ in END] == list(END)
    assert limit.next_token(thinking=True, thought=99) is None


def test_bytes_that_never_become_a_character_do_not_keep_the_thinking_open() -> None:
    with Bench(scripts={"a": [*b"ab", *b"\xf0" * 4, *b"z", STOP]}) as bench:
        listener = bench.submit(thinker(budget=3))
        listener.text()
        assert bench.engine.timeline == [*b"hello", *b"ab", *b"\xf0" * 4, *END, *b"z"]
    assert metrics(listener).reasoning == 6


@pytest.mark.parametrize("limit", [3, 5, 6, 12, 13])
def test_the_limit_of_the_whole_reply_holds_within_the_closing_too(limit: int) -> None:
    with Bench(scripts={"a": [*THOUGHT[:5], *b"answer", STOP]}) as bench:
        listener = bench.submit(thinker(budget=5, max_tokens=limit))
        listener.text()
        assert bench.engine.timeline == [*b"hello", *([*THOUGHT[:5], *END, *b"answer"][: limit - 1])]
    assert reason(listener) is FinishReason.LENGTH
    assert (metrics(listener).generated, metrics(listener).reasoning) == (limit, min(limit, 5))


def test_the_end_of_the_context_within_the_closing_ends_the_reply() -> None:
    with Bench(context=5 + 7, scripts={"a": [*THOUGHT]}) as bench:
        listener = bench.submit(thinker(budget=4))
        listener.text()
        assert bench.engine.timeline == [*b"hello", *THOUGHT[:4], *END[:3]]
    assert reason(listener) is FinishReason.LENGTH


def test_a_call_that_ended_the_thinking_is_not_cut_in_two() -> None:
    call = b"hm<tool_call>add\n<arg_key>a</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"
    tools = (Tool(name="add", parameters={}),)
    with Bench(scripts={"a": [*call, STOP]}) as bench:
        listener = bench.submit(thinker(budget=20, tools=tools, max_tokens=200))
        listener.text()
        assert bench.engine.timeline == [*b"hello", *call]
    assert reason(listener) is FinishReason.TOOL_CALLS
    with Bench(scripts={"a": [*b"hm", *call[2:], STOP]}) as bench:
        listener = bench.submit(thinker(budget=2, tools=tools, max_tokens=200))
        listener.text()
        assert bench.engine.timeline == [*b"hello", *b"hm", *END, *call[2:]]
    assert reason(listener) is FinishReason.TOOL_CALLS


def test_a_grammar_follows_the_closing_and_masks_only_what_is_picked() -> None:
    grammar = CountingGrammar(4 + len(END) + 2)
    with Bench(scripts={"a": [*THOUGHT[:4], *b"{}"]}) as bench:
        listener = bench.submit(thinker(budget=4, new_constraint=lambda: grammar))
        assert said(listener) == ("0123", "{}")
        (sampler,) = bench.samplers
    assert grammar.seen == [*THOUGHT[:4], *END, *b"{}"]
    assert sampler.masks == [("mask", place) for place in (0, 1, 2, 3, 12, 13)]


def test_log_probabilities_are_those_of_the_answer() -> None:
    with Bench(scripts={"a": [*THOUGHT[:4], *b"ok", STOP]}) as bench:
        listener = bench.submit(thinker(budget=4, logprobs=1))
        listener.text()
    deltas = [delta for event in listener.of(Deltas) for delta in event.deltas if isinstance(delta, Content)]
    assert [entry.token for delta in deltas for entry in delta.logprobs] == list(b"ok")


def test_a_stop_text_that_begins_with_the_closing_counts_nothing_as_thinking_afterwards() -> None:
    with Bench(scripts={"a": [*THOUGHT[:4], *b"\n\nxy", STOP]}) as bench:
        listener = bench.submit(thinker(budget=4, stops=("</think>\n\n\n",)))
        assert said(listener) == ("0123", "\n\nxy")
    assert metrics(listener).reasoning == 4
    with Bench(scripts={"a": [*THOUGHT[:4], *b"xy", STOP]}) as bench:
        listener = bench.submit(thinker(budget=4, stops=("</think>",)))
        assert said(listener) == ("0123", "")
    assert reason(listener) is FinishReason.STOP


def test_each_choice_has_a_budget_of_its_own() -> None:
    with Bench(scripts={"a": [*THOUGHT[:4], *b"ok", STOP]}) as bench:
        listener = bench.submit(thinker(budget=4, choices=2))
        assert [said(listener, 0), said(listener, 1)] == [("0123", "ok")] * 2
    assert [metrics(listener, choice).reasoning for choice in (0, 1)] == [4, 4]


# What the model does where it is told to answer after so many tokens of thinking.
def told_script(thought: int) -> list[int]:
    return [*THOUGHT[:thought], *b"answer", STOP]


def test_a_request_that_waits_can_be_told_not_to_think(gated: Bench) -> None:
    gated.scripts["b"] = told_script(0)
    first = gated.submit(request("a"))
    listener = gated.submit(thinker("b"))
    gated.gate.wait()
    assert not gated.scheduler.end_thinking("b", "somebody else")
    assert gated.scheduler.end_thinking("b", "")
    assert gated.scheduler.end_thinking("b", "")
    assert gated.scheduler.end_thinking("a", "")  # it does not think: nothing happens
    gated.gate.open()
    assert said(listener) == ("", "answer")
    assert len(first.text()) == 8
    assert not gated.scheduler.end_thinking("b", "")


@pytest.mark.parametrize(("chunks", "thought"), [(0, 0), (3, 0), (5, 1), (9, 5)])
def test_thinking_ends_at_the_next_token(gated: Bench, chunks: int, thought: int) -> None:
    """A prompt of five chunks; asked in the prompt or while the token after so many is being evaluated."""
    gated.scripts["a"] = told_script(thought)
    listener = gated.submit(thinker(prompt="y" * 300))
    gated.gate.wait()
    gated.gate.step(chunks)
    assert gated.scheduler.end_thinking("a", "")
    gated.gate.open()
    assert said(listener) == (THOUGHT[:thought].decode(), "answer")


@pytest.mark.parametrize("chunks", [5, 7, 8, 11, 15])
def test_a_pause_before_or_within_the_closing_changes_nothing(gated: Bench, chunks: int) -> None:
    gated.scripts["a"] = told_script(3)
    listener = gated.submit(thinker(prompt="y" * 300, budget=3))
    gated.gate.wait()
    gated.gate.step(chunks)
    assert gated.scheduler.pause("a", "")
    gated.gate.open()
    listener.wait(Paused)
    assert gated.scheduler.resume("a", "")
    assert said(listener) == ("012", "answer")
    assert gated.engine.timeline == [*b"y" * 300, *THOUGHT[:3], *END, *b"answer"]
    assert metrics(listener).reasoning == 3


def test_a_paused_request_can_be_told_to_answer(gated: Bench) -> None:
    gated.scripts["a"] = told_script(4)  # the step in which it is paused ends with a token
    listener = gated.submit(thinker(prompt="y" * 300))
    gated.gate.wait()
    gated.gate.step(7)
    assert gated.scheduler.pause("a", "")
    gated.gate.open()
    listener.wait(Paused)
    assert gated.scheduler.end_thinking("a", "")
    assert gated.scheduler.resume("a", "")
    assert said(listener) == ("0123", "answer")


def test_later_choices_do_not_think_either(gated: Bench) -> None:
    gated.scripts["a"] = [*b"xy", STOP]
    listener = gated.submit(thinker(choices=2))
    gated.gate.wait()
    assert gated.scheduler.end_thinking("a", "")
    gated.gate.open()
    assert [said(listener, 0), said(listener, 1)] == [("", "xy")] * 2


def test_an_answer_that_has_begun_is_not_closed_again(gated: Bench) -> None:
    gated.scripts["a"] = SCRIPT
    listener = gated.submit(thinker())
    gated.gate.wait()
    gated.gate.step(len(THOUGHT) + len(END) + 2)
    assert gated.scheduler.end_thinking("a", "")
    gated.gate.open()
    assert said(listener) == (THOUGHT.decode(), "own answer")
