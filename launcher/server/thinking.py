"""Whether a reply begins with thinking and how long that may be, in the many fields that clients have for it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeVar

from launcher.errors import RequestError
from launcher.server.protocol.requests import (
    ChatRequest,
    ReasoningSwitch,
    TemplateOptions,
    ThinkingSwitch,
    TokenizeRequest,
)

T = TypeVar("T")

# Ours first; then llama-server's, of two of its versions, and vLLM's.
_BUDGETS: Final = ("thinking_budget", "thinking_budget_tokens", "reasoning_budget_tokens", "thinking_token_budget")
_NO_LIMIT: Final = -1


def thinking_of(chat: ChatRequest | TokenizeRequest, default: bool) -> bool:
    """Whether the reply begins with thinking.

    `enable_thinking`, `thinking`, `reasoning.enabled` and those of `chat_template_kwargs` say so; without them an
    effort "none" switches it off.

    Raises:
        RequestError: they contradict each other.
    """
    given = chat.thinking
    switch = given.type == "enabled" if isinstance(given, ThinkingSwitch) else given
    other = chat.reasoning or ReasoningSwitch()
    switches = {"enable_thinking": chat.enable_thinking, "thinking": switch, "reasoning.enabled": other.enabled}
    is_without = "none" in (chat.reasoning_effort, other.effort)
    return _agreed(switches | _kwargs_switches(chat.chat_template_kwargs), default and not is_without)


def thinking_budget(chat: ChatRequest, default: int | None) -> int | None:
    """Most tokens of thinking; None for no limit.

    Raises:
        RequestError: two fields say different things.
    """
    given = chat.thinking
    budgets = {name: getattr(chat, name) for name in _BUDGETS}
    budgets["thinking.budget_tokens"] = given.budget_tokens if isinstance(given, ThinkingSwitch) else None
    budgets["reasoning.max_tokens"] = None if chat.reasoning is None else chat.reasoning.max_tokens
    budget = _agreed(budgets, _NO_LIMIT if default is None else default)
    return None if budget == _NO_LIMIT else budget


def _kwargs_switches(options: TemplateOptions | None) -> dict[str, bool | None]:
    if options is None:
        return {}
    option = None if options.thinking_option is None else options.thinking_option == "on"
    return {
        "chat_template_kwargs.enable_thinking": options.enable_thinking,
        "chat_template_kwargs.thinking_option": option,
    }


def _agreed(values: Mapping[str, T | None], default: T) -> T:
    said = {name: value for name, value in values.items() if value is not None}
    if len(set(said.values())) > 1:
        names = " and ".join(said)
        raise RequestError("invalid_value", f"{names} contradict each other", param=next(reversed(said)))
    return next(iter(said.values()), default)
