"""Which of the states that are kept a request goes on from."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final

from launcher.server.events import CacheSource
from launcher.server.session_entries import SYSTEM_SLOT, Entry, Key, Live, common_prefix


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A state and the position where it can go on with the prompt.

    Attributes:
        reused: that position, 0 where it cannot.
        rank: order among states that agree as far: the conversation's own one, then the one that costs least.
        key: whose it is.
        entry: where it is in memory.
        checkpoints: slot -> position of the state.
        tokens: its length.
        private: whether only its own conversation may go on with it.
    """

    reused: int
    rank: int
    source: CacheSource
    key: Key | None = None
    entry: Entry | None = None
    checkpoints: Mapping[int, int] = field(default_factory=dict)
    tokens: int = 0
    private: bool = False

    def key_of(self, new: Key, slots: int) -> Key:
        """The conversation that goes on from here: the one that was asked for by its name, or a nameless one, which is
        `new` unless it carries on this one."""
        if new.name is not None:
            return replace(new, number=0)
        return self.key if self.key is not None and self.carries_on(new, slots) else new

    def carries_on(self, asked: Key, slots: int) -> bool:
        """Whether a prompt under this name, or under none, goes on with this very conversation."""
        return self.key is not None and self.key.is_of(asked) and self.reused > 0 and not self.leaves(slots)

    def leaves(self, slots: int) -> bool:
        """Whether a prompt that goes on from here is of another conversation, which shares a system text at most."""
        shared = self.checkpoints.get(SYSTEM_SLOT, 0) if slots > 1 else 0
        return self.reused <= shared and self.reused < self.tokens


COLD: Final = Choice(reused=0, rank=0, source=CacheSource.NONE)


def usable_position(ids: array[int], checkpoints: Mapping[int, int], prompt: array[int]) -> int:
    """The furthest position where a state for these ids can go on with the prompt; 0 where it cannot.

    That is its end or a checkpoint (slot -> position). The prompt's last id is always left to evaluate.
    """
    common = min(common_prefix(ids, prompt), len(prompt) - 1)
    places = (len(ids), *checkpoints.values())
    return max((place for place in places if place <= common), default=0)


def live_choice(live: Live, ids: array[int], checkpoints: Mapping[int, int], own: Key, prompt: array[int]) -> Choice:
    """The state in the engine."""
    return Choice(
        reused=usable_position(ids, checkpoints, prompt),
        rank=0 if live.key.is_of(own) else 2,
        source=CacheSource.LIVE,
        key=live.key,
        checkpoints=checkpoints,
        tokens=len(ids),
        private=live.private,
    )


def entry_choice(entry: Entry, own: Key, prompt: array[int]) -> Choice:
    """A state in memory."""
    return Choice(
        reused=usable_position(entry.ids, entry.checkpoints, prompt),
        rank=1 if entry.key.is_of(own) else 3,
        source=CacheSource.RAM,
        key=entry.key,
        entry=entry,
        checkpoints=entry.checkpoints,
        tokens=len(entry.ids),
        private=entry.private,
    )


def saved_choices(
    own: Key, saved: tuple[array[int], Mapping[int, int]] | None, prompt: array[int]
) -> tuple[Choice, ...]:
    """The conversation's state on disk, token ids and checkpoints, if there is one."""
    if saved is None:
        return ()
    ids, checkpoints = saved
    reused = usable_position(ids, checkpoints, prompt)
    choice = Choice(reused=reused, rank=4, source=CacheSource.DISK, key=own, checkpoints=checkpoints, tokens=len(ids))
    return (choice,)


def best_choice(choices: Iterable[Choice], own: Key) -> Choice:
    """The state that agrees furthest, if any agrees; among equal ones that of the smallest rank. A private one is for
    its own conversation alone: where there are no keys, everybody is the same owner."""
    usable = (
        choice
        for choice in choices
        if choice.reused and (not choice.private or (choice.key is not None and choice.key.is_of(own)))
    )
    return min(usable, key=lambda choice: (-choice.reused, choice.rank), default=COLD)
