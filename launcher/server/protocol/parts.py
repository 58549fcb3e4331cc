"""What all replies have in common: metrics, usage, the texts of tokens, and the frame of a chunk."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec
from msgspec import UNSET

from launcher.server.events import FinishReason, Metrics, Reading, TokenLogprob
from launcher.server.protocol.shapes import (
    CompletionDetails,
    FinishWord,
    MetricsShape,
    PromptDetails,
    PromptProgress,
    Timings,
    TokenShape,
    TopToken,
    Usage,
)

encode: Final = msgspec.json.Encoder().encode

# JSON has no infinity; OpenAI writes this for what cannot come.
LOWEST_LOGPROB: Final = -9999.0

FINISH_WORDS: Final[dict[FinishReason, FinishWord]] = {
    FinishReason.STOP: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
}


class Named(Protocol):
    """What replies say about the model; `launcher.server.served.ServedModel` is one."""

    @property
    def id(self) -> str: ...

    @property
    def fingerprint(self) -> str: ...

    @property
    def text(self) -> TokenBytes: ...


class TokenBytes(Protocol):
    """Where the bytes of a token come from."""

    def token_bytes(self, token: int) -> bytes: ...


def metrics_shape(metrics: Metrics) -> MetricsShape:
    """The metrics as clients get them."""
    return MetricsShape(
        ttft_seconds=round(metrics.first_seconds, 6),
        queue_seconds=round(metrics.queue_seconds, 6),
        prefill_tokens_per_second=round(metrics.prefill_rate, 3),
        decode_tokens_per_second=round(metrics.decode_rate, 3),
        prompt_tokens=metrics.prompt,
        cached_tokens=metrics.cached,
        cache_source=metrics.cache_source.value,
        generated_tokens=metrics.generated,
        drafted_tokens=metrics.drafted,
        accepted_tokens=metrics.accepted,
    )


def timings_of(metrics: Metrics) -> Timings:
    """The same as llama-server's clients know it."""
    was_drafted = metrics.drafted > 0
    return Timings(
        cache_n=metrics.cached,
        prompt_n=metrics.prompt - metrics.cached,
        prompt_ms=round(1000 * metrics.prefill_seconds, 3),
        prompt_per_token_ms=_milliseconds(metrics.prefill_rate),
        prompt_per_second=round(metrics.prefill_rate, 3),
        predicted_n=metrics.generated,
        predicted_ms=round(1000 * metrics.decode_seconds, 3),
        predicted_per_token_ms=_milliseconds(metrics.decode_rate),
        predicted_per_second=round(metrics.decode_rate, 3),
        draft_n=metrics.drafted if was_drafted else UNSET,
        draft_n_accepted=metrics.accepted if was_drafted else UNSET,
    )


def _milliseconds(rate: float) -> float:
    return round(1000 / rate, 3) if rate > 0 else 0.0


def _progress(reading: Reading) -> PromptProgress:
    """The progress as clients get it."""
    return PromptProgress(
        total=reading.total, cache=reading.cached, processed=reading.done, time_ms=round(1000 * reading.seconds)
    )


def total(metrics: Sequence[Metrics]) -> Metrics:
    """All choices as one: the prompt is that of the first, which the others found in the cache."""
    if not metrics:
        return Metrics()
    first = metrics[0]
    return Metrics(
        prompt=first.prompt,
        cached=first.cached,
        cache_source=first.cache_source,
        generated=sum(each.generated for each in metrics),
        reasoning=sum(each.reasoning for each in metrics),
        queue_seconds=first.queue_seconds,
        prefill_seconds=first.prefill_seconds,
        decode_seconds=sum(each.decode_seconds for each in metrics),
        first_seconds=first.first_seconds,
        drafted=sum(each.drafted for each in metrics),
        accepted=sum(each.accepted for each in metrics),
        choices=sum(each.generated > 0 for each in metrics),
    )


def usage_of(metrics: Metrics) -> Usage:
    """The counts of a reply."""
    return Usage(
        prompt_tokens=metrics.prompt,
        completion_tokens=metrics.generated,
        total_tokens=metrics.prompt + metrics.generated,
        prompt_tokens_details=PromptDetails(cached_tokens=metrics.cached),
        completion_tokens_details=CompletionDetails(reasoning_tokens=metrics.reasoning),
    )


class TokenTexts:
    """Tokens as logprobs show them; each is looked up once."""

    def __init__(self, text: TokenBytes) -> None:
        self._text = text
        self._known: dict[int, tuple[str, list[int]]] = {}

    def of(self, token: int) -> tuple[str, list[int]]:
        """The token's text, with U+FFFD for what is no UTF-8, and its bytes."""
        known = self._known.get(token)
        if known is None:
            data = self._text.token_bytes(token)
            known = self._known[token] = (data.decode(errors="replace"), list(data))
        return known

    def shapes(self, logprobs: Sequence[TokenLogprob]) -> list[TokenShape]:
        """Entries of `logprobs.content`."""
        return [self._shape(each) for each in logprobs]

    def _shape(self, each: TokenLogprob) -> TokenShape:
        text, data = self.of(each.token)
        top = [self._top(token, logprob) for token, logprob in each.top]
        return TokenShape(token=text, bytes=data, logprob=finite(each.logprob), top_logprobs=top)

    def _top(self, token: int, logprob: float) -> TopToken:
        text, data = self.of(token)
        return TopToken(token=text, bytes=data, logprob=finite(logprob))


def finite(logprob: float) -> float:
    """The log-probability as JSON can say it."""
    return max(logprob, LOWEST_LOGPROB)


class Frame:
    """The bytes around the choice of every chunk of one stream, made once: a chunk then costs one join."""

    def __init__(
        self, *, id: str, session: str | None, seed: int, kind: str, created: int, model: Named, include_usage: bool
    ) -> None:
        head = encode(
            {
                "id": id,
                "object": kind,
                "created": created,
                "model": model.id,
                "system_fingerprint": model.fingerprint,
                "seed": seed,
                "request_id": id,
            }
            | ({} if session is None else {"session_id": session})
        )
        self._head = head[:-1] + b',"choices":['
        self._tail = b'],"usage":null' if include_usage else b"]"

    def chunk(self, choice: bytes, metrics: bytes | None) -> bytes:
        """A chunk with this choice."""
        if metrics is None:
            return b"".join((self._head, choice, self._tail, b"}"))
        return b"".join((self._head, choice, self._tail, b',"mindnano_metrics":', metrics, b"}"))

    def last(self, choice: bytes, metrics: Metrics) -> bytes:
        """The chunk that ends this choice."""
        return b"".join((self._head, choice, self._tail, *_account(metrics)))

    def progress(self, choice: bytes, reading: Reading) -> bytes:
        """A chunk with this choice, which is empty, and how far its prompt is read."""
        return b"".join((self._head, choice, self._tail, b',"prompt_progress":', encode(_progress(reading)), b"}"))

    def usage(self, metrics: Metrics) -> bytes:
        """The chunk without choices that has the counts."""
        return b"".join((self._head, b'],"usage":', encode(usage_of(metrics)), *_account(metrics)))


def _account(metrics: Metrics) -> tuple[bytes, ...]:
    """The end of a chunk that says how all of it went."""
    told = (encode(metrics_shape(metrics)), encode(timings_of(metrics)))
    return b',"mindnano_metrics":', told[0], b',"timings":', told[1], b"}"
