"""English."""

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
        "/quit            leave (also Ctrl-D)\n"
        "Ctrl-C stops an answer and keeps the conversation."
    ),
    "chat-stats": (
        "context     {position} of {context} tokens, session {allocated}\n"
        "last prompt {prompt} tokens, {reused} reused, {prefill:.1f} tokens/s\n"
        "last reply  {generated} tokens, {decode:.1f} tokens/s"
    ),
    "reading": "Reading the prompt",
    "tokens": "tokens",
    "exit-codes": (
        "0    ok\n"
        "1    internal error\n"
        "2    usage\n"
        "3    device or driver unsupported\n"
        "4    package missing or damaged\n"
        "5    not enough memory or disk\n"
        "6    network or download\n"
        "7    port or instance busy\n"
        "8    signature or trust\n"
        "9    engine could not load\n"
        "10   engine crashed\n"
        "130  stopped by SIGINT (Ctrl-C)\n"
        "143  stopped by SIGTERM"
    ),
    "check-ready": "ready: {ready}",
    "check-largest": "largest context that fits: {context}",
    "check-backend": "backend: {backend}",
    "check-next": "next: {text}",
    "check-board": "{name}",
    "check-board-unknown": "the board does not say its name",
    "check-cpu": "{machine}, kernels: {kernels}",
    "check-cpu-next": "this processor lacks AVX2 or dot products; it works, but slowly",
    "check-cpu-features": "{machine}, features: {features}",
    "check-npu-none": "no NPU: CPU backend",
    "check-npu-unused": "an NPU is at {place}; this version computes on the CPU",
    "check-runtime": "{version}, interface {abi}, {path}",
    "check-memory": "{available} available of {total}",
    "check-memory-limited": "{available} available of {total}, cgroup limit {limit}",
    "check-memory-unknown": "/proc/meminfo cannot be read",
    "check-package": "{name}: {size}, {layers} layers, {experts} experts, context up to {context}, {path}",
    "check-package-mtp": "{name}: {size}, {layers} layers and MTP, {experts} experts, context up to {context}, {path}",
    "check-package-none": "none named; --model FILE.l3r or --demo checks one",
    "check-package-unread": "not opened without the engine",
    "yes": "yes",
    "no": "no",
    "unknown": "unknown",
    "contexts-title": "{name}, {kv} attention cache, {available} available",
    "contexts-context": "context",
    "contexts-total": "total",
    "contexts-verdict": "verdict",
    "contexts-fits": "fits",
    "contexts-beyond-package": "- more than the {limit} tokens that the package allows",
    "contexts-beyond-native": "* beyond the {native} tokens that the model was made for",
    "contexts-largest": "largest that fits: {context}",
    "contexts-none": "none fits",
}
