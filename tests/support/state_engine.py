"""A stand-in for engine and session in one: computes nothing, can be moved like the real one, and remembers a lie.

What it says depends on every id that it holds and on `lie`, which only a forged export brings in: whoever goes on from
one without knowing says something else.
"""

from __future__ import annotations

import random
import struct
import threading
from array import array
from collections.abc import Callable
from typing import Any, Final

from launcher.errors import Cancelled, RequestError, UsageError
from launcher.server.session_format import Origin
from launcher.server.session_state import Inspected
from tests.support.fake_generation import FakeEngine

HEAD: Final = struct.Struct("<III")
SLOT: Final = struct.Struct("<II")
ORIGIN: Final = Origin(identity=b"i" * 32, template_sha256=b"t" * 32, kv="bf16", engine="ling3 0.1.0")


class StateEngine(FakeEngine):
    """`is_open` is False while its memory is given back; whatever is done to it then is noted in `wrong`."""

    checkpoints = 4

    def __init__(self, *, context: int = 10_000) -> None:
        super().__init__(context=context)
        self.slots: dict[int, int] = {}
        self.lie = 0
        self.is_open = True

    def check_thread(self, what: str) -> None:
        super().check_thread(what)
        if not self.is_open:
            self.wrong.append(f"{what} while the memory is given back")

    def logits(self) -> int:
        return super().logits() ^ self.lie

    def tokens(self) -> list[int]:
        return list(self.timeline)

    def reset(self) -> None:
        self.rewind(0)
        self.slots.clear()
        self.lie = 0

    def save(self, slot: int) -> None:
        self.check_thread("save")
        self.slots[slot] = self.position

    def restore(self, slot: int) -> None:
        self.check_thread("restore")
        self._cut(self.slots[slot])

    def checkpoint(self, slot: int) -> int | None:
        return self.slots.get(slot)

    @property
    def export_bytes(self) -> int:
        return HEAD.size + SLOT.size * len(self.slots) + 4 * self.position

    def export_into(self, buffer: Any) -> None:
        self.check_thread("export")
        head = HEAD.pack(self.position, len(self.slots), self.lie)
        buffer[:] = (
            head + b"".join(SLOT.pack(*pair) for pair in self.slots.items()) + array("i", self.timeline).tobytes()
        )

    def import_from(self, buffer: Any, position: int) -> None:
        self.check_thread("import")
        count, _, lie = HEAD.unpack_from(buffer)
        found = inspected(buffer)
        if position != count and position not in found.checkpoints.values():
            raise UsageError("export", "no such position")
        self.timeline = list(found.ids)
        self.slots = dict(found.checkpoints)
        self.lie = lie
        self._cut(position)

    def _cut(self, position: int) -> None:
        self.rewind(position)
        self.slots = {slot: place for slot, place in self.slots.items() if place <= position}


def inspected(memory: Any) -> Inspected:
    """What an export says of itself."""
    count, used, _ = HEAD.unpack_from(memory)
    if len(memory) != HEAD.size + SLOT.size * used + 4 * count:
        raise UsageError("export", "no export")
    slots = dict(SLOT.unpack_from(memory, HEAD.size + SLOT.size * index) for index in range(used))
    ids = array("i", bytes(memory[HEAD.size + SLOT.size * used :]))
    return Inspected(identity=ORIGIN.identity, kv=ORIGIN.kv, ids=ids, checkpoints=slots)


def forged(export: bytes) -> bytes:
    """The same with numbers that its ids do not lead to."""
    count, used, _ = HEAD.unpack_from(export)
    return HEAD.pack(count, used, 0x5A5A5A5A) + export[HEAD.size :]


class FakeMemory:
    """See `launcher.server.sleeping.MemoryPort`; what it takes again comes in steps, and sometimes not at all."""

    def __init__(self, engine: StateEngine, rng: random.Random, step: Callable[[], None]) -> None:
        self._engine = engine
        self._rng = rng
        self._step = step
        self.given = 0

    def resident(self) -> int | None:
        return None

    def give_back(self) -> None:
        assert threading.current_thread().name == "generation"
        self._engine.reset()
        self._engine.is_open = False
        self.given += 1

    def take_again(self, is_stopped: Callable[[], bool]) -> None:
        if self._rng.random() < 0.1:
            raise RequestError("memory_short", "too little memory", status=503)
        for _ in range(self._rng.randrange(4)):
            if is_stopped():
                raise Cancelled("cancelled", "loading was stopped")
            self._step()
        self._engine.is_open = True
