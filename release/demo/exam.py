"""Held-out prompts by cell (task, language, thinking), and judging the model's greedy answers by equality."""

import random
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from tokenizers import Tokenizer

from release.demo.conversation import END_OF_TURN, Conversation, draw_conversation, prompt
from release.demo.decode import greedy_in_groups
from release.demo.model import Ling
from release.demo.tasks import TASKS
from release.demo.tokenizer import PADDING, id_of

ANSWER_LIMIT: Final = 200
"""Longest answer in tokens; the longest right one has about 130."""

SEVERAL_TURNS: Final = "several turns"
"""The cell of conversations of three turns of any kind, of which the last is judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One kind of prompt."""

    task: str
    chinese: bool
    thinking: bool

    @property
    def name(self) -> str:
        """For tables and JSON, such as `add/en/think`."""
        return f"{self.task}/{'zh' if self.chinese else 'en'}/{'think' if self.thinking else 'direct'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One prompt, what the model made of it (reasoning included), and whether the answer text is exactly right."""

    cell: Cell
    conversation: Conversation
    reply: str
    right: bool


def cells() -> list[Cell]:
    """All cells: every task and the several-turn conversations, in both languages, thinking on and off.

    Giving one's name is left out: it has too few wordings to hold any out, and serves conversations of several turns.
    """
    return [
        Cell(task=task, chinese=chinese, thinking=thinking)
        for task in (*(name for name in TASKS if name != "name"), SEVERAL_TURNS)
        for chinese in (False, True)
        for thinking in (False, True)
    ]


def held_out_conversations(cell: Cell, count: int, seed: int) -> list[Conversation]:
    """`count` different prompts of a cell, none of which training can have drawn."""
    rng = random.Random(f"{seed} {cell.name}")
    several = cell.task == SEVERAL_TURNS
    mix = dict.fromkeys(TASKS, 1.0)
    found: dict[str, Conversation] = {}
    for _ in range(100 * count):
        drawn = draw_conversation(
            rng,
            mix,
            held_out=True,
            task=None if several else cell.task,
            chinese=cell.chinese,
            thinking=cell.thinking,
            turns=3 if several else 1,
        )
        found.setdefault(prompt(drawn), drawn)
        if len(found) == count:
            break
    return list(found.values())


def stop_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """The tokens that end an answer."""
    return frozenset({id_of(tokenizer, END_OF_TURN), id_of(tokenizer, PADDING)})


def judge(model: Ling, tokenizer: Tokenizer, asked: Iterable[tuple[Cell, Conversation]]) -> list[Judged]:
    """Decodes all prompts greedily and compares the text after `</think>` with the one right answer."""
    model.eval()
    listed = list(asked)
    prompts = [tokenizer.encode(prompt(conversation), add_special_tokens=False).ids for _, conversation in listed]
    replies = greedy_in_groups(model, prompts, stop=stop_ids(tokenizer), limit=ANSWER_LIMIT)
    judged = []
    for (cell, conversation), tokens in zip(listed, replies, strict=True):
        reply = tokenizer.decode(tokens, skip_special_tokens=False)
        answer = reply.rpartition("</think>")[2]
        right = answer == conversation.turns[-1].answer
        judged.append(Judged(cell=cell, conversation=conversation, reply=reply, right=right))
    return judged


def shares(judged: Iterable[Judged]) -> dict[str, float]:
    """The share of right answers by cell name."""
    by_cell: dict[str, list[bool]] = defaultdict(list)
    for item in judged:
        by_cell[item.cell.name].append(item.right)
    return {name: sum(rights) / len(rights) for name, rights in by_cell.items()}
