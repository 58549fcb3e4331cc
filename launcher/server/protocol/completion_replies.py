"""Events to text completions, streamed or not, in the format that came before chats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from launcher.server.events import Content, Delta, FinishReason, TokenLogprob
from launcher.server.protocol.parts import FINISH_WORDS, Named, TokenTexts, encode, finite
from launcher.server.protocol.shapes import Completion, TextChoice, TextLogprobs
from launcher.server.protocol.writers import ChunkStream, WholeReply
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


class CompletionStream(ChunkStream):
    """A streamed completion."""

    def __init__(
        self,
        model: Named,
        request: GenerationRequest,
        *,
        include_usage: bool = False,
        return_progress: bool = False,
        echo: str = "",
        created: int | None = None,
    ) -> None:
        """`echo` is the prompt where the client wants it back; `created` in seconds since 1970, None for now."""
        super().__init__(
            model,
            request,
            kind="text_completion",
            include_usage=include_usage,
            return_progress=return_progress,
            created=created,
        )
        self._echo = echo
        self._offsets: dict[int, int] = {}

    def _begin(self, choice: int) -> list[bytes]:
        if choice in self._offsets:
            return []
        self._offsets[choice] = len(self._echo)
        return [self._frame.chunk(_choice(choice, self._echo, b"null", b"null"), None)] if self._echo else []

    def _choice(self, choice: int, delta: Delta) -> bytes | None:
        if not isinstance(delta, Content):
            return None
        return _choice(choice, delta.text, self._logprobs(choice, delta), b"null")

    def _empty(self, choice: int) -> bytes:
        return _choice(choice, "", b"null", b"null")

    def _last(self, choice: int, reason: bytes) -> bytes:
        return _choice(choice, "", b"null", reason)

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

    def add(self, delta: Delta) -> None:
        if isinstance(delta, Content):
            self.texts.append(delta.text)
            self.logprobs += delta.logprobs


class CompletionReply(WholeReply[_Choice]):
    """A completion as one document."""

    def __init__(self, model: Named, request: GenerationRequest, *, echo: str = "", created: int | None = None) -> None:
        """`echo` is the prompt where the client wants it back; `created` in seconds since 1970, None for now."""
        super().__init__(model, request, new_choice=_Choice, shape=Completion, created=created)
        self._echo = echo

    def _written(self, index: int, choice: _Choice, texts: TokenTexts | None) -> TextChoice:
        return TextChoice(
            text=self._echo + "".join(choice.texts),
            index=index,
            logprobs=None if texts is None else _legacy(texts, choice.logprobs, len(self._echo))[0],
            finish_reason=FINISH_WORDS[choice.reason],
        )
