"""Where in a prompt checkpoints are worth keeping: places that later prompts of the conversation come back to.

A template is a program, so nothing is assumed of it: a place is a mark only where the rendered text and its token ids
show that the prompt up to there is what a shorter conversation renders to.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

from launcher.errors import PackageError, UsageError
from launcher.server.request import Mark, MarkKind
from launcher.template import ChatTemplate, Message
from launcher.timeline import common_length

Tokenize = Callable[[str], list[int]]
Tools = Sequence[Mapping[str, object]] | None

# The shared beginning ends before the switch for thinking where that costs no more tokens than this.
_SWITCH_TOKENS: Final = 16


def marks(
    template: ChatTemplate,
    messages: Sequence[Message],
    *,
    thinking: bool,
    tools: Tools,
    prompt: str,
    ids: Sequence[int],
    tokenize: Tokenize,
    limit: int,
) -> tuple[Mark, ...]:
    """The end of the shared beginning and the ends of the last `limit` messages, by position.

    Args:
        template, messages, thinking, tools: what `prompt` was rendered from.
        ids: the prompt's token ids.
        tokenize: text to ids, as for the prompt.
        limit: most ends of messages; each costs one rendering, the shared beginning two.

    Returns:
        Marks at rising positions, each between the first and the last id.
    """
    if limit <= 0:
        return ()
    system = _shared_end(template, messages, thinking, tools, prompt, ids, tokenize)
    ends = _message_ends(template, messages, thinking, tools, prompt, limit)
    found = dict.fromkeys(_token_positions(prompt, ids, tokenize, sorted(ends)), MarkKind.TURN)
    found[system] = MarkKind.SYSTEM
    return tuple(
        Mark(position=position, kind=kind) for position, kind in sorted(found.items()) if 0 < position < len(ids)
    )


def _message_ends(
    template: ChatTemplate, messages: Sequence[Message], thinking: bool, tools: Tools, prompt: str, limit: int
) -> set[int]:
    """Characters up to the end of each of the last messages, before what makes the model speak."""
    counts = [count for count in range(1, len(messages) + 1) if messages[count - 1].role != "system"]
    ends = set()
    for count in counts[-limit:]:
        text = _render(template, messages[:count], thinking, tools, speak=False)
        if text and prompt.startswith(text):
            ends.add(len(text))
    return ends


def _token_positions(prompt: str, ids: Sequence[int], tokenize: Tokenize, ends: Sequence[int]) -> Iterator[int]:
    """Tokens up to each of these ends, where the ids are those of the text before it followed by those after it."""
    position = start = 0
    for end in ends:
        piece = tokenize(prompt[start:end])
        if list(ids[position : position + len(piece)]) != piece:
            continue
        rest = position + len(piece)
        yield rest
        position, start = rest, end


def _shared_end(
    template: ChatTemplate,
    messages: Sequence[Message],
    thinking: bool,
    tools: Tools,
    prompt: str,
    ids: Sequence[int],
    tokenize: Tokenize,
) -> int:
    """Tokens that every conversation with this system text and these tools begins with, whether thinking or not."""
    system = []
    for message in messages:
        if message.role != "system":
            break
        system.append(message)
    if len(system) == len(messages):
        return 0
    probe = [*system, Message(role="user", content="")]
    same = _render(template, probe, thinking, tools, speak=True)
    other = _render(template, probe, not thinking, tools, speak=True)
    until_question, until_switch = (
        common_length(tokenize(prompt[: common_length(prompt, text)]), ids) for text in (same, other)
    )
    return until_switch if until_question - until_switch <= _SWITCH_TOKENS else until_question


def _render(template: ChatTemplate, messages: Sequence[Message], thinking: bool, tools: Tools, *, speak: bool) -> str:
    """The text, or none where the template refuses or fails, as it may for half a conversation."""
    try:
        return template.render(messages, enable_thinking=thinking, add_generation_prompt=speak, tools=tools)
    except (UsageError, PackageError):
        return ""
