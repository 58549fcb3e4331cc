"""Trains the built-in model: `python -m release.demo.train --out DIR`.

Everything follows from the seed and the step number: text, initial weights, learning rate. A run that was stopped goes
on from the last saved state when it is started again with the same folder. The result is `DIR/checkpoint`.
"""

import argparse
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn import functional

from release.demo.architecture import Architecture
from release.demo.checkpoint import save_checkpoint
from release.demo.exam import cells, held_out_conversations, judge
from release.demo.layers import Experts, Layout
from release.demo.model import Ling
from release.demo.optimiser import optimisers
from release.demo.packing import Batch, Packer
from release.demo.tokenizer import PADDING, id_of, train_tokenizer
from release.demo.workers import Team, run_team

FIRST_MIX: Final[Mapping[str, float]] = {
    "greeting": 3.0,
    "identity": 4.0,
    "fact": 13.0,
    "unknown": 6.0,
    "list": 5.0,
    "copy": 13.0,
    "reverse": 12.0,
    "count": 12.0,
    "table": 10.0,
    "add": 12.0,
    "subtract": 12.0,
    "digits": 6.0,
    "name": 3.0,
}
"""Share of each task among the turns of the first lesson, by difficulty."""

SECOND_MIX: Final[Mapping[str, float]] = {
    "greeting": 2.0,
    "identity": 3.0,
    "fact": 13.0,
    "unknown": 4.0,
    "list": 4.0,
    "copy": 16.0,
    "reverse": 9.0,
    "count": 16.0,
    "table": 10.0,
    "add": 9.0,
    "subtract": 15.0,
    "digits": 5.0,
    "name": 3.0,
}
"""The same for the second lesson: more of what the first left uncertain."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run does; `rows` are each worker's.

    From step `second_lesson` on the text is the second lesson's. The learning rate rises for `warm_up` steps, stays,
    and falls from half of the steps on, linearly to 2 %.
    """

    steps: int = 2200
    workers: int = 2
    rows: int = 6
    time: int = 320
    rate: float = 6e-3
    warm_up: int = 60
    further_weight: float = 0.3
    balance_rate: float = 1e-3
    clip: float = 1.0
    seed: int = 3
    save_every: int = 100
    exam_every: int = 200
    second_lesson: int = 1700

    def scale(self, step: int) -> float:
        """The learning rate's share at a step counted from 0."""
        rising = min(1.0, (step + 1) / self.warm_up)
        done = step / self.steps
        return rising * min(1.0, max(0.02, 2.0 * (1.0 - done)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """The loss to minimise, and for the log: cross entropies and shares right for the next token and the one after."""

    total: Tensor
    next_loss: float
    further_loss: float
    next_right: float
    further_right: float


def _ahead(x: Tensor, steps: int) -> Tensor:
    """x[:, t + steps], zero beyond the end."""
    return functional.pad(x[:, steps:], (0, steps))


def losses(model: Ling, batch: Batch, further_weight: float) -> Losses:
    """Cross entropy of the answers' tokens, from the trunk one token ahead and from the MTP layer two ahead."""
    layout = Layout.of(batch.positions)
    hidden = model.trunk(batch.ids, layout)
    further = model.predict(hidden, _ahead(batch.ids, 1), layout)
    values, rights, plain = [], [], []
    for ahead, states in ((1, hidden), (2, further)):
        same_document = _ahead(batch.positions, ahead) >= ahead
        weights = (_ahead(batch.weights, ahead) * same_document).flatten()
        chosen = weights.nonzero()[:, 0]
        logits = model.logits(states.flatten(0, 1)[chosen])
        wanted = _ahead(batch.ids, ahead).flatten()[chosen]
        each = functional.cross_entropy(logits, wanted, reduction="none")
        weights = weights[chosen]
        values.append((each * weights).sum() / weights.sum())
        plain.append(each.detach().mean().item())
        rights.append((logits.argmax(-1) == wanted).float().mean().item())
    return Losses(
        total=values[0] + further_weight * values[1],
        next_loss=plain[0],
        further_loss=plain[1],
        next_right=rights[0],
        further_right=rights[1],
    )


class Trainer:
    """One run: model, optimisers, source of text, and where it stands."""

    def __init__(self, plan: Plan, team: Team, tokenizer: Tokenizer, out: Path) -> None:
        torch.manual_seed(plan.seed)
        self.plan = plan
        self.team = team
        self.tokenizer = tokenizer
        self.out = out
        self.model = Ling(Architecture())
        self.muon, self.adam = optimisers(self.model)
        padding = id_of(tokenizer, PADDING)
        seed = plan.seed * 1000 + team.rank
        self.packer = Packer(tokenizer, rows=plan.rows, time=plan.time, padding=padding, seed=seed)
        self.step = 0
        self.tokens = 0

    def advance(self) -> Losses:
        """One step of training."""
        plan = self.plan
        share = plan.scale(self.step)
        self.model.train()
        lesson = 1 if self.step < plan.second_lesson else 2
        batch = self.packer.batch(FIRST_MIX if lesson == 1 else SECOND_MIX, lesson)
        result = losses(self.model, batch, plan.further_weight)
        result.total.backward()  # type: ignore[no-untyped-call]
        experts = [block.mlp for block in self.model.layers if isinstance(block.mlp, Experts)]
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        self.team.average([*gradients, *(mlp.load for mlp in experts)])
        others = [parameter for group in self.adam.param_groups for parameter in group["params"]]
        torch.nn.utils.clip_grad_norm_(others, plan.clip)
        for optimiser in (self.muon, self.adam):
            for group in optimiser.param_groups:
                group["lr"] = plan.rate * share
            optimiser.step()
            optimiser.zero_grad(set_to_none=True)
        for mlp in experts:
            mlp.expert_bias += plan.balance_rate * share * (mlp.load.mean() - mlp.load).sign()
            mlp.load.zero_()
        self.step += 1
        self.tokens += batch.tokens
        return result

    def save(self) -> None:
        """Saves all that `resume` needs, and the checkpoint as it stands; all workers call it, rank 0 writes."""
        waiting = [(document.ids, document.weights) for document in self.packer.waiting]
        sources = self.team.gather((self.packer.rng.getstate(), waiting))
        if self.team.rank != 0:
            return
        state = {
            "step": self.step,
            "tokens": self.tokens,
            "model": self.model.state_dict(),
            "muon": self.muon.state_dict(),
            "adam": self.adam.state_dict(),
            "sources": sources,
        }
        partial = self.out / "state.pt.partial"
        torch.save(state, partial)
        partial.replace(self.out / "state.pt")
        save_checkpoint(self.model, self.tokenizer, self.out / "checkpoint")

    def resume(self) -> bool:
        """Goes on from a saved state, if there is one."""
        path = self.out / "state.pt"
        if not path.exists():
            return False
        state: dict[str, Any] = torch.load(path, weights_only=True)
        self.step, self.tokens = state["step"], state["tokens"]
        self.model.load_state_dict(state["model"])
        self.muon.load_state_dict(state["muon"])
        self.adam.load_state_dict(state["adam"])
        (version, numbers, gauss), waiting = state["sources"][self.team.rank]
        self.packer.rng.setstate((version, tuple(numbers), gauss))
        self.packer.restore(waiting)
        return True

    def exam(self, count: int) -> dict[str, float]:
        """Held-out prompts while training: the share right by task, `count` prompts for each of its cells."""
        asked = [
            (cell, conversation)
            for cell in cells()
            for conversation in held_out_conversations(cell, count, self.plan.seed)
        ]
        by_task: dict[str, list[bool]] = {}
        for item in judge(self.model, self.tokenizer, asked):
            mode = "think" if item.cell.thinking else "direct"
            by_task.setdefault(f"{item.cell.task}/{mode}", []).append(item.right)
        return {name: round(sum(rights) / len(rights), 3) for name, rights in by_task.items()}


def _note(trainer: Trainer, result: Losses, seconds: float) -> None:
    """Rank 0's log entry, to standard output and to `log.jsonl`."""
    entry: dict[str, Any] = {
        "step": trainer.step,
        "tokens_per_worker": trainer.tokens,
        "seconds_per_step": round(seconds, 3),
        "loss": round(result.next_loss, 4),
        "further_loss": round(result.further_loss, 4),
        "right": round(result.next_right, 4),
        "further_right": round(result.further_right, 4),
    }
    if trainer.step % trainer.plan.exam_every == 0:
        entry["exam"] = trainer.exam(8)
    line = json.dumps(entry)
    print(line, flush=True)
    with (trainer.out / "log.jsonl").open("a", encoding="utf-8") as log:
        print(line, file=log)


def work(team: Team, plan: Plan, out: Path) -> None:
    """What each worker does: trains to the end of the plan."""
    tokenizer = Tokenizer.from_file(str(out / "tokenizer.json"))
    trainer = Trainer(plan, team, tokenizer, out)
    if trainer.resume() and team.rank == 0:
        print(f"going on from step {trainer.step}", file=sys.stderr)
    began = time.monotonic()
    while trainer.step < plan.steps:
        result = trainer.advance()
        if team.rank == 0 and trainer.step % 20 == 0:
            _note(trainer, result, (time.monotonic() - began) / 20)
        if trainer.step % 20 == 0:
            began = time.monotonic()
        if trainer.step % plan.save_every == 0 or trainer.step == plan.steps:
            trainer.save()


def main(arguments: Sequence[str] | None = None) -> int:
    """The command. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m release.demo.train", description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True, help="folder for the state, the log and the checkpoint")
    parser.add_argument("--steps", type=int, default=Plan().steps, help="steps of the schedule (default %(default)s)")
    options = parser.parse_args(arguments)
    plan = Plan(steps=options.steps)
    options.out.mkdir(parents=True, exist_ok=True)
    train_tokenizer(Architecture().vocabulary, plan.seed).save(str(options.out / "tokenizer.json"))
    run_team(plan.workers, options.out, work, plan, options.out)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
