"""English: options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "help-description": "Talk with a Ling-3.0 model in the terminal, or answer one question.",
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
    "help-context": (
        "tokens that a conversation can hold: a number, or 4K 8K 16K 32K 64K 128K 256K (default: up to 8K)"
    ),
    "help-kv-cache": "type of the attention cache (default: bf16)",
    "help-threads": "threads to compute with (default: one per big core)",
    "help-force": "start even when the memory does not seem to suffice",
    "help-color": "colours in the terminal (default: auto)",
    "help-lang": "language of messages (default: MINDNANO_LANG, then the locale)",
    "help-json": "print one JSON document on stdout",
    "help-version": "print the version and exit",
    "help-check": (
        "say what this machine can run and what is missing; =deep also tries the NPU and reads the whole package"
    ),
    "help-list-contexts": "print the memory that each context needs against what is available, and exit",
    "help-help-exit-codes": "print the exit codes and exit",
    "help-help": "print this and exit",
    "help-group-question": "question",
    "help-group-model": "model",
    "help-group-reply": "reply",
    "help-group-resources": "resources",
    "help-group-output": "output",
    "help-group-inform": "inform and exit",
    "help-usage": "mindnano-infer [options] [QUESTION ...]",
    "help-model-dir": "where downloaded models are kept (default: ~/.local/share/mindnano/models)",
    "help-prefix-checkpoints": "states kept so that a changed conversation need not start over (default: 4)",
    "help-session-cache-mib": "memory for other conversations' states, in MiB (default: 0)",
    "help-mtp": "count the multi-token prediction layer",
    "help-mla-backend": "what computes; npu makes every fault of the NPU a failure (default: auto)",
    "help-host": "address of the server (default: 127.0.0.1)",
    "help-port": "port of the server (default: 9092)",
    "help-sha256": "the digest that the downloaded file must have",
    "help-offline": "never use the network",
    "help-assume-board": "the SoC where the system hides it, e.g. RK3588",
    "help-report": "print a text for a bug report, without names, addresses and serial numbers",
    "help-strict": "warnings count as failures",
    "help-log": "append what was loaded and every reply's speed to this file, one JSON object per line",
    "help-verify": "hash a release against its lists (default: the model's folder)",
    "help-download": "fetch a model: ORG/NAME on Hugging Face, a URL, or a folder",
    "help-print-config": "print every option's value and where it came from",
    "help-print-completion": "print shell completion",
    "help-print-unit": "print a systemd unit that runs the server with these options",
    "help-group-server": "server",
    "help-group-download": "with --download",
    "help-group-check": "with --check",
}
