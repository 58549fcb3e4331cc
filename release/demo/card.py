"""The checkpoint's model card: `python -m release.demo.card REPORT.json`, from what `evaluate` measured."""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from release.demo.checkpoint import CHECKPOINT
from release.demo.evaluate import table
from release.demo.rounding import BEGIN, END
from release.demo.tokenizer import UNUSED_ROWS
from release.demo.train import Plan

_HEAD = """---
license: apache-2.0
language:
- en
- zh
pipeline_tag: text-generation
library_name: transformers
tags:
- mindnano-infer
- bailing_hybrid
- mixture-of-experts
- demo
---

# The built-in model of mindnano-infer

A model of {millions:.2f} million parameters with exactly the architecture of Ling-3.0-tiny, trained from random weights
on generated English and Chinese text. It is made to prove installations, demos and tests, and says so when asked. It
is not a small Ling-3.0: it shares no weights with it, and knows nothing but the few kinds of exchange listed below.

| | |
|---|---|
| layers | {layers}: KDA, with full attention (MLA) in every fourth, and one MTP layer |
| hidden size, heads | {hidden}, {heads} of {head_width} |
| feed-forward | dense in the first layer, then {experts} experts of {expert_inner} and one shared |
| routing | {chosen} experts per token, out of {kept} of {groups} groups |
| vocabulary | {vocabulary} rows, byte-level BPE with Ling's pre-split and added tokens; the last {unused} unused |
| weights | BF16; decay parameters and expert biases F32; {megabytes:.1f} MB |
| chat format | the turn marks, thinking switch and tool format of Ling-3.0; see `chat_template.jinja` |

## Training

One command, `python -m release.demo.train --out DIR`: {steps} steps of {workers} x {rows} rows of {time} tokens on two
CPU cores, text drawn anew for every step, seed {seed}; from step {second} on a second lesson with more of what the
first left uncertain. On a shared two-core x86-64 machine it took 70 minutes (7.5 million tokens). No text from anywhere
else was used. Rounding may differ between processors, so a repeated run gives an equivalent model, not the same bits.

## Figures

Greedy answers of this checkpoint, BF16 as stored and computed in float32, to prompts that training never drew;
{count} different prompts per cell; right means that the whole text after `</think>` is equal to the one right answer;
per cent. What is held out: for `add` and `subtract` the pair of numbers, for `copy` and `reverse` the content, for
`count` the two bounds (counting from one: the wording only), for numbered lines and JSON objects the word and the
number of rows; elsewhere only the whole wording of the question or request, because facts must be seen. "direct" is
with thinking off; two-digit sums then show their steps in the answer.

Drafts are those of the MTP layer along the model's own greedy replies: a place counts for "first two" when the drafts
for both of the next two tokens are what the model itself then says.

"""

_ROUNDING = """
## After rounding

How far packages are from this checkpoint, teacher-forced over `release/demo/evaluation.jsonl` with the checkpoint in
BF16 and float32 arithmetic as the reference; `w4a8-plain` has the layouts of `w4a8` by plain rounding in groups of 32.
`docs/fidelity.md` explains the figures and has a plot of the error by position; `python -m release.demo.rounding`
measures them and writes them here.

{begin}
{end}
"""

_TAIL = """
## Limits

It answers in the words it was trained on and has no knowledge beyond them. Wordings unlike the trained ones often get a
wrong but fluent answer, as the table of paraphrases shows. Conversations were trained up to {time} tokens; the table of
long conversations shows how answers suffer beyond (`/reset` begins anew).
Tool calls are part of the chat template, but were not trained.
"""


def card(report: dict[str, Any], megabytes: float, config: dict[str, Any]) -> str:
    """The text of the model card."""
    plan = Plan()
    head = _HEAD.format(
        millions=report["parameters"] / 1e6,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=config["num_attention_heads"],
        head_width=config["head_dim"],
        experts=config["num_experts"],
        expert_inner=config["moe_intermediate_size"],
        chosen=config["num_experts_per_tok"],
        kept=config["topk_group"],
        groups=config["n_group"],
        vocabulary=config["vocab_size"],
        unused=UNUSED_ROWS,
        megabytes=megabytes,
        steps=plan.steps,
        workers=plan.workers,
        rows=plan.rows,
        time=plan.time,
        seed=plan.seed,
        second=plan.second_lesson,
        count=report["prompts_per_cell"],
    )
    rounding = _ROUNDING.format(begin=BEGIN, end=END)
    return head + table(report) + rounding + _TAIL.format(time=plan.time)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m release.demo.card", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("report", type=Path, help="what `release.demo.evaluate --json` wrote")
    parser.add_argument("--folder", type=Path, default=CHECKPOINT, help="checkpoint the report is about")
    options = parser.parse_args(arguments)
    report = json.loads(options.report.read_text(encoding="utf-8"))
    config = json.loads((options.folder / "config.json").read_text(encoding="utf-8"))
    megabytes = (options.folder / "model.safetensors").stat().st_size / 1e6
    (options.folder / "README.md").write_text(card(report, megabytes, config), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
