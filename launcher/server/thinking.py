"""Whether a reply begins with thinking, as the many fields say that clients have for it."""

from __future__ import annotations

from collections.abc import Mapping

from launcher.errors import RequestError
from launcher.server.protocol.requests import ChatRequest, TemplateOptions, ThinkingSwitch, TokenizeRequest


def thinking_of(chat: ChatRequest | TokenizeRequest, default: bool) -> bool:
    """Whether the reply begins with thinking.

    `enable_thinking`, `thinking` and those of `chat_template_kwargs` say so; without them `reasoning_effort` "none"
    switches it off.

    Raises:
        RequestError: they contradict each other.
    """
    given = chat.thinking
    switch = given.type == "enabled" if isinstance(given, ThinkingSwitch) else given
    switches = {"enable_thinking": chat.enable_thinking, "thinking": switch}
    effort = False if chat.reasoning_effort == "none" else default
    return _switch(switches | _kwargs_switches(chat.chat_template_kwargs), effort)


def _kwargs_switches(options: TemplateOptions | None) -> dict[str, bool | None]:
    if options is None:
        return {}
    option = None if options.thinking_option is None else options.thinking_option == "on"
    return {
        "chat_template_kwargs.enable_thinking": options.enable_thinking,
        "chat_template_kwargs.thinking_option": option,
    }


def _switch(switches: Mapping[str, bool | None], default: bool) -> bool:
    said = {name: value for name, value in switches.items() if value is not None}
    if len(set(said.values())) > 1:
        names = " and ".join(said)
        raise RequestError("invalid_value", f"{names} contradict each other", param=next(reversed(said)))
    return next(iter(said.values()), default)
