"""Whole sessions in memory: exports of the engine by conversation, bounded in bytes, the longest unused one first out.

Every byte is counted before it is allocated and given back to the system when it is freed. One thread adds and evicts;
any thread may forget an entry, which waits for a user of its memory (`pinned`) to be done with it. Entries that need no
writing go before those that do, so that a request seldom waits for a disk.
"""

from __future__ import annotations

import mmap
import threading
from array import array
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

SYSTEM_SLOT: Final = 0
"""Where a session with more than one checkpoint keeps the end of what its system text shares with others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A conversation: an owner's name for it, or a number that tells apart those without a name.

    A name with a number is an earlier conversation that gave its name to another one: clients give one name to several.
    """

    owner: str
    name: str | None
    number: int = 0

    @property
    def is_saved(self) -> bool:
        """Whether it belongs on the disk, and to what is told of the owner's conversations."""
        return self.name is not None and not self.number

    def is_of(self, asked: Key) -> bool:
        """Whether it is what was asked for, or was under that name; any nameless one is, where no name was."""
        return (self.owner, self.name) == (asked.owner, asked.name)


def token_array(ids: Iterable[int]) -> array[int]:
    """Token ids as int32, which compare at the speed of memory."""
    return array("i", ids)


def common_prefix(left: array[int], right: array[int]) -> int:
    """How many ids two sequences have in common at their beginning."""
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if left[low:middle] == right[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


class Block:
    """Private anonymous memory: closing it returns the bytes to the system, which freeing from a heap may not."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def close(self) -> None:
        """Frees the memory, also where a view of it is still referenced."""
        try:
            self.memory.close()
        except BufferError:  # a view in the frames of an exception that somebody keeps
            self.memory.madvise(mmap.MADV_DONTNEED)


@dataclass(slots=True, kw_only=True, eq=False)
class Entry:
    """One conversation's state outside the engine.

    Attributes:
        ids: what it has consumed.
        checkpoints: slot -> position.
        block: the engine's export.
        used: when it was last used, on the store's clock.
        changed: whether the disk has another state than this, or none.
        private: whether a client sent it, or what it goes on from. That the numbers in it are what the ids lead to is
            then only that client's word, so no request of another conversation goes on from it.
        pinned: how many users of the memory there are.
        forgotten: whether nobody may find it any more.
    """

    key: Key
    ids: array[int]
    checkpoints: dict[int, int]
    block: Block
    used: float
    changed: bool = True
    private: bool = False
    pinned: int = 0
    forgotten: bool = False


@dataclass(slots=True, kw_only=True, eq=False, weakref_slot=True)
class Live:
    """The conversation in the engine; `tokens` and `bytes` are of when it was last looked at, `private` see `Entry`.

    `deleted`: nobody may find it any more; `unwanted`: because its owner deleted it, so that a request which leaves the
    engine in between must not bring it back either.
    """

    key: Key
    used: float
    active: bool = True
    changed: bool = True
    private: bool = False
    deleted: bool = False
    unwanted: bool = False
    tokens: int = 0
    bytes: int = 0


@dataclass(slots=True, kw_only=True)
class Ram:
    """The entries and the budget. `lock` guards all of it.

    Attributes:
        is_due: whether evicting an entry takes a `spill`.
        spill: saves an entry that is to be evicted; called unlocked. What it raises keeps the entry.
        budget: most bytes that all blocks together may have.
        bytes: what they have now, or are about to have.
        evictions: entries that had to go for others.
    """

    budget: int
    lock: threading.RLock
    is_due: Callable[[Entry], bool]
    spill: Callable[[Entry], None]
    bytes: int = 0
    evictions: int = 0
    _entries: dict[Key, Entry] = field(default_factory=dict)

    def entries(self) -> tuple[Entry, ...]:
        """All of them, the longest unused one first."""
        with self.lock:
            return tuple(self._entries.values())

    def get(self, key: Key) -> Entry | None:
        """The conversation's entry."""
        with self.lock:
            return self._entries.get(key)

    def new_block(self, size: int) -> Block | None:
        """Memory for one export, after evicting what must go for it; None where it cannot have that much."""
        if not self._make_room(size):
            return None
        with self.lock:
            self.bytes += size
        try:
            return Block(size)
        except (OSError, ValueError, MemoryError):
            with self.lock:
                self.bytes -= size
            return None

    def free(self, block: Block) -> None:
        """Gives a block back that belongs to no entry."""
        with self.lock:
            block.close()
            self.bytes -= block.size

    def put(self, entry: Entry) -> None:
        """Adds an entry as the one that was used last; an older one of the same conversation goes."""
        with self.lock:
            self.forget(entry.key)
            self._entries[entry.key] = entry

    def supersede(self, key: Key, aside: Key) -> None:
        """What is live takes the key: the entry that has it goes, or becomes that of `aside` where this is another."""
        with self.lock:
            entry = self._entries.get(key)
            if entry is None or aside == key:
                self.forget(key)
                return
            entry.key = aside
            self._entries = {each.key: each for each in self._entries.values()}  # it keeps its place in the order

    def name_again(self, key: Key) -> None:
        """What has the key was nothing after all: the latest entry that left its name to another one takes it back."""
        with self.lock:
            earlier = [entry for entry in self.entries() if key.name is not None and entry.key.is_of(key)]
            if earlier and key not in self._entries:
                max(earlier, key=lambda entry: entry.key.number).key = key
                self._entries = {each.key: each for each in self._entries.values()}

    def touch(self, entry: Entry, now: float) -> None:
        """Makes it the one that was used last."""
        with self.lock:
            if self._entries.get(entry.key) is entry:
                entry.used = now
                self._entries[entry.key] = self._entries.pop(entry.key)

    def forget(self, key: Key) -> bool:
        """Removes a conversation's entry; returns whether there was one."""
        with self.lock:
            entry = self._entries.pop(key, None)
            if entry is None:
                return False
            entry.forgotten = True
            if not entry.pinned:
                self.free(entry.block)
            return True

    def forget_private(self, asked: Key) -> None:
        """Removes the private entries that are or were under this name."""
        for entry in self.entries():
            if entry.private and entry.key.is_of(asked):
                self.forget(entry.key)

    @contextmanager
    def pin(self, entry: Entry) -> Iterator[bool]:
        """Keeps the entry's memory from being freed or evicted in the context; False where it is forgotten already."""
        with self.lock:
            alive = not entry.forgotten
            entry.pinned += alive
        try:
            yield alive
        finally:
            with self.lock:
                entry.pinned -= alive
                if alive and entry.forgotten and not entry.pinned:
                    self.free(entry.block)

    def _make_room(self, size: int) -> bool:
        if size > self.budget:
            return False
        while True:
            with self.lock:
                if self.bytes + size <= self.budget:
                    return True
                evictable = sum(entry.block.size for entry in self._entries.values() if not entry.pinned)
                # The longest unused one comes first among those that cost the same.
                victim = min(
                    (entry for entry in self._entries.values() if not entry.pinned), key=self.is_due, default=None
                )
                if victim is None or self.bytes - evictable + size > self.budget:
                    return False  # evicting the others would be of no use
            with self.pin(victim) as alive:
                if alive and self.is_due(victim):
                    self.spill(victim)
            with self.lock:
                if self._entries.get(victim.key) is victim:
                    self.evictions += 1
                    self.forget(victim.key)
