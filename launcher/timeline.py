"""How far a session agrees with a new prompt, and where it goes on from.

What a session has consumed is kept as far as it equals the prompt token for token, so that a reply never depends on
what was evaluated before. Where the two part, the session returns to the last checkpoint before that place; without
one it starts again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class CheckpointPort(Protocol):
    """What a timeline needs of `launcher.engine.Session`."""

    @property
    def position(self) -> int: ...

    @property
    def checkpoints(self) -> int: ...

    def tokens(self) -> list[int]: ...

    def reset(self) -> None: ...

    def save(self, slot: int) -> None: ...

    def restore(self, slot: int) -> None: ...

    def checkpoint(self, slot: int) -> int | None: ...


def common_length(left: Sequence[object], right: Sequence[object]) -> int:
    """How many items (ids, characters) two sequences have in common at their beginning."""
    shorter = min(len(left), len(right))
    if left[:shorter] == right[:shorter]:
        return shorter
    return next(index for index, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)


class Timeline:
    """A session and its checkpoints. One slot stays with the base, the beginning that every conversation shares."""

    def __init__(self, session: CheckpointPort) -> None:
        self._session = session
        self._base = 0 if session.checkpoints > 1 else None
        self._turns = range(0 if self._base is None else 1, session.checkpoints)

    def agree(self, ids: Sequence[int]) -> int:
        """Takes the session back to where it equals the prompt; returns how many of the prompt's ids it keeps.

        At least the last id is left to evaluate, because its logits are needed.
        """
        session = self._session
        consumed = session.tokens()
        common = common_length(consumed, ids[:-1])
        if common == len(consumed):
            return common
        slots = [(position, slot) for slot in range(session.checkpoints) if (position := session.checkpoint(slot))]
        usable = [(position, slot) for position, slot in slots if position <= common]
        if not usable:
            session.reset()
            return 0
        position, slot = max(usable)
        session.restore(slot)
        return position

    def keep(self, *, base: bool) -> None:
        """Saves the present position: in the base's slot, or in one that is empty or holds the earliest turn.

        Slots beyond a position are empty, so the earliest turn is also the one that was longest of no use.
        """
        session = self._session
        held = [session.checkpoint(slot) for slot in range(session.checkpoints)]
        if not held or session.position in held:
            return
        if base and self._base is not None:
            session.save(self._base)
            return
        session.save(min(self._turns, key=lambda slot: -1 if held[slot] is None else held[slot] or 0))

    def forget(self) -> None:
        """Goes back to the base, or to nothing."""
        if self._base is not None and self._session.checkpoint(self._base) is not None:
            self._session.restore(self._base)
        else:
            self._session.reset()
