"""Greedy decoding of many prompts at once, token by token."""

from collections.abc import Sequence

import torch

from release.demo.model import Ling


@torch.no_grad()
def greedy(model: Ling, prompts: Sequence[Sequence[int]], *, stop: frozenset[int], limit: int) -> list[list[int]]:
    """The most likely continuation of each prompt, without the stop token, at most `limit` tokens.

    Prompts may differ in length: every sequence is fed one token a step, its own prompt first.
    """
    states = model.new_states()
    made: list[list[int]] = [[] for _ in prompts]
    open_ones = set(range(len(prompts)))
    current = torch.tensor([prompt[0] for prompt in prompts])
    time = 0
    while open_ones:
        time += 1
        best = model.step(current, states).argmax(-1).tolist()
        following = []
        for index, prompt in enumerate(prompts):
            if time < len(prompt):
                following.append(prompt[time])
                continue
            token = best[index]
            following.append(token)
            if index not in open_ones:
                continue
            if token in stop:
                open_ones.discard(index)
                continue
            made[index].append(token)
            if len(made[index]) == limit:
                open_ones.discard(index)
        current = torch.tensor(following)
    return made


def greedy_in_groups(
    model: Ling, prompts: Sequence[Sequence[int]], *, stop: frozenset[int], limit: int, group: int = 200
) -> list[list[int]]:
    """`greedy` for any number of prompts, grouped by length so that little work is wasted."""
    order = sorted(range(len(prompts)), key=lambda index: len(prompts[index]))
    made: list[list[int]] = [[] for _ in prompts]
    for start in range(0, len(order), group):
        chosen = order[start : start + group]
        for index, tokens in zip(
            chosen, greedy(model, [prompts[index] for index in chosen], stop=stop, limit=limit), strict=True
        ):
            made[index] = tokens
    return made
