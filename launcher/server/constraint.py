"""Constrained replies: the tokens that a grammar allows next, one reply at a time."""

from __future__ import annotations

from array import array
from collections.abc import Callable
from typing import Final

from launcher.errors import InternalError, RequestError
from launcher.reply import THINK_CLOSE
from launcher.server.grammar import MARKS, CallReply, ConstrainedReply, EitherReply, GrammarWriter, JsonReply
from launcher.server.guidance import Guide, Matcher, Vocabulary
from launcher.server.request import Constraint
from launcher.server.schema_check import refused

_WORD: Final = 32


class GrammarConstraint:
    """A `Constraint`: one walk through a compiled grammar. For one thread."""

    def __init__(self, matcher: Matcher, vocab_size: int, stop_ids: tuple[int, ...]) -> None:
        """Args:
        matcher: stands at the start of the reply; becomes part of this.
        vocab_size: of the model, rows beyond the real tokens included.
        stop_ids: the first is the grammar's own.
        """
        self._matcher = matcher
        self._stop_ids = stop_ids
        # uint32 words; "I" has four bytes wherever the engine runs.
        self._mask = array("I", bytes(4 * ((vocab_size + _WORD - 1) // _WORD)))
        self._address, self._words = self._mask.buffer_info()

    def allowed(self) -> array[int]:
        """See `Constraint`; the same buffer each time.

        Raises:
            RequestError: the schema asks for more work in one step than one token may cost, or can go no further.
        """
        self._matcher.unsafe_compute_mask_ptr(self._address, 4 * self._words)
        if self._matcher.is_error():
            raise self._stuck()
        first, *others = self._stop_ids
        if self._mask[first // _WORD] >> first % _WORD & 1:
            for stop in others:
                self._mask[stop // _WORD] |= 1 << stop % _WORD
        return self._mask

    def advance(self, token: int) -> None:
        """See `Constraint`; `allowed` was called before.

        Raises:
            RequestError: as `allowed`.
        """
        own = self._stop_ids[0] if token in self._stop_ids else token
        if not self._matcher.consume_token(own):
            if self._mask[token // _WORD] >> token % _WORD & 1:  # allowed, but too much work to follow
                raise self._stuck()
            raise InternalError("internal", f"token {token} does not fit the grammar: {_reason(self._matcher)}")

    @property
    def is_finished(self) -> bool:
        """See `Constraint`."""
        return self._matcher.is_stopped()

    def _stuck(self) -> RequestError:
        return RequestError("invalid_json_schema", f"the schema cannot be followed here: {_reason(self._matcher)}")


class GrammarFactory:
    """Makes constraints for one package; any thread may ask."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        """The vocabulary is read when the first constraint is asked for; it stays open as long as this is used."""
        self._guide = Guide(vocabulary, tuple(mark.encode() for mark in MARKS))

    def prepare(self) -> None:
        """Does ahead what the first constraint waits for, see `Guide.prepare`."""
        self._guide.prepare()

    def constraint(self, wanted: ConstrainedReply, *, reasoning: bool) -> Callable[[], Constraint]:
        """Compiles what a reply must be; the result makes one constraint for each choice.

        Args:
            wanted: what to make.
            reasoning: whether the prompt ends inside an open `<think>`, so that thinking comes first.

        Raises:
            RequestError: the schema, or a tool's, cannot be served; it says why and where.
        """
        matcher = self._compiled(wanted, reasoning=reasoning)
        guide = self._guide

        def new_constraint() -> Constraint:
            return GrammarConstraint(matcher.deep_copy(), guide.vocab_size, guide.stop_ids)

        return new_constraint

    def _compiled(self, wanted: ConstrainedReply, *, reasoning: bool) -> Matcher:
        guide = self._guide
        stops = tuple(guide.token_bytes(token).decode(errors="replace") for token in guide.stop_ids)
        writer = GrammarWriter(guide.marks, stops)
        matcher = guide.compile(writer.reply(wanted, reasoning=reasoning))
        trouble = _trouble(matcher)
        if trouble is None:
            beginning = matcher.deep_copy()
            if reasoning:
                beginning.consume_tokens(guide.tokenize(THINK_CLOSE))
            trouble = self._first_step(beginning)
        if trouble is not None:
            raise self._refusal(wanted, trouble)
        return matcher

    def _first_step(self, matcher: Matcher) -> str | None:
        """Why no token can come first; None where one can."""
        try:
            mask = GrammarConstraint(matcher, self._guide.vocab_size, self._guide.stop_ids).allowed()
        except RequestError as error:
            return error.message
        return None if any(mask) else "no value follows it"

    def _refusal(self, wanted: ConstrainedReply, reason: str) -> RequestError:
        if isinstance(wanted, EitherReply):
            return self._refused_either(wanted, reason)
        if isinstance(wanted, JsonReply):
            return refused(wanted.param, reason)
        if len(wanted.tools) > 1:
            for index, tool in enumerate(wanted.tools):
                alone = CallReply(tools=(tool,), name=None, parallel=False)
                try:
                    self._compiled(alone, reasoning=False)
                except RequestError as error:
                    return refused(f"tools[{index}].function.parameters", error.message.partition(": ")[2])
            return refused("tools", f"together they are too large: {reason}")
        return refused("tools[0].function.parameters", reason)

    def _refused_either(self, wanted: EitherReply, reason: str) -> RequestError:
        try:
            self._compiled(wanted.json, reasoning=False)
            self._compiled(wanted.calls, reasoning=False)
        except RequestError as error:
            return error
        return refused("tools", f"together with the response's format they are too large: {reason}")


def _trouble(matcher: Matcher) -> str | None:
    return _reason(matcher) if matcher.is_error() else None


def _reason(matcher: Matcher) -> str:
    """What the library says, without the grammar's text that it shows around it."""
    first, _, rest = matcher.get_error().partition("\n")
    reason = first.rpartition("failed to compile JSON schema: ")[2]
    if reason.endswith("regex parse error:"):  # the last line says what is wrong
        details = [line for line in rest.split("\n") if line.startswith("error: ")]
        reason = " ".join([reason, *details[:1]])
    return reason[:300]
