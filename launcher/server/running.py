"""One request on the engine, as a machine that does one step at a time: a slice of the prompt, or one token.

Between two steps nothing of the request is on the stack, so that the scheduler can stop it, or park it and let others
run. A parked request keeps its sampler, its reader and its grammar and the ids that it has generated; going on reads
the prompt and those ids again, which gives the engine bit for bit what it had.
"""

from __future__ import annotations

import secrets
from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from launcher.engine_types import Logits
from launcher.errors import Cancelled, ContextFull
from launcher.generate import PREFILL_SLICE
from launcher.server.events import (
    CacheSource,
    ChoiceFinished,
    Delta,
    Deltas,
    Event,
    FinishReason,
    Metrics,
    Reading,
    TokenLogprob,
)
from launcher.server.reply_reader import ReplyReader
from launcher.server.request import Constraint, GenerationRequest
from launcher.server.run_ports import Phase, Ports, SamplerPort, StreamPort
from launcher.server.thinking_limit import ThinkingLimit

# Seconds between two `Reading` events.
_READING_INTERVAL: Final = 0.2


@dataclass(slots=True, kw_only=True)
class _Choice:
    """One reply, from its first token to its end; times in seconds."""

    index: int
    sampler: SamplerPort
    stream: StreamPort
    reader: ReplyReader
    limit: ThinkingLimit
    constraint: Constraint | None
    generated: list[int] = field(default_factory=list)
    unread: int | None = None  # the token that the engine has not consumed; it does so when another one is needed
    reasoning: int = 0
    cached: int | None = None
    source: CacheSource = CacheSource.NONE
    reading_since: float | None = None  # when it first began to read the prompt, on the clock of the ports
    prefilled: int = 0  # prompt tokens that were read at some time, the reused ones included
    prefill_seconds: float = 0.0
    decode_seconds: float = 0.0
    first_seconds: float = 0.0


class Run:
    """A request that has been started. Only the generation thread uses it."""

    def __init__(
        self,
        ports: Ports,
        request: GenerationRequest,
        *,
        accepted: float,
        send: Callable[[Event], None],
        is_stopped: Callable[[], bool],
        is_thinking_ended: Callable[[], bool],
    ) -> None:
        """Args:
        ports: what it runs on.
        request: what is asked for.
        accepted: when it was accepted, on the clock of `ports`.
        send: takes its events; must not raise.
        is_stopped: whether it should leave the engine; asked where a step may take long without the engine.
        is_thinking_ended: whether its replies are to think no more.
        """
        self._ports = ports
        self._request = request
        self._accepted = accepted
        self._send = send
        self._is_stopped = is_stopped
        self._is_thinking_ended = is_thinking_ended
        self._queue_seconds = ports.clock() - accepted
        self._marks = {mark.position: mark.kind for mark in request.marks}
        self._places = sorted(self._marks)
        self._choice = self._new_choice(0)
        self._open = False
        self._begun: object = None
        self._ids: tuple[int, ...] = ()
        self._phase = Phase.READING
        self._next_reading = 0.0
        self._metrics: list[Metrics] = []

    @property
    def is_open(self) -> bool:
        """Whether the engine holds its state, or something in between."""
        return self._open

    @property
    def phase(self) -> Phase:
        """Reading or writing; may be asked from any thread."""
        return self._phase

    @property
    def choice(self) -> int:
        """The choice that is being made; may be asked from any thread."""
        return self._choice.index

    @property
    def generated(self) -> int:
        """Tokens of that choice; may be asked from any thread."""
        return len(self._choice.generated)

    @property
    def metrics(self) -> tuple[Metrics, ...]:
        """Of every choice that is complete."""
        return tuple(self._metrics)

    def step(self) -> bool:
        """Goes on by one step; returns whether all choices are complete.

        Raises:
            Cancelled: the engine was asked to stop. Another call goes on where this one stopped.
        """
        if not self._open:
            self._begin()
            return False
        if self._ports.engine.position < len(self._ids):
            self._read()
            return False
        self._phase = Phase.WRITING
        return self._write()

    def park(self) -> None:
        """Leaves the engine to others; the next step comes back to it."""
        if self._open:
            self._ports.store.end()
            self._open = False

    def close(self) -> None:
        """Frees what it holds of the engine. There is no step afterwards."""
        self._choice.sampler.close()

    def progress(self) -> Metrics:
        """How the choice goes so far."""
        choice = self._choice
        return Metrics(
            prompt=len(self._request.prompt),
            cached=choice.cached or 0,
            cache_source=choice.source,
            generated=len(choice.generated),
            reasoning=choice.reasoning,
            queue_seconds=self._queue_seconds,
            prefill_seconds=choice.prefill_seconds,
            decode_seconds=choice.decode_seconds,
            first_seconds=choice.first_seconds,
        )

    def _new_choice(self, index: int) -> _Choice:
        request, ports = self._request, self._ports
        # Under a grammar a value may hold any text; what may not spell a stop text is part of the grammar.
        spelled_stops_count = not request.ignore_eos and request.new_constraint is None
        stops = (*ports.stop_texts, *request.stops) if spelled_stops_count else request.stops
        reader = ReplyReader(
            style=request.style,
            reasoning=request.reasoning,
            tools=request.tools,
            parallel_calls=request.parallel_calls,
            text_or_calls=request.text_or_calls,
            stops=stops,
            new_call_id=_new_call_id,
        )
        return _Choice(
            index=index,
            stream=ports.new_stream(),
            reader=reader,
            limit=ThinkingLimit(
                budget=request.thinking_budget, end=request.thinking_end, is_ended=self._is_thinking_ended
            ),
            constraint=None if request.new_constraint is None else request.new_constraint(),
            sampler=ports.new_sampler(request, index),  # last: it has to be closed
        )

    def _begin(self) -> None:
        request, choice = self._request, self._choice
        self._ids = (*request.prompt, *choice.generated)
        self._open = True
        self._phase = Phase.READING
        if choice.reading_since is None:
            choice.reading_since = self._ports.clock()
        try:
            begun = self._ports.store.begin(
                owner=request.owner,
                name=request.session,
                ids=self._ids,
                is_stopped=self._is_stopped,
                before=self._begun,
            )
        except Cancelled:
            self._open = False
            raise
        self._begun = begun
        choice.unread = None  # it is one of the ids that are read now
        if choice.cached is None:
            choice.cached = choice.prefilled = begun.reused
            choice.source = begun.source
            self._ports.totals.cached += begun.reused
        self._tell_reading(self._ports.clock())

    def _read(self) -> None:
        """Reads to the next mark or the end of a slice, whichever is nearer."""
        choice, ports, ids = self._choice, self._ports, self._ids
        first = ports.engine.position
        place = bisect_right(self._places, first)
        limits = [first + PREFILL_SLICE, len(ids), *self._places[place : place + 1]]
        if first < choice.prefilled:
            limits.append(choice.prefilled)
        stop = min(limits)
        start = ports.clock()
        try:
            ports.engine.eval(ids[first:stop], mode=Logits.LAST if stop == len(ids) else Logits.NONE)
        finally:
            now = ports.clock()
            done = ports.engine.position
            ports.totals.prefilled += done - first
            if choice.prefilled < done and choice.prefilled < len(self._request.prompt):
                # What is read again after a pause is not part of reading the prompt.
                choice.prefilled = done
                choice.prefill_seconds += now - start
        if stop in self._marks:
            ports.store.keep(self._marks[stop])
        if now >= self._next_reading or done == len(ids):
            self._tell_reading(now)

    def _tell_reading(self, now: float) -> None:
        """How far the prompt is read. What a pause makes the engine read again was read before, so it is told as that;
        and where the reply has begun, nothing of the prompt is left to tell."""
        choice = self._choice
        if choice.generated:
            return
        self._next_reading = now + _READING_INTERVAL
        self._send(
            Reading(
                done=choice.prefilled,
                total=len(self._ids),
                cached=choice.cached or 0,
                seconds=0.0 if choice.reading_since is None else now - choice.reading_since,
                choice=choice.index,
            )
        )

    def _write(self) -> bool:
        """One more token, and the end of the choice if it is the last."""
        choice, ports = self._choice, self._ports
        start = ports.clock()
        if choice.unread is not None:
            try:
                ports.engine.eval((choice.unread,), mode=Logits.LAST)
            except ContextFull:
                return self._finish(FinishReason.LENGTH, ())
            choice.unread = None
        forced = choice.limit.next_token(thinking=choice.reader.reasoning, thought=choice.reasoning)
        if forced is not None:
            if len(self._request.thinking_end) == 1:  # a model that is cut may go on thinking and close it once more
                choice.sampler.bar(forced)
            deltas = self._take(forced, picked=False)
        else:
            constraint = choice.constraint
            token = choice.sampler.pick(len(choice.generated), None if constraint is None else constraint.allowed())
            # Where a grammar allows a stop token there is nothing else that it asks for.
            if token in ports.stop_ids and (constraint is not None or not self._request.ignore_eos):
                return self._finish(FinishReason.STOP, ())
            deltas = self._take(token, picked=True)
        if len(choice.generated) > 1:  # the first one's evaluation was the prompt's
            choice.decode_seconds += ports.clock() - start
        reason = self._end_reason()
        if reason is not None:
            return self._finish(reason, deltas)
        if deltas:
            self._send(Deltas(choice=choice.index, deltas=deltas, metrics=self.progress()))
        return False

    def _take(self, token: int, *, picked: bool) -> tuple[Delta, ...]:
        """Counts and reads a token that is part of the reply, whether it was picked or had to come."""
        choice, ports, request = self._choice, self._ports, self._request
        choice.generated.append(token)
        choice.unread = token
        ports.totals.generated += 1
        if choice.reader.reasoning and not choice.limit.has_closed:
            choice.reasoning += 1
        if len(choice.generated) == 1:
            choice.first_seconds = ports.clock() - self._accepted
        if choice.constraint is not None:
            choice.constraint.advance(token)
        data = ports.text.token_bytes(token)
        choice.limit.follow(data)
        text = choice.stream.push(data)
        if request.logprobs is None or not picked:
            return choice.reader.push(text) if text else ()
        logprob, top = choice.sampler.log_probabilities(token, request.logprobs)
        return choice.reader.push(text, TokenLogprob(token=token, logprob=logprob, top=top))

    def _end_reason(self) -> FinishReason | None:
        """Why the reply ends after the token that was just taken; None where it goes on."""
        choice, request = self._choice, self._request
        if choice.reader.stopped or (choice.constraint is not None and choice.constraint.is_finished):
            return FinishReason.STOP
        length = len(choice.generated)
        if length >= request.max_tokens or len(request.prompt) + length > self._ports.engine.context:
            return FinishReason.LENGTH
        return None

    def _finish(self, reason: FinishReason, deltas: tuple[Delta, ...]) -> bool:
        choice = self._choice
        rest = choice.stream.finish()
        if rest and not choice.reader.stopped:
            deltas += choice.reader.push(rest)
        deltas += choice.reader.finish()
        if reason is FinishReason.STOP and choice.reader.called and not choice.reader.is_cut:
            reason = FinishReason.TOOL_CALLS
        metrics = self.progress()
        self._metrics.append(metrics)
        if deltas:
            self._send(Deltas(choice=choice.index, deltas=deltas, metrics=metrics))
        self._send(ChoiceFinished(choice=choice.index, reason=reason, metrics=metrics))
        self.park()
        choice.sampler.close()
        if choice.index + 1 == self._request.choices:
            return True
        self._choice = self._new_choice(choice.index + 1)
        return False


def _new_call_id() -> str:
    return f"call_{secrets.token_hex(12)}"
