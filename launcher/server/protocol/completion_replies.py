"""Events to text completions, streamed or not, in the format that came before chats."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from launcher.errors import InternalError
from launcher.server.events import (
    ChoiceFinished,
    Content,
    Deltas,
    Event,
    Failed,
    Finished,
    FinishReason,
    Metrics,
    TokenLogprob,
)
from launcher.server.protocol.errors import error_body
from launcher.server.protocol.parts import (
    FINISH_WORDS,
    Frame,
    Named,
    TokenTexts,
    encode,
    finite,
    metrics_shape,
    total,
    usage_of,
)
from launcher.server.protocol.shapes import Completion, TextChoice, TextLogprobs
from launcher.server.request import GenerationRequest


def _legacy(texts: TokenTexts, logprobs: Sequence[TokenLogprob], start: int) -> tuple[TextLogprobs, int]:
    """The log-probabilities in the old format, and where the next token begins, in characters."""
    tokens, offsets = [], []
    for each in logprobs:
        text = texts.of(each.token)[0]
        tokens.append(text)
        offsets.append(start)
        start += len(text)
    shape = TextLogprobs(
        tokens=tokens,
        token_logprobs=[finite(each.logprob) for each in logprobs],
        top_logprobs=[_likeliest(texts, each) for each in logprobs],
        text_offset=offsets,
    )
    return shape, start


def _likeliest(texts: TokenTexts, each: TokenLogprob) -> dict[str, float]:
    # Different tokens may show as the same text; the likelier one, which comes first, stays.
    likeliest: dict[str, float] = {}
    for token, logprob in each.top:
        likeliest.setdefault(texts.of(token)[0], finite(logprob))
    return likeliest


class CompletionStream:
    """Writes the `data:` texts of a streamed completion; `[DONE]` is for the one who sends them."""

    def __init__(
        self,
        model: Named,
        request: GenerationRequest,
        *,
        include_usage: bool = False,
        echo: str = "",
        created: int | None = None,
    ) -> None:
        """`echo` is the prompt where the client wants it back; `created` in seconds since 1970, None for now."""
        self._frame = Frame(
            id=request.id,
            kind="text_completion",
            created=int(time.time()) if created is None else created,
            model=model,
            include_usage=include_usage,
        )
        self._include_usage = include_usage
        self._with_logprobs = request.logprobs is not None
        self._texts = TokenTexts(model.text)
        self._echo = echo
        self._offsets: dict[int, int] = {}

    def write(self, event: Event) -> Sequence[bytes]:
        """The chunks that this event makes, each one JSON text; a failure makes an error object."""
        if isinstance(event, Deltas):
            chunks = self._begin(event.choice)
            metrics = encode(metrics_shape(event.metrics))
            for delta in event.deltas:
                if isinstance(delta, Content):
                    choice = _choice(event.choice, delta.text, self._logprobs(event.choice, delta), b"null")
                    chunks.append(self._frame.chunk(choice, metrics))
            return chunks
        if isinstance(event, ChoiceFinished):
            chunks = self._begin(event.choice)
            choice = _choice(event.choice, "", b"null", encode(FINISH_WORDS[event.reason]))
            chunks.append(self._frame.chunk(choice, encode(metrics_shape(event.metrics))))
            return chunks
        if isinstance(event, Finished):
            return [self._frame.usage(total(event.metrics))] if self._include_usage else []
        if isinstance(event, Failed):
            return [error_body(event.error)[2]]
        return []

    def _begin(self, choice: int) -> list[bytes]:
        if choice in self._offsets:
            return []
        self._offsets[choice] = len(self._echo)
        return [self._frame.chunk(_choice(choice, self._echo, b"null", b"null"), None)] if self._echo else []

    def _logprobs(self, choice: int, delta: Content) -> bytes:
        if not self._with_logprobs:
            return b"null"
        shape, self._offsets[choice] = _legacy(self._texts, delta.logprobs, self._offsets[choice])
        return encode(shape)


def _choice(index: int, text: str, logprobs: bytes, reason: bytes) -> bytes:
    return b'{"text":%b,"index":%d,"logprobs":%b,"finish_reason":%b}' % (encode(text), index, logprobs, reason)


@dataclass(slots=True, kw_only=True)
class _Choice:
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    reason: FinishReason = FinishReason.STOP


class CompletionReply:
    """Collects the events of a completion and makes one document of them."""

    def __init__(self, model: Named, request: GenerationRequest, *, echo: str = "", created: int | None = None) -> None:
        """`echo` is the prompt where the client wants it back; `created` in seconds since 1970, None for now."""
        self._model = model
        self._request = request
        self._echo = echo
        self._created = int(time.time()) if created is None else created
        self._choices: dict[int, _Choice] = {}
        self._metrics: tuple[Metrics, ...] | None = None

    def add(self, event: Event) -> None:
        """Takes the next event.

        Raises:
            MindnanoError: the request failed; this is why.
        """
        if isinstance(event, Deltas):
            choice = self._choices.setdefault(event.choice, _Choice())
            for delta in event.deltas:
                if isinstance(delta, Content):
                    choice.texts.append(delta.text)
                    choice.logprobs += delta.logprobs
        elif isinstance(event, ChoiceFinished):
            self._choices.setdefault(event.choice, _Choice()).reason = event.reason
        elif isinstance(event, Finished):
            self._metrics = event.metrics
        elif isinstance(event, Failed):
            raise event.error

    def document(self) -> bytes:
        """The JSON of the reply, after `Finished`.

        Raises:
            InternalError: the reply is not complete.
        """
        if self._metrics is None:
            raise InternalError("internal", "a reply was written before it was complete")
        metrics = total(self._metrics)
        return encode(
            Completion(
                id=self._request.id,
                created=self._created,
                model=self._model.id,
                system_fingerprint=self._model.fingerprint,
                choices=self._written(),
                usage=usage_of(metrics),
                request_id=self._request.id,
                mindnano_metrics=metrics_shape(metrics),
            )
        )

    def _written(self) -> list[TextChoice]:
        texts = TokenTexts(self._model.text)
        wanted = self._request.logprobs is not None
        return [
            TextChoice(
                text=self._echo + "".join(choice.texts),
                index=index,
                logprobs=_legacy(texts, choice.logprobs, len(self._echo))[0] if wanted else None,
                finish_reason=FINISH_WORDS[choice.reason],
            )
            for index, choice in sorted(self._choices.items())
        ]
