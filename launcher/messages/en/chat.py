"""English: the chat."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "chat-banner": "{name}: context {context} tokens, {threads} threads, {simd} kernels. /help lists commands.",
    "chat-demo": (
        "This is the small built-in model: it shows that everything works, but knows little. "
        "--model FILE.l3r runs another one."
    ),
    "chat-thinking": "thinking: ",
    "chat-stopped": "(stopped)",
    "chat-length": "(cut at --max-tokens)",
    "chat-context": "(the context of {context} tokens is full; /reset starts a new conversation)",
    "chat-context-once": "(the context of {context} tokens is full; --context sets a larger one)",
    "chat-reset": "A new conversation begins.",
    "chat-interrupt": "Ctrl-D or /quit quits.",
    "chat-unknown": "There is no command {command}. /help lists them; a space before / sends it as text.",
    "chat-think-state": "Thinking is {state}.",
    "chat-think-usage": "Usage: /think on or /think off. Thinking is {state}.",
    "chat-help": (
        "/help            this list\n"
        "/reset           forget the conversation\n"
        "/stats           speed and memory\n"
        "/think on|off    let the model think first\n"
        "/save FILE       write the conversation to a file\n"
        "/load FILE       go on with a conversation from a file\n"
        "/quit            leave (also Ctrl-D)\n"
        "Ctrl-C stops an answer and keeps the conversation."
    ),
    "chat-stats": (
        "context     {position} of {context} tokens, session {allocated}\n"
        "last prompt {prompt} tokens, {reused} reused, {prefill:.1f} tokens/s\n"
        "last reply  {generated} tokens, {decode:.1f} tokens/s"
    ),
    "chat-stats-plan": "memory      {predicted} predicted after loading, {full} when the context is full",
    "chat-stats-memory": (
        "memory      {predicted} predicted after loading, {measured} measured ({unaccounted} unaccounted)\n"
        "            {now} now, {full} predicted when the context is full"
    ),
    "chat-file-usage": "Usage: {command} FILE",
    "chat-saved": "Saved {turns} turns to {path}.",
    "chat-loaded": "Loaded {turns} turns from {path}.",
    "chat-log-lost": "warning: the log {path} ends here: {reason}",
    "chat-loading": "Loading",
    "chat-not-loaded": (
        "The weights ({weights}) are larger than the memory that is available ({available}): they are not loaded now "
        "but read from the disk whenever they are needed, which is slow."
    ),
}
