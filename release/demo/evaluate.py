"""The figures of a checkpoint: `python -m release.demo.evaluate FOLDER [--count N] [--json FILE]`.

Every cell (task x language x thinking) gets `--count` different held-out prompts; an answer is right when the whole
text after `</think>` equals the one right answer. The drafts of the MTP layer are counted on the same replies.
"""

import argparse
import json
import random
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer

from release.demo.checkpoint import CHECKPOINT, load_checkpoint
from release.demo.conversation import END_OF_TURN, Conversation, draw_conversation, prompt
from release.demo.drawing import Turn
from release.demo.exam import Cell, Judged, cells, held_out_conversations, judge
from release.demo.model import Ling
from release.demo.paraphrases import EXAMPLES, PARAPHRASES
from release.demo.speculation import NOTHING, Acceptance, acceptance
from release.demo.tasks import TASKS
from release.demo.tokenizer import id_of

DRAFTED_PER_CELL = 25
"""Replies per cell on which drafting is measured."""

LONG_TURNS = (6, 10, 16)
"""Lengths of the long conversations; the rows of the training text hold about six turns."""

LONG_COUNT = 60
"""Long conversations of each length."""


def _draft_shares(model: Ling, tokenizer: Tokenizer, judged: Sequence[Judged]) -> dict[str, list[float]]:
    """Accepted drafts by task, and for all tasks together."""
    end = id_of(tokenizer, END_OF_TURN)
    seen: dict[str, int] = defaultdict(int)
    by_task: dict[str, Acceptance] = defaultdict(lambda: NOTHING)
    for item in judged:
        seen[item.cell.name] += 1
        if seen[item.cell.name] > DRAFTED_PER_CELL:
            continue
        given = tokenizer.encode(prompt(item.conversation), add_special_tokens=False).ids
        made = tokenizer.encode(item.reply, add_special_tokens=False).ids
        by_task[item.cell.task] += acceptance(model, given, [*made, end])
    total = sum(by_task.values(), start=NOTHING)
    return {name: value.shares() for name, value in (*by_task.items(), ("all", total)) if value.places}


def _written(
    model: Ling, tokenizer: Tokenizer, questions: Sequence[tuple[str, bool, tuple[str, ...]]]
) -> list[dict[str, Any]]:
    """Hand-written questions: right when every wanted piece occurs in the answer."""
    asked = []
    for question, thinking, _ in questions:
        turn = Turn(user=question, reasoning="", answer="")
        cell = Cell(task="paraphrase", chinese=False, thinking=thinking)
        asked.append((cell, Conversation(task="paraphrase", system="", thinking=thinking, turns=(turn,))))
    rows = []
    for item, (question, thinking, wanted) in zip(judge(model, tokenizer, asked), questions, strict=True):
        answer = item.reply.rpartition("</think>")[2]
        right = all(piece in answer for piece in wanted)
        rows.append({"question": question, "thinking": thinking, "answer": answer, "right": right})
    return rows


def _long_conversations(model: Ling, tokenizer: Tokenizer, seed: int) -> list[dict[str, Any]]:
    """The last answer after many turns of any kind, language and wording, all held out."""
    rows = []
    for turns in LONG_TURNS:
        rng = random.Random(f"{seed} {turns} turns")
        mix = dict.fromkeys(TASKS, 1.0)
        drawn = [draw_conversation(rng, mix, held_out=True, turns=turns) for _ in range(LONG_COUNT)]
        asked = [(Cell(task=f"{turns} turns", chinese=False, thinking=item.thinking), item) for item in drawn]
        judged = judge(model, tokenizer, asked)
        tokens = [len(tokenizer.encode(prompt(item), add_special_tokens=False).ids) for item in drawn]
        rows.append(
            {
                "turns": turns,
                "tokens": round(sum(tokens) / len(tokens)),
                "right": sum(item.right for item in judged) / len(judged),
            }
        )
    return rows


def figures(folder: Path, count: int, seed: int) -> dict[str, Any]:
    """All figures of a checkpoint as a JSON value."""
    model, tokenizer = load_checkpoint(folder)
    asked = [(cell, drawn) for cell in cells() for drawn in held_out_conversations(cell, count, seed)]
    judged = judge(model, tokenizer, asked)
    by_cell: dict[str, list[Judged]] = defaultdict(list)
    for item in judged:
        by_cell[item.cell.name].append(item)
    return {
        "prompts_per_cell": count,
        "seed": seed,
        "parameters": sum(parameter.numel() for parameter in model.state_dict().values()),
        "cells": {
            name: {"prompts": len(items), "right": sum(item.right for item in items) / len(items)}
            for name, items in by_cell.items()
        },
        "wrong": [
            {"cell": item.cell.name, "question": item.conversation.turns[-1].user, "reply": item.reply}
            for item in judged
            if not item.right
        ],
        "drafts": _draft_shares(model, tokenizer, judged),
        "long": _long_conversations(model, tokenizer, seed),
        "examples": _written(model, tokenizer, EXAMPLES),
        "paraphrases": _written(model, tokenizer, PARAPHRASES),
    }


def table(report: dict[str, Any]) -> str:
    """The figures as Markdown: exact answers by task, drafts by task, paraphrases."""
    columns = ("en/direct", "en/think", "zh/direct", "zh/think")
    tasks = list(dict.fromkeys(name.split("/")[0] for name in report["cells"]))
    lines = [f"| task | {' | '.join(columns)} |", "|---|" + "---:|" * len(columns)]
    for task in tasks:
        shares = (report["cells"].get(f"{task}/{column}") for column in columns)
        cells_of = ("-" if share is None else f"{100 * share['right']:.1f}" for share in shares)
        lines.append(f"| {task} | {' | '.join(cells_of)} |")
    lines += ["", "| drafts accepted | first | first two | first three |", "|---|---:|---:|---:|"]
    for task, shares_of in report["drafts"].items():
        lines.append(f"| {task} | {' | '.join(f'{100 * share:.1f}' for share in shares_of)} |")
    lines += ["", "| long conversations | tokens, mean | last answer right |", "|---|---:|---:|"]
    for row in report["long"]:
        lines.append(f"| {row['turns']} turns | {row['tokens']} | {100 * row['right']:.1f} |")
    right = sum(row["right"] for row in report["paraphrases"])
    count = len(report["paraphrases"])
    lines += ["", f"Hand-written paraphrases (after the two held-out examples): {right} of {count} right.", ""]
    lines += ["| question | thinking | answer | right |", "|---|---|---|---|"]
    for row in (*report["examples"], *report["paraphrases"]):
        answer = row["answer"].replace("\n", " ⏎ ").replace("|", "\\|")
        marks = ("on" if row["thinking"] else "off", answer, "yes" if row["right"] else "no")
        lines.append(f"| {row['question']} | {' | '.join(marks)} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m release.demo.evaluate", description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", default=CHECKPOINT, help="checkpoint in Hugging Face layout")
    parser.add_argument("--count", type=int, default=100, help="prompts per cell (default %(default)s)")
    parser.add_argument("--seed", type=int, default=99, help="which held-out prompts (default %(default)s)")
    parser.add_argument("--threads", type=int, default=2, help="CPU threads (default %(default)s)")
    parser.add_argument("--json", type=Path, help="write the figures here as JSON too")
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    report = figures(options.folder, options.count, options.seed)
    print(table(report), end="")
    if options.json:
        options.json.write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
