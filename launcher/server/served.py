"""The model that the server serves, with everything that planning a request needs and nothing that runs."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from launcher.engine_types import Sampling
from launcher.server.grammar import ConstrainedReply
from launcher.server.protocol.shapes import ModelCard
from launcher.server.request import Constraint
from launcher.template import ChatTemplate


class TextPort(Protocol):
    """Text to tokens and back; `launcher.engine.Package` is one. Used from several threads at once."""

    def tokenize(self, text: str, *, special: bool = True) -> list[int]: ...

    def first_tokens(self, text: str, most: int | None = None, *, special: bool = True) -> tuple[array[int], int]:
        """The first `most` of these ids, or all, and how many there are: for texts of any length."""

    def token_bytes(self, token: int) -> bytes: ...


class GrammarPort(Protocol):
    """Makes grammars; `launcher.server.grammar.GrammarFactory` is one. Used from several threads at once."""

    def constraint(self, wanted: ConstrainedReply, *, reasoning: bool) -> Callable[[], Constraint]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """One model.

    Attributes:
        id: its name in requests and answers.
        created: when the server began to serve it, in seconds since 1970.
        text: its tokenizer.
        template: its chat template.
        sampling: how tokens are picked where a request does not say; its seed is not used.
        seed: the seed of requests that name none; None picks one for each.
        thinking: whether a reply begins with thinking where a request does not say.
        thinking_budget: most tokens of thinking of a reply where a request does not say; None for no limit.
        max_tokens: most tokens of a reply where a request does not say; None for the rest of the context.
        timeout: longest time for any request in seconds; None for no limit.
        context: tokens of prompt and reply together.
        token_count: ids from 0 up to this have a token.
        stop_ids: what ends a reply.
        checkpoints: how many checkpoints a prompt may ask for; 0 asks for none.
        fingerprint: `system_fingerprint`: tells engine and model apart from others.
        grammar: makes the grammars of constrained replies.
        facts: what /v1/models tells beyond the name.
    """

    id: str
    created: int
    text: TextPort
    template: ChatTemplate
    sampling: Sampling
    seed: int | None = None
    thinking: bool = True
    thinking_budget: int | None = None
    max_tokens: int | None = None
    timeout: float | None = None
    context: int
    token_count: int
    stop_ids: frozenset[int]
    checkpoints: int = 0
    fingerprint: str
    grammar: GrammarPort
    facts: Mapping[str, object] = field(default_factory=dict)

    def card(self) -> ModelCard:
        """The entry of /v1/models."""
        return ModelCard(id=self.id, created=self.created, owned_by="mindnano-infer", meta=dict(self.facts))
