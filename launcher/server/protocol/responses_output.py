"""The items of an answer as they grow: thinking, text and calls, each time that the kind of what comes changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from launcher.server.events import Content, Delta, Reasoning, TokenLogprob, ToolCallStart
from launcher.server.protocol.parts import TokenTexts
from launcher.server.protocol.responses_shapes import (
    CallItem,
    ItemStatus,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
)
from launcher.server.protocol.shapes import TokenShape


class Kind(Enum):
    """What an item is; the value begins its id."""

    REASONING = "rs"
    MESSAGE = "msg"
    CALL = "fc"


@dataclass(slots=True, kw_only=True)
class Item:
    """One item so far. `call` is the call's id and `name` its function's, "" of other items."""

    kind: Kind
    id: str
    index: int
    call: str = ""
    name: str = ""
    texts: list[str] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All of its text, or of its arguments."""
        return "".join(self.texts)

    def add(self, delta: Delta) -> None:
        """Takes more of it."""
        if isinstance(delta, ToolCallStart):
            return
        self.texts.append(delta.text)
        if isinstance(delta, Content):
            self.logprobs += delta.logprobs


class Output:
    """All items of one answer."""

    def __init__(self, request_id: str, texts: TokenTexts | None) -> None:
        """`texts` shows log-probabilities; None where none are wanted."""
        self._suffix = request_id.removeprefix("resp_")
        self._texts = texts
        self.items: list[Item] = []

    def add(self, delta: Delta) -> Item:
        """Adds to the last item, or to a new one where this is none of its; returns it."""
        kind = _kind(delta)
        if not self.items or self.items[-1].kind is not kind or isinstance(delta, ToolCallStart):
            self._begin(kind, delta)
        self.items[-1].add(delta)
        return self.items[-1]

    def begin_message(self) -> Item:
        """Begins a message without text."""
        return self._begin(Kind.MESSAGE, None)

    @property
    def is_answered(self) -> bool:
        """Whether there is a text or a call."""
        return any(item.kind is not Kind.REASONING for item in self.items)

    def _begin(self, kind: Kind, delta: Delta | None) -> Item:
        index = len(self.items)
        call, name = (delta.id, delta.name) if isinstance(delta, ToolCallStart) else ("", "")
        item = Item(kind=kind, id=f"{kind.value}_{self._suffix}_{index}", index=index, call=call, name=name)
        self.items.append(item)
        return item

    def shapes(self, last: ItemStatus) -> list[OutputItem]:
        """The items as they are told; `last` is the status of the last one, the others are complete."""
        end = len(self.items) - 1
        return [self.shape(item, last if item.index == end else "completed") for item in self.items]

    def shape(self, item: Item, status: ItemStatus) -> OutputItem:
        """One item as it is told; without its text while it is in progress."""
        begun = status == "in_progress"
        if item.kind is Kind.REASONING:
            content = [] if begun else [ReasoningText(text=item.text)]
            return ReasoningItem(id=item.id, content=content, status=status)
        if item.kind is Kind.MESSAGE:
            return MessageItem(id=item.id, content=[] if begun else [self.output_text(item)], status=status)
        arguments = "" if begun else item.text
        return CallItem(id=item.id, call_id=item.call, name=item.name, arguments=arguments, status=status)

    def output_text(self, item: Item) -> OutputText:
        """The text of a message."""
        return OutputText(text=item.text, logprobs=self.logprobs(item.logprobs))

    def logprobs(self, given: list[TokenLogprob] | tuple[TokenLogprob, ...]) -> list[TokenShape]:
        """Log-probabilities as they are told; none where none are wanted."""
        return [] if self._texts is None else self._texts.shapes(given)


def _kind(delta: Delta) -> Kind:
    if isinstance(delta, Reasoning):
        return Kind.REASONING
    return Kind.MESSAGE if isinstance(delta, Content) else Kind.CALL
