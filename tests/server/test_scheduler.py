"""Requests that run out of order, hang, outlive their cancel or deadline, answer otherwise after a pause, or are lost
when the engine fails, a client leaves or the server ends."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator
from dataclasses import replace

import pytest

from launcher.errors import Cancelled, EngineCrash, InternalError, RequestError, UsageError
from launcher.server.events import (
    CacheSource,
    ChoiceFinished,
    Content,
    Deltas,
    Event,
    Failed,
    Finished,
    FinishReason,
    Paused,
    Queued,
    Reading,
    TokenLogprob,
    ToolCallStart,
)
from launcher.server.protocol.parts import total
from launcher.server.request import GenerationRequest, Mark, MarkKind, Style, Tool
from launcher.server.running import Phase, SamplerPort
from tests.support.fake_generation import CHUNK, STOP, STOP_TEXT, Bench, Gate, Listener, expected_text, request


@pytest.fixture
def bench() -> Iterator[Bench]:
    with Bench() as made:
        yield made


@pytest.fixture
def gated() -> Iterator[Bench]:
    """The engine does a chunk of work only when it is let."""
    with Bench(gated=True) as made:
        yield made


def refusal(bench: Bench, name: str) -> RequestError:
    with pytest.raises(RequestError) as refused:
        bench.submit(request(name))
    return refused.value


def positions(listener: Listener) -> list[int]:
    return [event.position for event in listener.of(Queued)]


def reason(listener: Listener, choice: int = 0) -> FinishReason:
    listener.end()
    return listener.of(ChoiceFinished)[choice].reason


# -- one request --


def test_an_answer_is_read_written_and_counted(bench: Bench) -> None:
    asked = request("a", prompt="x" * 600, max_tokens=12)
    listener = bench.submit(asked)
    assert listener.text() == expected_text(asked)
    kinds = [type(event) for event in listener.events]
    assert kinds == [Reading, *[Deltas] * 12, ChoiceFinished, Finished]
    assert listener.of(Reading)[0] == Reading(done=0, total=600)
    metrics = listener.of(ChoiceFinished)[0].metrics
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


class CountingGrammar:
    """Allows three tokens, or as many as it is told."""

    def __init__(self, most: int = 3) -> None:
        self.most = most
        self.seen: list[int] = []

    def allowed(self) -> object:
        return ("mask", len(self.seen))

    def advance(self, token: int) -> None:
        self.seen.append(token)

    @property
    def is_finished(self) -> bool:
        return len(self.seen) == self.most


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


# -- the queue --


def test_requests_run_in_order_and_are_told_their_places(gated: Bench) -> None:
    a, b, c, d = (gated.submit(request(name)) for name in "abcd")
    gated.gate.wait()
    assert [positions(each) for each in (a, b, c, d)] == [[], [1], [2], [3]]
    assert gated.scheduler.cancel("b", "")
    assert [positions(each) for each in (c, d)] == [[2, 1], [3, 2]]
    state = gated.scheduler.state()
    assert (state.running, state.waiting, state.paused) == ("a", 2, 0)
    gated.gate.open()
    for each in (a, c, d):
        each.text()
    assert positions(d) == [3, 2, 1]
    assert gated.run_order() == ["a", "c", "d"]


def test_a_full_queue_refuses_with_429_and_when_to_come_back() -> None:
    with Bench(gated=True, limit=2) as bench:
        bench.submit(request("a"))
        bench.gate.wait()
        waiting = [bench.submit(request(name)) for name in "bc"]
        error = refusal(bench, "d")
        assert (error.slug, error.status, error.kind) == ("queue_full", 429, "rate_limit_error")
        assert 1 <= int(error.headers["Retry-After"]) <= 60
        assert error.headers["X-Queue-Depth"] == "2"
        assert bench.scheduler.state().refused == 1
        assert bench.scheduler.cancel("b", "")
        bench.submit(request("e"))
        bench.gate.open()
        waiting[1].text()


def test_retry_after_follows_how_long_requests_take() -> None:
    now = [0.0]
    with Bench(gated=True, limit=0, clock=lambda: now[0]) as bench:
        first = bench.submit(request("a"))
        bench.gate.wait()
        now[0] += 40
        bench.gate.open()
        first.text()
        bench.engine.work = bench.gate = Gate()
        bench.submit(request("b"))
        bench.gate.wait()
        now[0] += 8.5
        assert refusal(bench, "c").headers["Retry-After"] == "32"
        now[0] += 500
        assert refusal(bench, "d").headers["Retry-After"] == "1"


def test_without_a_queue_only_a_free_engine_accepts() -> None:
    with Bench(gated=True, limit=0) as bench:
        bench.submit(request("a"))
        assert refusal(bench, "b").headers["X-Queue-Depth"] == "0"
        bench.gate.wait()
        assert refusal(bench, "c").slug == "queue_full"


def test_the_engine_is_free_when_the_end_is_told() -> None:
    """A client that asks again at once is not refused because of itself."""
    answers = Listener()
    with Bench(limit=0) as bench:

        def ask_again(event: Event) -> None:
            if isinstance(event, Finished):
                bench.scheduler.submit(request("b"), answers)

        bench.scheduler.submit(request("a"), ask_again)
        assert answers.text() == expected_text(request("b"))


def test_an_id_stands_for_one_request(gated: Bench) -> None:
    first = gated.submit(request("a"))
    assert refusal(gated, "a").slug == "request_id_in_use"
    gated.gate.open()
    first.text()
    gated.submit(request("a")).text()


def test_an_id_is_taken_for_its_owner_alone(gated: Bench) -> None:
    """Else a refusal would tell what others use, and they could keep an id from its owner."""
    mine, theirs = request("a", owner="mine"), request("a", owner="theirs", prompt="other")
    first, second = gated.submit(mine), gated.submit(theirs)
    with pytest.raises(RequestError) as caught:
        gated.submit(request("a", owner="mine"))
    assert (caught.value.slug, caught.value.param) == ("request_id_in_use", "request_id")
    assert gated.scheduler.cancel("a", "theirs")
    assert isinstance(second.end(), Failed)
    gated.gate.open()
    assert first.text() == expected_text(mine)


def test_who_withdraws_a_request_that_has_ended_does_not_end_the_next_one_of_its_id(gated: Bench) -> None:
    old, new = request("a"), request("a", prompt="another")
    gated.submit(request("first"))
    gated.submit(old)
    gated.scheduler.cancel("a", "")
    answer = gated.submit(new)
    gated.scheduler.withdraw(old)
    gated.gate.open()
    assert answer.text() == expected_text(new)


def test_a_withdrawn_request_ends(gated: Bench) -> None:
    asked = request("a")
    answer = gated.submit(asked)
    gated.scheduler.withdraw(asked)
    gated.gate.open()
    assert isinstance(answer.end(), Failed)


def test_paused_requests_keep_nobody_out() -> None:
    """Neither those that waited nor the one that ran; resumed they go first, and the queue may be too long then."""
    with Bench(gated=True, limit=2) as bench:
        listeners = {name: bench.submit(request(name)) for name in "ab"}
        bench.gate.wait()
        assert bench.scheduler.pause("b", "")
        listeners["c"] = bench.submit(request("c"))
        assert bench.scheduler.pause("a", "")
        bench.gate.step()
        assert bench.scheduler.state().running == "c"
        listeners |= {name: bench.submit(request(name)) for name in "de"}
        assert refusal(bench, "f").headers["X-Queue-Depth"] == "2"
        assert bench.scheduler.resume("b", "")
        assert bench.scheduler.resume("a", "")
        state = bench.scheduler.state()
        assert (state.waiting, state.paused) == (4, 0)
        assert refusal(bench, "f").headers["X-Queue-Depth"] == "4"
        bench.gate.open()
        for listener in listeners.values():
            listener.text()
        assert bench.end_order() == ["c", "a", "b", "d", "e"]


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_no_more_requests_are_paused_than_may_wait(limit: int) -> None:
    """One always may be. The one too many goes on, and a place that a resume or an end leaves is taken."""
    most = max(1, limit)
    with Bench(gated=True, limit=8) as bench:
        names = "abcde"[: most + 2]
        listeners = [bench.submit(request(name)) for name in names]
        bench.gate.wait()
        bench.scheduler._queue.limit = limit  # there is more to pause now than may wait
        assert bench.scheduler.pause("a", "")  # counts from now on, also while it leaves the engine
        for name in names[1:most]:
            assert bench.scheduler.pause(name, "")
        with pytest.raises(RequestError) as refused:
            bench.scheduler.pause(names[-1], "")
        assert (refused.value.slug, refused.value.status) == ("too_many_paused", 429)
        assert int(refused.value.headers["Retry-After"]) >= 1
        assert bench.scheduler.pause("a", "")  # is paused, which is no refusal
        assert bench.scheduler.resume("a", "")
        assert bench.scheduler.pause(names[-1], "")
        for name in names[1:most]:
            bench.scheduler.resume(name, "")
        bench.scheduler.resume(names[-1], "")
        bench.gate.open()
        for listener in listeners:
            listener.text()


def test_nobody_reaches_the_requests_of_others(gated: Bench) -> None:
    running = gated.submit(request("a", owner="x"))
    waiting = gated.submit(request("b", owner="y"))
    gated.gate.wait()
    scheduler = gated.scheduler
    for name, owner in (("a", "y"), ("b", "x"), ("none", "x"), ("a", "")):
        assert not scheduler.cancel(name, owner)
        assert not scheduler.pause(name, owner)
        assert not scheduler.resume(name, owner)
        assert scheduler.details(name, owner) is None
    gated.gate.open()
    assert running.text() == waiting.text()
    assert not scheduler.cancel("a", "x")


def test_details_follow_a_request_through_its_phases(gated: Bench) -> None:
    scheduler = gated.scheduler
    gated.submit(request("a", prompt="x" * 65, max_tokens=9))
    gated.submit(request("b"))
    gated.gate.wait()

    def phase(name: str) -> tuple[Phase, int, int]:
        found = scheduler.details(name, "")
        assert found is not None
        return found.phase, found.position, found.generated

    assert (phase("a"), phase("b")) == ((Phase.READING, 0, 0), (Phase.WAITING, 1, 0))
    gated.gate.step(3)
    assert phase("a") == (Phase.WRITING, 0, 2)
    scheduler.pause("a", "")
    gated.gate.step()
    assert phase("a")[0] is Phase.PAUSED
    assert phase("b") == (Phase.READING, 0, 0)


# -- cancel --


def test_cancel_while_waiting_answers_at_once(gated: Bench) -> None:
    gated.submit(request("a"))
    waiting = gated.submit(request("b"))
    gated.gate.wait()
    assert gated.scheduler.cancel("b", "")
    assert isinstance(waiting.events[-1], Failed)
    assert isinstance(waiting.events[-1].error, Cancelled)
    assert gated.scheduler.state().cancelled == 1


def test_cancel_while_the_prompt_is_read_stops_within_one_chunk(gated: Bench) -> None:
    listener = gated.submit(request("a", prompt="x" * 1000))
    gated.gate.wait()
    gated.gate.step()
    assert gated.scheduler.cancel("a", "")
    gated.gate.open()
    assert listener.error_code() == "cancelled"
    assert gated.engine.position == 2 * CHUNK
    assert gated.store.calls == ["begin", "end"]


@pytest.mark.parametrize("thinking", [False, True])
def test_cancel_while_writing_stops_within_one_token(gated: Bench, thinking: bool) -> None:
    listener = gated.submit(request("a", max_tokens=99, style=Style.CHAT, reasoning=thinking))
    gated.gate.wait()
    gated.gate.step(4)
    said = len(gated.samplers[0].picked)
    assert gated.scheduler.cancel("a", "")
    gated.gate.open()
    assert listener.error_code() == "cancelled"
    assert len(gated.samplers[0].picked) <= said + 1


def test_cancel_while_paused_answers_at_once(gated: Bench) -> None:
    listener = gated.submit(request("a", max_tokens=99))
    gated.gate.wait()
    gated.gate.step(2)
    assert gated.scheduler.pause("a", "")
    gated.gate.open()
    listener.wait(Paused)
    assert gated.scheduler.cancel("a", "")
    assert isinstance(listener.events[-1], Failed)


def test_a_cancel_that_comes_too_late_spares_the_next_request(gated: Bench) -> None:
    """Asked in the last evaluation of its request, it is still pending in the engine when the next one begins."""
    first = gated.submit(request("a", max_tokens=1))
    asked = request("b", prompt="another", max_tokens=6)
    second = gated.submit(asked)
    gated.gate.wait()
    assert gated.scheduler.cancel("a", "")
    gated.gate.open()
    first.end()
    assert second.text() == expected_text(asked)


# -- pause --


@pytest.mark.parametrize("chunks", [0, 2, 5, 6, 9])
def test_a_paused_answer_goes_on_as_if_it_had_not_been(gated: Bench, chunks: int) -> None:
    """Paused after so many chunks of work, in the prompt or in the reply, while another request runs."""
    asked = request("a", prompt="y" * 300, max_tokens=10, seed=3, choices=2)
    listener = gated.submit(asked)
    other = gated.submit(request("b", prompt="other"))
    gated.gate.wait()
    gated.gate.step(chunks)
    assert gated.scheduler.pause("a", "")
    gated.gate.open()
    assert other.text() == expected_text(request("b", prompt="other"))
    assert listener.of(Paused) == [Paused()]
    before = len(listener.events)
    state = gated.scheduler.state()
    assert (state.running, state.paused) == (None, 1)
    assert gated.scheduler.resume("a", "")
    assert [listener.text(0), listener.text(1)] == [expected_text(asked, 0), expected_text(asked, 1)]
    assert isinstance(listener.events[before], Reading)
    metrics = listener.of(ChoiceFinished)[0].metrics
    assert (metrics.generated, metrics.cached) == (10, 0)


def test_a_rate_counts_only_tokens_that_took_an_evaluation() -> None:
    """An evaluation takes a second. The first token comes with the prompt, and the stop token is none."""
    now = [0.0]
    with Bench(clock=lambda: now[0], scripts={"a": [*b"abc", STOP]}) as bench:

        def work() -> None:
            now[0] += 1.0

        bench.engine.work = work
        listener = bench.submit(request("a", choices=2, max_tokens=9))
        listener.text()
    told = [event.metrics for event in listener.of(Deltas) if event.choice == 0]
    assert [metrics.decode_rate for metrics in told] == [0.0, 1.0, 1.0]
    assert [metrics.decode_seconds for metrics in told] == [0.0, 1.0, 2.0]
    last = listener.end()
    assert isinstance(last, Finished)
    assert [metrics.decode_rate for metrics in (*last.metrics, total(last.metrics))] == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("call", ["allowed", "advance"])
def test_a_schema_that_cannot_be_followed_further_ends_its_request_alone(bench: Bench, call: str) -> None:
    class Stuck(CountingGrammar):
        def _work(self, now: str) -> None:
            if now == call and len(self.seen) == 2:
                raise RequestError("invalid_json_schema", "the schema cannot be followed here: too much work")

        def allowed(self) -> object:
            self._work("allowed")
            return super().allowed()

        def advance(self, token: int) -> None:
            self._work("advance")
            super().advance(token)

    listener = bench.submit(request("a", max_tokens=9, new_constraint=Stuck))
    assert listener.error_code() == "invalid_json_schema"
    assert len(listener.of(Deltas)) == 2
    assert bench.store.calls == ["begin", "end"]
    assert bench.engine.timeline == [*b"hello", *bench.samplers[0].picked[:2]]  # may be reused
    other = request("b")
    assert bench.submit(other).text() == expected_text(other)


@pytest.mark.parametrize("choices", [1, 2])
def test_a_sampler_that_cannot_be_made_costs_no_state(bench: Bench, choices: int) -> None:
    """Neither that of the conversation before, nor that of a request whose second choice it was for."""
    bench.submit(request("a", max_tokens=2)).text()
    make = bench.scheduler._ports.new_sampler

    def new_sampler(asked: GenerationRequest, choice: int) -> SamplerPort:
        if asked.id == "b" and choice == choices - 1:
            raise UsageError("sampling", "no such sampler")
        return make(asked, choice)

    bench.scheduler._ports = replace(bench.scheduler._ports, new_sampler=new_sampler)
    listener = bench.submit(request("b", choices=choices, max_tokens=2))
    assert listener.error_code() == "sampling"
    assert bench.store.calls == ["begin", "end"] * choices
    last = bench.submit(request("c", prompt="hello" + expected_text(request("a", max_tokens=1)) + "!"))
    last.text()
    assert last.of(Reading)[0].done > 0


@pytest.mark.parametrize("free", [True, False])
def test_a_spelled_stop_token_ends_only_free_replies(free: bool) -> None:
    """A value of a JSON object may hold any text; the client's own stop texts still count."""
    spelled = list(f"a{STOP_TEXT}b END c".encode())
    with Bench(scripts={"a": spelled}) as bench:
        constraint = {} if free else {"new_constraint": lambda: CountingGrammar(99)}
        listener = bench.submit(request("a", max_tokens=99, stops=("END",), **constraint))
        assert listener.text() == ("a" if free else f"a{STOP_TEXT}b ")
        assert reason(listener) is FinishReason.STOP


@pytest.mark.parametrize(("chunks", "decode_seconds"), [(1, 4.0), (5, 3.0)])
def test_a_pause_is_not_part_of_any_rate(chunks: int, decode_seconds: float) -> None:
    """A chunk takes a second; another request runs in the pause, so that everything has to be read again."""
    now = [0.0]
    with Bench(gated=True, clock=lambda: now[0]) as bench:

        def work() -> None:
            now[0] += 1.0
            bench.gate()

        bench.engine.work = work
        listener = bench.submit(request("a", prompt="x" * 256, max_tokens=5))
        other = bench.submit(request("b"))
        bench.gate.wait()
        bench.gate.step(chunks)
        bench.scheduler.pause("a", "")
        bench.gate.open()
        other.text()
        bench.scheduler.resume("a", "")
        listener.text()
    metrics = listener.of(ChoiceFinished)[0].metrics
    assert metrics.prefill_seconds == 4.0
    assert metrics.decode_seconds == decode_seconds  # one of four evaluations may be made by reading again


def test_a_paused_grammar_goes_on_where_it_was(gated: Bench) -> None:
    listener = gated.submit(request("a", max_tokens=9, new_constraint=CountingGrammar))
    gated.gate.wait()
    gated.gate.step(1)
    gated.scheduler.pause("a", "")
    gated.gate.open()
    listener.wait(Paused)
    gated.scheduler.resume("a", "")
    assert len(listener.text()) == 3


def test_one_that_waits_keeps_its_place_through_a_pause(gated: Bench) -> None:
    gated.submit(request("a"))
    listeners = {name: gated.submit(request(name)) for name in "bcd"}
    gated.gate.wait()
    gated.scheduler.pause("b", "")
    assert isinstance(listeners["b"].events[-1], Paused)
    assert positions(listeners["d"]) == [3, 2]
    gated.scheduler.resume("b", "")
    assert positions(listeners["b"]) == [1, 1]
    assert positions(listeners["d"]) == [3, 2, 3]
    gated.gate.open()
    for each in listeners.values():
        each.text()
    assert gated.run_order() == ["a", "b", "c", "d"]


def test_one_that_had_started_goes_on_before_those_that_had_not(gated: Bench) -> None:
    parked = gated.submit(request("a", max_tokens=20))
    listeners = [gated.submit(request(name)) for name in "bc"]
    gated.gate.wait()
    gated.scheduler.pause("a", "")
    gated.gate.step()
    assert gated.scheduler.state().running == "b"
    gated.scheduler.resume("a", "")
    assert positions(parked) == [1]
    assert positions(listeners[1]) == [2, 1, 2]
    gated.gate.open()
    for each in (parked, *listeners):
        each.text()
    assert gated.end_order() == ["b", "a", "c"]


def test_what_had_started_is_more_than_who_came_first(gated: Bench) -> None:
    """`b` came before `c`, but was paused before it began."""
    listeners = [gated.submit(request(name)) for name in "abc"]
    gated.gate.wait()
    gated.scheduler.pause("b", "")
    gated.scheduler.pause("a", "")
    gated.gate.step()
    gated.scheduler.pause("c", "")
    gated.submit(request("d"))
    gated.gate.step()
    assert gated.scheduler.state().running == "d"
    for name in "bc":
        gated.scheduler.resume(name, "")
    gated.gate.open()
    for each in listeners[1:]:
        each.text()
    assert gated.end_order() == ["d", "c", "b"]


def test_resumed_before_it_had_left_it_goes_on(gated: Bench) -> None:
    asked = request("a", prompt="z" * 400, max_tokens=6)
    listener = gated.submit(asked)
    gated.gate.wait()
    for _ in range(3):
        assert gated.scheduler.pause("a", "")
        assert gated.scheduler.resume("a", "")
    gated.gate.open()
    assert listener.text() == expected_text(asked)
    assert listener.of(Paused) == []


# -- deadlines --


def test_a_deadline_ends_a_request_that_waits() -> None:
    """The one that runs looks after those that wait, and goes on."""
    now = [0.0]
    with Bench(gated=True, clock=lambda: now[0]) as bench:
        bench.submit(request("a", max_tokens=50))
        waiting = bench.submit(request("b", deadline=10.0))
        bench.gate.wait()
        bench.gate.step()
        assert waiting.of(Failed) == []
        now[0] = 10.0
        bench.gate.step()
        assert waiting.error_code() == "deadline_exceeded"
        state = bench.scheduler.state()
        assert (state.running, state.waiting, state.failed) == ("a", 0, 1)


@pytest.mark.parametrize("chunks", [0, 4, 7])
def test_a_deadline_ends_a_request_that_runs(chunks: int) -> None:
    now = [0.0]
    with Bench(gated=True, clock=lambda: now[0]) as bench:
        listener = bench.submit(request("a", prompt="x" * 260, max_tokens=50, deadline=10.0))
        bench.gate.wait()
        bench.gate.step(chunks)
        said = len(bench.samplers[0].picked)
        now[0] = 10.0
        bench.gate.open()
        assert listener.error_code() == "deadline_exceeded"
        last = listener.end()
        assert isinstance(last, Failed)
        assert isinstance(last.error, RequestError)
        assert (last.error.status, last.error.kind) == (504, "timeout_error")
        assert len(bench.samplers[0].picked) <= said + 1
        assert bench.store.calls == ["begin", "end"]


@pytest.mark.parametrize("how", ["cancel", "pause", "deadline"])
def test_moving_conversations_gives_way_to_a_stop(how: str) -> None:
    """What the store does in `begin` may wait for a disk; a pause there is no end."""
    now = [0.0]
    with Bench(clock=lambda: now[0]) as bench:
        writing, stopped = threading.Event(), threading.Event()

        def begin(call: str) -> None:
            if call == "begin" and not stopped.is_set():
                writing.set()
                while not bench.store.is_stopped():
                    time.sleep(0.001)
                stopped.set()
                bench.store.current = None
                raise Cancelled("cancelled", "the engine was asked to stop")

        bench.store.fail = begin
        asked = request("a", deadline=10.0)
        listener = bench.submit(asked)
        assert writing.wait(20)
        if how == "deadline":
            now[0] = 11.0
            assert listener.error_code() == "deadline_exceeded"
        elif how == "cancel":
            assert bench.scheduler.cancel("a", "")
            assert listener.error_code() == "cancelled"
        else:
            assert bench.scheduler.pause("a", "")
            listener.wait(Paused)
            assert bench.scheduler.resume("a", "")
            assert listener.text() == expected_text(asked)
        assert "discard" not in bench.store.calls


def test_a_deadline_runs_on_while_a_request_is_paused(gated: Bench) -> None:
    """Nothing else wakes the thread."""
    listener = gated.submit(request("a", deadline=0.2))
    gated.gate.wait()
    gated.scheduler.pause("a", "")
    gated.gate.open()
    assert listener.error_code() == "deadline_exceeded"


# -- failures --


def test_an_engine_that_fails_costs_one_request(bench: Bench) -> None:
    crash = EngineCrash("engine-crashed", "bang")

    def fail() -> None:
        raise crash

    bench.engine.work = fail
    listener = bench.submit(request("a"))
    last = listener.end()
    assert isinstance(last, Failed)
    assert last.error is crash
    assert bench.store.calls == ["begin", "discard"]
    bench.engine.work = lambda: None
    asked = request("b")
    assert bench.submit(asked).text() == expected_text(asked)


@pytest.mark.parametrize("call", ["begin", "keep turn 2", "end"])
def test_whatever_fails_in_a_request_is_told_and_the_next_one_runs(bench: Bench, call: str) -> None:
    def fail(name: str) -> None:
        if name in (call, "discard"):
            raise ValueError(name)

    bench.store.fail = fail
    last = bench.submit(request("a", marks=(Mark(position=2, kind=MarkKind.TURN),))).end()
    assert isinstance(last, Failed)
    assert isinstance(last.error, InternalError)
    assert bench.store.calls[-1] == "discard"
    bench.store.fail = lambda _name: None
    asked = request("b", max_tokens=2)
    assert bench.submit(asked).text() == expected_text(asked)


def test_idle_work_that_fails_does_not_end_the_thread(bench: Bench) -> None:
    bench.store.fail = lambda name: math.sqrt(-1) if name == "idle" else None
    bench.submit(request("a")).text()
    bench.submit(request("b")).text()
    assert {type(error) for error in bench.upkeep_errors} == {ValueError}


def test_idle_work_is_done_when_it_asks_for_it(bench: Bench) -> None:
    bench.store.idle_seconds = 0.0
    bench.submit(request("a")).text()
    for _ in range(3):
        bench.store.idled.clear()
        assert bench.store.idled.wait(20)
    bench.store.idle_seconds = None


@pytest.mark.parametrize("kind", [Reading, Deltas, ChoiceFinished, Finished])
def test_a_receiver_that_raises_is_a_client_that_left(bench: Bench, kind: type[Event]) -> None:
    calls: list[Event] = []

    def sink(event: Event) -> None:
        calls.append(event)
        if isinstance(event, kind):
            raise ConnectionError("gone")

    bench.scheduler.submit(request("a", max_tokens=50), sink)
    asked = request("b")
    assert bench.submit(asked).text() == expected_text(asked)
    assert isinstance(calls[-1], kind)
    assert sum(isinstance(call, kind) for call in calls) == 1
    if kind in (Reading, Deltas):
        assert bench.scheduler.state().cancelled == 1
        assert len(bench.samplers[0].picked) <= 1


def test_a_receiver_that_raises_in_the_queue_leaves_it(gated: Bench) -> None:
    def sink(_event: Event) -> None:
        raise ConnectionError("gone")

    running = gated.submit(request("a"))
    gated.gate.wait()
    gated.scheduler.submit(request("b"), sink)
    assert gated.scheduler.state().waiting == 0
    gated.gate.open()
    running.text()


def test_a_receiver_may_call_back(gated: Bench) -> None:
    ended = threading.Event()

    def sink(event: Event) -> None:
        if isinstance(event, Queued):
            gated.scheduler.state()
            gated.scheduler.cancel("b", "")
        elif isinstance(event, Failed):
            ended.set()

    gated.submit(request("a"))
    gated.gate.wait()
    gated.scheduler.submit(request("b"), sink)
    assert ended.is_set()


# -- the end --


def test_a_drain_finishes_what_runs_and_waits_and_refuses_the_rest(gated: Bench) -> None:
    running, waiting, paused = (gated.submit(request(name)) for name in "abc")
    gated.gate.wait()
    gated.scheduler.pause("c", "")
    gated.scheduler.begin_drain()
    assert gated.scheduler.is_draining
    error = refusal(gated, "d")
    assert (error.slug, error.status) == ("shutting_down", 503)
    assert int(error.headers["Retry-After"]) >= 1
    gated.gate.open()
    gated.scheduler.close(drain=20)
    assert running.text() == waiting.text()
    assert paused.error_code() == "shutting_down"


def test_what_does_not_finish_in_time_is_ended_and_told(gated: Bench) -> None:
    listeners = [gated.submit(request(name, max_tokens=1000)) for name in "abc"]
    gated.gate.wait()
    closing = threading.Thread(target=gated.scheduler.close, kwargs={"drain": 0.0})
    closing.start()
    listeners[2].end()
    gated.gate.open()
    closing.join(20)
    assert not closing.is_alive()
    assert [each.error_code() for each in listeners] == ["shutting_down"] * 3
    assert gated.scheduler.state().cancelled == 3
    assert len(gated.samplers[0].picked) <= 1


def test_it_can_end_before_it_has_begun() -> None:
    with Bench(started=False) as bench:
        listener = bench.submit(request("a"))
        bench.scheduler.close(drain=0.0)
        assert listener.error_code() == "shutting_down"
