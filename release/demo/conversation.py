"""Whole conversations: drawing them from the tasks, and their text with the marks of the chat template."""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from release.demo import words
from release.demo.drawing import Draw, Turn
from release.demo.tasks import TASKS, recalling

END_OF_TURN: Final = "<|role_end|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A system text (may be empty), whether thinking is on, and the turns; `task` names the last turn's kind."""

    task: str
    system: str
    thinking: bool
    turns: tuple[Turn, ...]

    def messages(self) -> list[dict[str, str]]:
        """The conversation as a list of chat messages, for rendering by the chat template."""
        listed = [{"role": "system", "content": self.system}] if self.system else []
        for turn in self.turns:
            listed.append({"role": "user", "content": turn.user})
            reasoning = turn.reasoning if self.thinking else ""
            listed.append({"role": "assistant", "reasoning_content": reasoning, "content": turn.answer})
        return listed


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A piece of the rendered text; `answer` is True where the model speaks (and so where it is trained)."""

    text: str
    answer: bool


def segments(conversation: Conversation) -> list[Segment]:
    """The rendered conversation, cut between what the model is given and what it says.

    Written out by hand, because jinja2 would be the slowest part of the training step; a test holds it equal to
    `chat_template.jinja`. Cuts fall only next to special tokens, so tokenising the pieces equals tokenising the whole.
    """
    switch = "on" if conversation.thinking else "off"
    system = f"{conversation.system}\n" if conversation.system else ""
    pieces = [Segment(text=f"<role>SYSTEM</role>{system}detailed thinking {switch}{END_OF_TURN}", answer=False)]
    for turn in conversation.turns:
        opening = f"<role>HUMAN</role>{turn.user}{END_OF_TURN}<role>ASSISTANT</role>\n<think>"
        if conversation.thinking:
            pieces.append(Segment(text=opening, answer=False))
            pieces.append(Segment(text=f"{turn.reasoning}</think>{turn.answer}{END_OF_TURN}", answer=True))
        else:
            pieces.append(Segment(text=f"{opening}</think>", answer=False))
            pieces.append(Segment(text=f"{turn.answer}{END_OF_TURN}", answer=True))
    return pieces


def text(conversation: Conversation) -> str:
    """The whole rendered conversation."""
    return "".join(piece.text for piece in segments(conversation))


def prompt(conversation: Conversation) -> str:
    """The rendered conversation up to the point where the last answer begins."""
    return "".join(piece.text for piece in segments(conversation)[:-1])


def draw_conversation(
    rng: random.Random,
    mix: Mapping[str, float],
    *,
    held_out: bool | None = False,
    task: str | None = None,
    chinese: bool | None = None,
    thinking: bool | None = None,
    turns: int | None = None,
    lesson: int = 2,
) -> Conversation:
    """Draws one conversation; `mix` gives the weight of each task, the rest is drawn too unless it is given."""
    if thinking is None:
        thinking = rng.random() < 0.5
    if turns is None:
        turns = rng.choices((1, 2, 3, 4, 5), (70, 14, 8, 4, 4))[0]
    names, weights = tuple(mix), tuple(mix.values())
    made: list[Turn] = []
    last = ""
    known_name = ""
    for _ in range(turns):
        last = task or rng.choices(names, weights)[0]
        in_chinese = rng.random() < 0.5 if chinese is None else chinese
        draw = Draw(rng=rng, chinese=in_chinese, thinking=thinking, held_out=held_out, lesson=lesson)
        if last == "name" and known_name:
            made.append(recalling(draw, known_name))
            continue
        made.append(TASKS[last](draw))
        if last == "name":
            known_name = made[-1].reasoning.removeprefix("The name is ").removeprefix("名字是").rstrip(".。")
            if rng.random() < 0.6 and turns > 1:
                made.append(recalling(draw, known_name))
    return Conversation(task=last, system=rng.choice(words.SYSTEM_TEXTS), thinking=thinking, turns=tuple(made))
