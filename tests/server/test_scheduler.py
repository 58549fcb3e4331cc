"""A request that is read, written, cut or counted otherwise than it asked for, or answers otherwise the second time."""

from __future__ import annotations

import pytest

from launcher.server.events import (
    CacheSource,
    ChoiceFinished,
    Content,
    Deltas,
    Finished,
    FinishReason,
    Metrics,
    Reading,
    TokenLogprob,
    ToolCallStart,
)
from launcher.server.request import Mark, MarkKind, Style, Tool
from tests.support.fake_generation import STOP, STOP_TEXT, Bench, CountingGrammar, Listener, expected_text, request


def reason(listener: Listener, choice: int = 0) -> FinishReason:
    listener.end()
    return listener.of(ChoiceFinished)[choice].reason


def metrics_of(listener: Listener) -> Metrics:
    return listener.of(ChoiceFinished)[0].metrics


def test_an_answer_is_read_written_and_counted(bench: Bench) -> None:
    asked = request("a", prompt="x" * 600, max_tokens=12)
    listener = bench.submit(asked)
    assert listener.text() == expected_text(asked)
    kinds = [type(event) for event in listener.events]
    assert kinds == [Reading, Reading, *[Deltas] * 12, ChoiceFinished, Finished]
    first, last = listener.of(Reading)
    assert (first.done, first.cached, first.total) == (0, 0, 600)
    assert (last.done, last.cached, last.total) == (600, 0, 600)
    assert 0 <= first.seconds < last.seconds < metrics_of(listener).first_seconds
    metrics = metrics_of(listener)
    assert listener.of(Finished)[0].metrics == (metrics,)
    assert (metrics.prompt, metrics.cached, metrics.generated, metrics.reasoning) == (600, 0, 12, 0)
    assert 0 < metrics.queue_seconds < metrics.first_seconds
    assert metrics.prefill_seconds > 0
    assert metrics.decode_seconds > 0
    assert listener.of(Deltas)[0].metrics.generated == 1
    state = bench.scheduler.state()
    assert (state.accepted, state.finished, state.generated, state.prefilled, state.cached) == (1, 1, 12, 600, 0)
    assert (state.running, state.waiting, state.paused) == (None, 0, 0)


def test_the_last_token_is_not_evaluated_in_vain(bench: Bench) -> None:
    bench.submit(request("a", max_tokens=3)).text()
    assert bench.engine.position == len("hello") + 2


def test_a_long_prompt_is_read_in_slices_with_progress() -> None:
    """The clock goes 0.15 s at each look, so that every slice takes longer than the interval of progress."""
    ticks = iter(range(1_000_000))
    with Bench(clock=lambda: next(ticks) * 0.15) as bench:
        listener = bench.submit(request("a", prompt="x" * 1000, max_tokens=1))
        listener.text()
    assert [event.done for event in listener.of(Reading)] == [0, 256, 512, 768, 1000]


def test_the_progress_of_each_reply_says_what_it_found_and_names_the_reply(bench: Bench) -> None:
    listener = bench.submit(
        request("a", prompt="x" * 300, max_tokens=2, choices=2, marks=(Mark(position=290, kind=MarkKind.TURN),))
    )
    listener.text()
    told = [(event.choice, event.done, event.cached, event.total) for event in listener.of(Reading)]
    assert told == [(0, 0, 0, 300), (0, 300, 0, 300), (1, 290, 290, 300), (1, 300, 290, 300)]


def test_checkpoints_are_kept_where_the_marks_are(bench: Bench) -> None:
    marks = (Mark(position=10, kind=MarkKind.SYSTEM), Mark(position=300, kind=MarkKind.TURN))
    bench.submit(request("a", prompt="x" * 310, max_tokens=2, marks=marks)).text()
    assert bench.store.calls == ["begin", "keep system 10", "keep turn 300", "end"]


@pytest.mark.parametrize(
    ("script", "settings", "end", "text"),
    [
        ([104, 105, STOP], {}, FinishReason.STOP, "hi"),
        ([104, STOP, 105, 105], {"ignore_eos": True, "max_tokens": 3}, FinishReason.LENGTH, f"h{STOP_TEXT}i"),
        (list(b"hi<|role_end|>never"), {"max_tokens": 99}, FinishReason.STOP, "hi"),
        (list(b"one END two"), {"stops": ("END",), "max_tokens": 99}, FinishReason.STOP, "one "),
        (list(b"caf\xc3"), {"max_tokens": 4}, FinishReason.LENGTH, "caf\ufffd"),
        ([STOP], {}, FinishReason.STOP, ""),
    ],
    ids=["stop-id", "ignored-stop-id", "spelled-stop", "stop-text", "cut-character", "nothing"],
)
def test_what_ends_a_reply(script: list[int], settings: dict[str, object], end: FinishReason, text: str) -> None:
    with Bench(scripts={"a": script}) as bench:
        listener = bench.submit(request("a", **settings))
        assert listener.text() == text
        assert reason(listener) is end


def test_a_full_context_ends_a_reply_as_length() -> None:
    asked = request("a", prompt="x" * 60, max_tokens=100)
    with Bench(context=64) as bench:
        listener = bench.submit(asked)
        assert listener.text() == expected_text(asked)[:5]  # the last one need not be evaluated
        assert reason(listener) is FinishReason.LENGTH


def test_a_tool_call_ends_as_tool_calls_unless_it_is_cut() -> None:
    script = [*b"<tool_call>f\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>\n</tool_call>", STOP]
    settings = {"style": Style.CHAT, "tools": (Tool(name="f", parameters={}),)}
    with Bench(scripts={"a": script, "b": script}) as bench:
        whole = bench.submit(request("a", max_tokens=999, **settings))
        cut = bench.submit(request("b", max_tokens=30, **settings))
        assert reason(whole) is FinishReason.TOOL_CALLS
        assert reason(cut) is FinishReason.LENGTH
    starts = [delta for event in whole.of(Deltas) for delta in event.deltas if isinstance(delta, ToolCallStart)]
    assert [start.name for start in starts] == ["f"]


@pytest.mark.parametrize(
    ("script", "stops", "end"),
    [
        (b"<tool_call>f\n<arg_key>k</arg_key>\n<arg_value>/home</arg_value>\n</tool_call>", ("me",), FinishReason.STOP),
        (b"<tool_call>f\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>\n</tool_call>", ("arg",), FinishReason.STOP),
        (b"<tool_call>f\n<arg_key>k</arg_key>\n<arg_value>v", (), FinishReason.STOP),
        (b"<tool_call>f\n<arg_key>k", (), FinishReason.STOP),
        (b"<tool_call>f\n<arg_key>k</arg_key>\n<arg_value>v</arg_value>\n", (), FinishReason.TOOL_CALLS),
        (b"<tool_call>f\n</tool_call>me", ("me",), FinishReason.TOOL_CALLS),
    ],
    ids=["stop-in-value", "stop-in-mark", "end-in-value", "end-in-key", "end-before-the-last-mark", "stop-after-call"],
)
def test_half_a_call_does_not_ask_to_be_run(script: bytes, stops: tuple[str, ...], end: FinishReason) -> None:
    settings = {"style": Style.CHAT, "tools": (Tool(name="f", parameters={}),), "max_tokens": 999, "stops": stops}
    with Bench(scripts={"a": [*script, STOP]}) as bench:
        assert reason(bench.submit(request("a", **settings))) is end


def test_an_answer_that_spells_a_call_calls_nothing_where_it_excludes_calls() -> None:
    script = [*b'{"a": "<tool_call>f\n</tool_call>"}', STOP]
    settings = {"style": Style.CHAT, "tools": (Tool(name="f", parameters={}),), "max_tokens": 99}
    with Bench(scripts={"a": script, "b": script}) as bench:
        assert reason(bench.submit(request("a", text_or_calls=True, **settings))) is FinishReason.STOP
        assert reason(bench.submit(request("b", **settings))) is FinishReason.TOOL_CALLS


def test_thinking_is_counted_apart() -> None:
    with Bench(scripts={"a": [*b"mm</think>ok", STOP]}) as bench:
        listener = bench.submit(request("a", max_tokens=99, style=Style.CHAT, reasoning=True))
        assert listener.text() == "mmok"
        metrics = listener.of(ChoiceFinished)[0].metrics
        assert (metrics.generated, metrics.reasoning) == (12, 10)


def test_log_probabilities_come_with_their_tokens(bench: Bench) -> None:
    listener = bench.submit(request("a", max_tokens=2, logprobs=1))
    text = listener.text()
    found = [
        logprob
        for event in listener.of(Deltas)
        for delta in event.deltas
        if isinstance(delta, Content)
        for logprob in delta.logprobs
    ]
    assert found == [
        TokenLogprob(token=ord(letter), logprob=-float(ord(letter)), top=((ord(letter), -float(ord(letter))),))
        for letter in text
    ]


def test_a_grammar_masks_every_token_and_ends_the_reply(bench: Bench) -> None:
    grammars: list[CountingGrammar] = []

    def new() -> CountingGrammar:
        grammars.append(CountingGrammar())
        return grammars[-1]

    listener = bench.submit(request("a", max_tokens=99, choices=2, new_constraint=new))
    assert len(listener.text()) == 3
    assert reason(listener) is FinishReason.STOP
    assert [sampler.masks for sampler in bench.samplers] == [[("mask", 0), ("mask", 1), ("mask", 2)]] * 2
    assert [grammar.seen for grammar in grammars] == [sampler.picked for sampler in bench.samplers]


def test_a_seed_is_repeatable_and_choices_equal_requests_with_the_next_seeds(bench: Bench) -> None:
    three = bench.submit(request("n", seed=5, choices=3))
    singles = [bench.submit(request(f"s{place}", seed=seed)) for place, seed in enumerate((5, 6, 7, 5))]
    texts = [three.text(choice) for choice in range(3)]
    assert [*texts, texts[0]] == [single.text() for single in singles]
    assert len(set(texts)) == 3
    assert len(three.of(Finished)[0].metrics) == 3
    assert three.of(ChoiceFinished)[0].metrics.cached == 0


def test_a_b_a_gives_a_again(bench: Bench) -> None:
    first, other = request("a1", prompt="first"), request("b", prompt="other one")
    texts = [bench.submit(each).text() for each in (first, other, request("a2", prompt="first"))]
    assert texts == [expected_text(first), expected_text(other), expected_text(first)]


def test_reuse_is_told_and_summed(bench: Bench) -> None:
    """The second prompt is the first one, its reply but for the last token, and more."""
    reply = bench.submit(request("a", max_tokens=5)).text()
    listener = bench.submit(request("b", prompt=f"hello{reply} and more"))
    listener.text()
    metrics = listener.of(Finished)[0].metrics[0]
    assert (metrics.cached, metrics.cache_source) == (9, CacheSource.LIVE)
    assert listener.of(Reading)[0].done == 9
    assert bench.scheduler.state().cached == 9
