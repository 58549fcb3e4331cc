"""English: options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "help-description": "Chat with a Ling-3.0 model in the terminal, or answer one question.",
    "help-epilog": "With a question, or with text on stdin, it answers once and exits; otherwise a chat opens.",
    "help-question": "answer this once and exit",
    "help-prompt": "the same as a question argument; use it for text that begins with a dash",
    "help-model": "the model package to run",
    "help-demo": "run the small built-in model, which proves that the installation works",
    "help-think": "let the model think before it answers (default: on)",
    "help-system": "system text that comes before the conversation",
    "help-max-tokens": "longest reply in tokens (default: until the context is full)",
    "help-temperature": "0 always takes the likeliest token (default: the package's own value; 0 with --demo)",
    "help-top-p": "keep the likeliest tokens up to this sum of probabilities; 1 keeps all",
    "help-top-k": "keep this many of the likeliest tokens; 0 keeps all",
    "help-min-p": "drop tokens less likely than this share of the likeliest one; 0 drops none",
    "help-repeat-penalty": "make tokens that already occurred less likely; 1 does nothing",
    "help-seed": "start of the random numbers (default: a new one each time)",
    "help-context": "tokens that a conversation can hold: a number, or 4K 8K 16K 32K 64K 128K 256K (default: up to 8K)",
    "help-kv-cache": "type of the attention cache (default: bf16)",
    "help-threads": "threads to compute with (default: one per big core)",
    "help-force": "start even when the memory does not seem to suffice",
    "help-color": "colours in the terminal (default: auto)",
    "help-lang": "language of messages (default: MINDNANO_LANG, then the locale)",
    "help-json": "with --version, --check or --list-contexts: one JSON document on stdout",
    "help-version": "print the version and exit",
    "help-check": "say what this machine can run and what is missing, and exit",
    "help-list-contexts": "print the memory that each context needs against what is available, and exit",
    "help-exit-codes": "print the exit codes and exit",
    "help-help": "print this and exit",
    "help-group-question": "question",
    "help-group-model": "model",
    "help-group-reply": "reply",
    "help-group-resources": "resources",
    "help-group-output": "output",
    "help-group-inform": "inform and exit",
}
