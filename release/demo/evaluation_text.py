"""The text on which fidelity is measured: `python -m release.demo.evaluation_text [--out FILE]`.

Conversations that training cannot have drawn, one JSON object per line as `mindnano fidelity --text` reads them. The
same seed gives the same bytes.
"""

import argparse
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from release.demo.conversation import Conversation, draw_conversation
from release.demo.tasks import TASKS

EVALUATION_TEXT: Final = Path(__file__).with_name("evaluation.jsonl")
SEED: Final = 99
COUNT: Final = 96


def evaluation_text(count: int = COUNT, seed: int = SEED) -> str:
    """`count` different held-out conversations of all tasks, both languages, thinking on and off in turn."""
    rng = random.Random(f"{seed} evaluation text")
    mix = dict.fromkeys(TASKS, 1.0)
    lines: dict[str, None] = {}
    while len(lines) < count:
        thinking = len(lines) % 2 == 1
        lines.setdefault(_line(draw_conversation(rng, mix, held_out=True, thinking=thinking)))
    return "".join(f"{line}\n" for line in lines)


def _line(conversation: Conversation) -> str:
    document = {"messages": conversation.messages(), "enable_thinking": conversation.thinking}
    return json.dumps(document, ensure_ascii=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m release.demo.evaluation_text", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--out", type=Path, default=EVALUATION_TEXT, help="file to write (default: the committed one)")
    options = parser.parse_args(arguments)
    options.out.write_text(evaluation_text(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
