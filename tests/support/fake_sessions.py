"""A stand-in for the engine's session whose state is its token list, with the rules of ling3.h for exports."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from launcher.errors import EngineCrash, UsageError

HEAD = struct.Struct("<II")
SLOT = struct.Struct("<II")


@dataclass
class FakeState:
    """`failing` holds the calls that raise. An export is counts, slots, tokens, and `padding` bytes."""

    checkpoints: int = 4
    padding: int = 100
    timeline: list[int] = field(default_factory=list)
    slots: dict[int, int] = field(default_factory=dict)
    failing: set[str] = field(default_factory=set)
    calls: list[str] = field(default_factory=list)
    evaluated: int = 0

    @property
    def position(self) -> int:
        return len(self.timeline)

    def tokens(self) -> list[int]:
        return list(self.timeline)

    def reset(self) -> None:
        self.timeline.clear()
        self.slots.clear()

    def eval(self, ids: Sequence[int]) -> None:
        self._called("eval")
        self.timeline += ids
        self.evaluated += len(ids)

    def next_token(self) -> bytes:
        """What a model would say next: a function of everything consumed and of nothing else."""
        return hashlib.sha256(repr(self.timeline).encode()).digest()

    def save(self, slot: int) -> None:
        self._called("save")
        assert 0 <= slot < self.checkpoints
        self.slots[slot] = self.position

    def restore(self, slot: int) -> None:
        self._called("restore")
        self._cut(self.slots[slot])

    def checkpoint(self, slot: int) -> int | None:
        return self.slots.get(slot)

    @property
    def export_bytes(self) -> int:
        return HEAD.size + SLOT.size * len(self.slots) + 4 * self.position + self.padding

    def export_into(self, buffer: Any) -> None:
        self._called("export")
        assert len(buffer) == self.export_bytes
        parts = [HEAD.pack(self.position, len(self.slots)), *(SLOT.pack(*pair) for pair in self.slots.items())]
        data = b"".join(parts) + struct.pack(f"<{self.position}i", *self.timeline)
        buffer[: len(data)] = data

    def import_from(self, buffer: Any, position: int) -> None:
        self._called("import")
        data = bytes(buffer)
        count, used = HEAD.unpack_from(data)
        if len(data) != HEAD.size + SLOT.size * used + 4 * count + self.padding:
            raise UsageError("export", "no export")
        pairs = [SLOT.unpack_from(data, HEAD.size + SLOT.size * index) for index in range(used)]
        slots = {slot: place for slot, place in pairs if slot < self.checkpoints}
        if position != count and position not in slots.values():
            raise UsageError("export", "no such position")
        self.timeline = list(struct.unpack_from(f"<{count}i", data, HEAD.size + SLOT.size * used))
        self.slots = slots
        self._cut(position)

    def _cut(self, position: int) -> None:
        del self.timeline[position:]
        self.slots = {slot: place for slot, place in self.slots.items() if place <= position}

    def _called(self, name: str) -> None:
        self.calls.append(name)
        if name in self.failing:
            raise EngineCrash("engine-failed", f"{name} failed")
