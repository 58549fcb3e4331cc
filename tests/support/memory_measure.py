"""Predicted against measured memory of real conversations, each in a fresh process.

    python -m tests.support.memory_measure PACKAGE --context 4K 8K [--touch] [--threads N] [--kv-cache bf16]

For every context a child opens a chat as `mindnano-infer` does, and says what is resident when it is loaded. It then
fills the context: a few short turns, so that every checkpoint is used, and a question that leaves room for the last
tokens of its answer. `--touch` fills nothing: a second child writes to all of the session's memory when it is created
(the engine's `poison`), which shows what a full context takes without the minutes or hours of evaluating it.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import launcher.model
from launcher.conversation import Conversation
from launcher.engine_types import ModelConfig, SessionOptions
from launcher.memory_plan import read_usage
from launcher.options.parse import Options, parse
from launcher.options.table import parse_tokens
from launcher.streaming import stream_reply
from launcher.system import SystemView
from launcher.talk import Talk, open_talk
from launcher.template import Message

ROOT = Path(__file__).resolve().parents[2]
ANSWER = 4
"""Tokens that every answer may have."""

_WORD = "ab "
_ROOM = 8  # tokens of the context that the last question leaves to its answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One context: predicted and measured bytes, idle and full. `filled` counts the tokens that were evaluated."""

    context: int
    touched: bool
    filled: int
    predicted_idle: int
    measured_idle: int
    predicted_full: int
    measured_full: int


def measure(package: Path, context: int, *, touch: bool = False, words: Sequence[str] = ()) -> Case:
    """Runs a child, or two of them where the memory is touched.

    Args:
        package: the model.
        context: tokens.
        touch: write to all of the session's memory instead of filling the context.
        words: more options for the children.
    """
    if not touch:
        return _run(package, context, "fill", words)
    idle, full = (_run(package, context, mode, words) for mode in ("idle", "touch"))
    return replace(full, predicted_idle=idle.predicted_idle, measured_idle=idle.measured_idle)


def _run(package: Path, context: int, mode: str, words: Sequence[str]) -> Case:
    command = [sys.executable, "-m", "tests.support.memory_measure", str(package), "--context", str(context)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [*command, "--child", mode, *words], cwd=ROOT, env=environ, capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise RuntimeError(f"the child ended with {done.returncode}:\n{done.stderr}")
    return Case(**json.loads(done.stdout.splitlines()[-1]))


def _child(package: Path, context: int, mode: str, words: Sequence[str]) -> Case:
    chat = ["--model", str(package), "--context", str(context), "--max-tokens", str(ANSWER), "--think", "off"]
    options = parse([*chat, "--prompt", "-", *words], {}, [])
    with ExitStack() as stack:
        if mode == "touch":
            stack.enter_context(patch.object(launcher.model, "session_options", _poisoned))
        talk = stack.enter_context(open_talk(options, {}, SystemView()))
        loaded = talk.memory
        filled = 0
        if mode != "idle":
            filled = _fill(talk) if mode == "fill" else _say(talk, "Hello")
        usage = read_usage(SystemView())
        if loaded.usage is None or usage is None:
            raise RuntimeError("this system does not say what is resident")
        return Case(
            context=context,
            touched=mode == "touch",
            filled=filled,
            predicted_idle=loaded.predicted,
            measured_idle=loaded.usage.resident,
            predicted_full=loaded.plan.full,
            measured_full=usage.peak,
        )


_session_options = launcher.model.session_options


def _poisoned(options: Options, config: ModelConfig) -> SessionOptions:
    return replace(_session_options(options, config), poison=True)


def _fill(talk: Talk) -> int:
    for number in range(3):
        _say(talk, f"Hello {number}")
    conversation, limit = talk.conversation, talk.context - _ROOM
    empty = _prompt_length(conversation, "")
    each = (_prompt_length(conversation, _WORD * 100) - empty) / 100
    count = int((limit - empty) / each)
    while _prompt_length(conversation, _WORD * count) > limit:
        count -= 1
    return _say(talk, _WORD * count)


def _prompt_length(conversation: Conversation, question: str) -> int:
    """Tokens of the prompt that this question would make."""
    turns = conversation._with_system([*conversation.messages, Message(role="user", content=question)])
    prompt = conversation._template.render(turns, enable_thinking=conversation.thinking)
    return len(conversation._ports.text.tokenize(prompt))


def _say(talk: Talk, question: str) -> int:
    stream_reply(talk.conversation, question, show=lambda piece: None, reading=lambda done, total: None)
    return talk.conversation.position


def table_text(cases: Sequence[Case]) -> str:
    """A Markdown table in MiB."""
    lines = [
        "| context | filled | idle: predicted | measured | unaccounted | full: predicted | measured | unaccounted |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for case in cases:
        filled = "touched" if case.touched else f"{case.filled:,} tokens"
        cells = [f"{case.context:,}", filled]
        for predicted, measured in (
            (case.predicted_idle, case.measured_idle),
            (case.predicted_full, case.measured_full),
        ):
            off = measured - predicted
            cells += [_mib(predicted), _mib(measured), f"{off / (1 << 20):+.1f} ({100 * off / predicted:+.2f} %)"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def _mib(count: int) -> str:
    return f"{count / (1 << 20):,.1f}"


def main() -> None:
    """Command line of parent and child."""
    parser = argparse.ArgumentParser(description="Predicted against measured memory, in MiB.")
    parser.add_argument("package", type=Path)
    parser.add_argument("--context", type=parse_tokens, nargs="+", required=True)
    parser.add_argument("--touch", action="store_true")
    parser.add_argument("--threads", default="0")
    parser.add_argument("--kv-cache", default="bf16")
    parser.add_argument("--line-editor", action="store_true", help="load what a chat on a terminal loads")
    parser.add_argument("--child", choices=("fill", "touch", "idle"), help=argparse.SUPPRESS)
    found = parser.parse_args()
    words = ["--kv-cache", found.kv_cache, *(["--threads", found.threads] if found.threads != "0" else [])]
    if found.child is not None:
        if found.line_editor:
            import launcher.line_editor  # noqa: F401
        case = _child(found.package, found.context[0], found.child, words)
        print(json.dumps({name: getattr(case, name) for name in Case.__slots__}))
        return
    words += ["--line-editor"] * found.line_editor
    print(table_text([measure(found.package, count, touch=found.touch, words=words) for count in found.context]))


if __name__ == "__main__":
    main()
