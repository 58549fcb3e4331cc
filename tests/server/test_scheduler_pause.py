"""A request that answers otherwise after a pause, loses its place, or counts what the pause cost as its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from launcher.errors import RequestError, UsageError
from launcher.server.events import (
    ChoiceFinished,
    Deltas,
    Finished,
    FinishReason,
    Paused,
    Queued,
    Reading,
)
from launcher.server.protocol.parts import total
from launcher.server.request import GenerationRequest
from launcher.server.run_ports import SamplerPort
from tests.support.fake_generation import STOP, STOP_TEXT, Bench, CountingGrammar, Listener, expected_text, request


def positions(listener: Listener) -> list[int]:
    return [event.position for event in listener.of(Queued)]


def reason(listener: Listener, choice: int = 0) -> FinishReason:
    listener.end()
    return listener.of(ChoiceFinished)[choice].reason


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
    told = listener.of(Deltas)
    before = len(listener.events)
    state = gated.scheduler.state()
    assert (state.running, state.paused) == (None, 1)
    assert gated.scheduler.resume("a", "")
    assert [listener.text(0), listener.text(1)] == [expected_text(asked, 0), expected_text(asked, 1)]
    # What a pause makes the engine read again while it writes is nothing of the prompt.
    assert isinstance(listener.events[before], Deltas if told else Reading)
    metrics = listener.of(ChoiceFinished)[0].metrics
    assert (metrics.generated, metrics.cached) == (10, 0)


def test_the_store_is_told_what_it_had_begun_for_a_request_that_comes_back(gated: Bench) -> None:
    """It knows what became of the session meanwhile."""
    listener = gated.submit(request("a", prompt="y" * 300, max_tokens=10, choices=2))
    other = gated.submit(request("b"))
    gated.gate.wait()
    gated.gate.step(6)
    gated.scheduler.pause("a", "")
    gated.gate.open()
    other.end()
    gated.scheduler.resume("a", "")
    listener.end()
    first, between, again, _ = gated.store.begun
    assert gated.store.before == [None, None, first, again]
    assert between is not first


@pytest.mark.parametrize("chunks", [2, 4, 6, 9])
def test_progress_through_the_prompt_does_not_go_back_or_begin_again(gated: Bench, chunks: int) -> None:
    """A first request leaves something to reuse; one in between takes the engine in the pause, with all it has."""
    prompt = "y" * 300
    before = gated.submit(request("a", prompt=prompt[:100], max_tokens=1))
    gated.gate.step(2)
    before.end()
    asked = gated.submit(request("b", prompt=prompt, max_tokens=10))
    other = gated.submit(request("c", prompt="other"))
    gated.gate.wait()
    gated.gate.step(chunks)
    assert gated.scheduler.pause("b", "")
    gated.gate.open()
    other.end()
    assert gated.scheduler.resume("b", "")
    asked.end()
    told = asked.of(Reading)
    assert {(each.total, each.cached) for each in told} == {(300, told[0].done)}
    for name in ("done", "seconds"):
        values = [getattr(each, name) for each in told]
        assert values == sorted(values)
    assert told[-1].done == 300
    written = [isinstance(event, Deltas) for event in asked.events if isinstance(event, Deltas | Reading)]
    assert written == sorted(written)


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
