"""What streams of chunks and whole documents do alike, whether they are chats or completions."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from msgspec import UNSET, Struct

from launcher.errors import InternalError
from launcher.server.events import (
    ChoiceFinished,
    Delta,
    Deltas,
    Event,
    Failed,
    Finished,
    FinishReason,
    Metrics,
    Reading,
)
from launcher.server.protocol.errors import error_body
from launcher.server.protocol.parts import (
    FINISH_WORDS,
    Frame,
    Named,
    TokenTexts,
    encode,
    metrics_shape,
    timings_of,
    total,
    usage_of,
)
from launcher.server.request import GenerationRequest


class ChunkStream(ABC):
    """Writes the `data:` texts of a stream; `[DONE]` is for the one who sends them."""

    def __init__(
        self,
        model: Named,
        request: GenerationRequest,
        *,
        kind: str,
        include_usage: bool,
        return_progress: bool,
        created: int | None,
    ) -> None:
        """`kind` is the `object` of a chunk; `created` in seconds since 1970, None for now."""
        self._frame = Frame(
            id=request.id,
            session=request.session,
            seed=request.sampling.seed,
            kind=kind,
            created=_created(created),
            model=model,
            include_usage=include_usage,
        )
        self._include_usage = include_usage
        self._return_progress = return_progress
        self._with_logprobs = request.logprobs is not None
        self._texts = TokenTexts(model.text)

    def write(self, event: Event) -> Sequence[bytes]:
        """The chunks that this event makes, each one JSON text; a failure makes an error object."""
        if isinstance(event, Deltas):
            metrics = encode(metrics_shape(event.metrics))
            choices = (self._choice(event.choice, delta) for delta in event.deltas)
            chunks = self._begin(event.choice)
            return chunks + [self._frame.chunk(choice, metrics) for choice in choices if choice is not None]
        if isinstance(event, Reading) and self._return_progress:
            return [*self._begin(event.choice), self._frame.progress(self._empty(event.choice), event)]
        if isinstance(event, ChoiceFinished):
            last = self._last(event.choice, encode(FINISH_WORDS[event.reason]))
            return [*self._begin(event.choice), self._frame.last(last, event.metrics)]
        if isinstance(event, Finished):
            return [self._frame.usage(total(event.metrics))] if self._include_usage else []
        if isinstance(event, Failed):
            return [error_body(event.error)[2]]
        return []

    @abstractmethod
    def _begin(self, choice: int) -> list[bytes]:
        """The chunks before anything else of a choice; none from the second time on."""

    @abstractmethod
    def _choice(self, choice: int, delta: Delta) -> bytes | None:
        """The entry of `choices` for more of a choice; None where this kind of reply has no such thing."""

    @abstractmethod
    def _empty(self, choice: int) -> bytes:
        """The entry of `choices` for nothing more of a choice."""

    @abstractmethod
    def _last(self, choice: int, reason: bytes) -> bytes:
        """The entry of `choices` that ends a choice."""


class Gathered(Protocol):
    """What has come of one choice."""

    reason: FinishReason

    def add(self, delta: Delta) -> None: ...


C = TypeVar("C", bound=Gathered)


class WholeReply(ABC, Generic[C]):
    """Collects the events of a reply and makes one document of them."""

    def __init__(
        self,
        model: Named,
        request: GenerationRequest,
        *,
        new_choice: Callable[[], C],
        shape: Callable[..., Struct],
        created: int | None,
    ) -> None:
        """`shape` makes the document; `created` in seconds since 1970, None for now."""
        self._model = model
        self._request = request
        self._new_choice = new_choice
        self._shape = shape
        self._created = _created(created)
        self._choices: dict[int, C] = {}
        self._metrics: tuple[Metrics, ...] | None = None

    def add(self, event: Event) -> None:
        """Takes the next event.

        Raises:
            MindnanoError: the request failed; this is why.
        """
        if isinstance(event, Deltas):
            choice = self._gathered(event.choice)
            for delta in event.deltas:
                choice.add(delta)
        elif isinstance(event, ChoiceFinished):
            self._gathered(event.choice).reason = event.reason
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
        texts = TokenTexts(self._model.text) if self._request.logprobs is not None else None
        return encode(
            self._shape(
                id=self._request.id,
                created=self._created,
                model=self._model.id,
                system_fingerprint=self._model.fingerprint,
                seed=self._request.sampling.seed,
                choices=[self._written(index, choice, texts) for index, choice in sorted(self._choices.items())],
                usage=usage_of(metrics),
                request_id=self._request.id,
                session_id=UNSET if self._request.session is None else self._request.session,
                mindnano_metrics=metrics_shape(metrics),
                timings=timings_of(metrics),
            )
        )

    def _gathered(self, index: int) -> C:
        choice = self._choices.get(index)
        if choice is None:
            choice = self._choices[index] = self._new_choice()
        return choice

    @abstractmethod
    def _written(self, index: int, choice: C, texts: TokenTexts | None) -> Struct:
        """The entry of `choices`; `texts` is None where no log-probabilities are wanted."""


def _created(given: int | None) -> int:
    return int(time.time()) if given is None else given
