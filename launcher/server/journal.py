"""What is noted of every request, in the log and in the metrics. Never a word of it, unless `--log-prompts`."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Final

from launcher.errors import Cancelled, RequestError
from launcher.event_log import EventLog
from launcher.server.events import (
    ChoiceFinished,
    Content,
    Delta,
    Deltas,
    Event,
    Failed,
    Metrics,
    Reasoning,
    ToolCallArguments,
    ToolCallStart,
)
from launcher.server.ports import Call
from launcher.server.prometheus import ServerMetrics

_DIGITS: Final = 12


class Journal:
    """Notes requests. The log is written in a thread of its own, because a disk may take its time."""

    def __init__(self, log: EventLog, metrics: ServerMetrics, *, prompts: bool) -> None:
        """Args:
        log: where lines go; written to by this object alone from now on.
        metrics: what is counted.
        prompts: whether prompts and replies are logged.
        """
        self._log = log
        self.metrics = metrics
        self.prompts = prompts
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="log")

    def write(self, event: str, facts: Mapping[str, object]) -> None:
        """One line of the log."""
        self._writer.submit(self._log.write, event, dict(facts))

    def refused(self, route: str, status: int, code: str, detail: str | None) -> None:
        """A request that was answered with an error before any work; `detail` is what the client was not told."""
        known = {} if detail is None else {"detail": detail}
        self.write("refused", {"route": route, "status": status, "code": code, **known})

    def close(self) -> None:
        """Waits until everything is written."""
        self._writer.shutdown()


@dataclass(slots=True, kw_only=True)
class _Said:
    """The text of one choice in the pieces that it came in; `calls` by index, each begins with its name."""

    reasoning: list[str] = field(default_factory=list)
    content: list[str] = field(default_factory=list)
    calls: dict[int, list[str]] = field(default_factory=dict)

    def add(self, delta: Delta) -> None:
        if isinstance(delta, Reasoning):
            self.reasoning.append(delta.text)
        elif isinstance(delta, Content):
            self.content.append(delta.text)
        elif isinstance(delta, ToolCallStart):
            self.calls[delta.index] = [delta.name]
        elif isinstance(delta, ToolCallArguments):
            self.calls[delta.index].append(delta.text)

    def facts(self) -> dict[str, object]:
        calls = [{"name": name, "arguments": "".join(texts)} for name, *texts in self.calls.values()]
        return {"reasoning": "".join(self.reasoning), "content": "".join(self.content), "tool_calls": calls}


class Entry:
    """What is noted of one request for text."""

    def __init__(
        self, journal: Journal, route: str, call: Call, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._journal = journal
        self._route = route
        self._call = call
        self._clock = clock
        self._start = clock()
        self._metrics: dict[int, Metrics] = {}
        self._finish: list[str] = []
        self._error: str | None = None
        self._detail: str | None = None
        self._said: dict[int, _Said] = {}

    def observe(self, event: Event) -> None:
        """Takes note of an event."""
        if isinstance(event, Deltas):
            self._metrics[event.choice] = event.metrics
            if self._journal.prompts:
                said = self._said.setdefault(event.choice, _Said())
                for delta in event.deltas:
                    said.add(delta)
        elif isinstance(event, ChoiceFinished):
            self._metrics[event.choice] = event.metrics
            self._finish.append(event.reason.value)
        elif isinstance(event, Failed):
            self._error = event.error.slug
            if not isinstance(event.error, RequestError | Cancelled):
                self._detail = event.error.message

    def close(self, status: int, *, gone: bool) -> None:
        """Writes the line."""
        seconds = self._clock() - self._start
        choices = tuple(self._metrics[index] for index in sorted(self._metrics))
        self._journal.metrics.generated(self._route, choices, seconds, gone=gone)
        request = self._call.request
        facts: dict[str, object] = {
            "id": request.id,
            "route": self._route,
            "status": status,
            "stream": self._call.stream,
            "session": session_digest(request.owner, request.session),
            "prompt_tokens": len(request.prompt),
            "choices": [_choice_facts(choice) for choice in choices],
            "seconds": round(seconds, 6),
            "finish": self._finish,
            "error": self._error,
            "client_gone": gone,
        }
        if self._detail is not None:
            facts["detail"] = self._detail
        if self._journal.prompts:
            replies = [self._said[choice].facts() for choice in sorted(self._said)]
            facts |= {"prompt": self._call.prompt_text, "replies": replies}
        self._journal.write("request", facts)


def session_digest(owner: str, session: str | None) -> str | None:
    """A name for a session that does not tell what the client calls it."""
    if session is None:
        return None
    return hashlib.sha256(f"{owner}\0{session}".encode(errors="surrogatepass")).hexdigest()[:_DIGITS]


def _choice_facts(metrics: Metrics) -> dict[str, object]:
    return {
        "cached_tokens": metrics.cached,
        "cache_source": metrics.cache_source.value,
        "generated_tokens": metrics.generated,
        "reasoning_tokens": metrics.reasoning,
        "queue_seconds": round(metrics.queue_seconds, 6),
        "ttft_seconds": round(metrics.first_seconds, 6),
        "prefill_tokens_per_second": round(metrics.prefill_rate, 3),
        "decode_tokens_per_second": round(metrics.decode_rate, 3),
    }
