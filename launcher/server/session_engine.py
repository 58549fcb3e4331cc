"""The engine session as a state that can be kept, moved and taken back to a checkpoint."""

from __future__ import annotations

from array import array
from typing import Any, Protocol

from launcher.errors import MindnanoError
from launcher.server.request import MarkKind
from launcher.server.session_entries import SYSTEM_SLOT, token_array
from launcher.timeline import CheckpointPort


class StatePort(CheckpointPort, Protocol):
    """What is needed of `launcher.engine.Session`."""

    @property
    def export_bytes(self) -> int: ...

    def export_into(self, buffer: Any) -> None: ...

    def import_from(self, buffer: Any, position: int) -> None: ...


class EngineState:
    """One engine session. What the engine refuses is answered by False; a session that moved is then to be reset."""

    def __init__(self, session: StatePort) -> None:
        self._session = session

    @property
    def slots(self) -> int:
        """How many checkpoints the session has room for."""
        return self._session.checkpoints

    def state(self) -> tuple[array[int], dict[int, int]]:
        """Token ids and checkpoints, slot -> position."""
        session = self._session
        slots = ((slot, session.checkpoint(slot)) for slot in range(session.checkpoints))
        return token_array(session.tokens()), {slot: position for slot, position in slots if position}

    def keep(self, kind: MarkKind) -> None:
        """Keeps the present position: the shared beginning in its own slot, a turn in an empty one or the earliest."""
        session = self._session
        held = [session.checkpoint(slot) for slot in range(session.checkpoints)]
        if not held or not session.position or session.position in held:
            return
        if kind is MarkKind.SYSTEM and len(held) > 1:
            session.save(SYSTEM_SLOT)
            return
        turns = range(1 if len(held) > 1 else 0, len(held))
        session.save(min(turns, key=lambda slot: held[slot] or 0))

    def roll_back(self, position: int) -> bool:
        """Goes back to the checkpoint at this position."""
        session = self._session
        if session.position == position:
            return True
        slot = next((slot for slot in range(session.checkpoints) if session.checkpoint(slot) == position), None)
        if slot is None:
            return False
        try:
            session.restore(slot)
        except MindnanoError:
            return False
        return session.position == position

    def export_into(self, memory: Any) -> bool:
        """Writes the whole state, `export_bytes` long."""
        try:
            self._session.export_into(memory)
        except MindnanoError:
            return False
        return True

    def take(self, memory: Any, position: int, prompt: array[int]) -> bool:
        """Takes an export's place at a position, and makes sure that nothing but the prompt's beginning is in it."""
        try:
            self._session.import_from(memory, position)
        except MindnanoError:
            return False
        return token_array(self._session.tokens()) == prompt[:position]
