"""What is told of the conversations that are kept, and of what a request could go on from."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field

from launcher.server.events import CacheSource
from launcher.server.session_entries import Entry, Key, Live, Ram
from launcher.server.session_files import SavedSession, SessionFiles


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """The engine session holds exactly the first `reused` ids of a prompt, which come from `source`; it is `live`."""

    reused: int
    source: CacheSource
    live: Live | None = field(default=None, compare=False, repr=False)


def is_unwanted(before: object) -> bool:
    """Whether `before` tells of a conversation that its owner has deleted since."""
    return isinstance(before, Begun) and before.live is not None and before.live.unwanted


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionInfo:
    """A conversation that has a name. `bytes` of memory or disk; `idle_seconds` since it was last used."""

    name: str
    tokens: int
    bytes: int
    place: CacheSource
    idle_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheUsage:
    """Sizes in bytes; `entries` are the conversations in memory besides the live one, counts are since the start."""

    bytes: int
    budget: int
    entries: int
    hits: int
    misses: int
    evictions: int
    disk_bytes: int


def usage_of(ram: Ram, files: SessionFiles | None, *, hits: int, misses: int) -> CacheUsage:
    """Sizes and counts."""
    return CacheUsage(
        bytes=ram.bytes,
        budget=ram.budget,
        entries=len(ram.entries()),
        hits=hits,
        misses=misses,
        evictions=ram.evictions,
        disk_bytes=0 if files is None else files.bytes,
    )


def listed(
    owner: str, saved: Iterable[SavedSession], entries: Iterable[Entry], live: Live | None, now: float
) -> tuple[SessionInfo, ...]:
    """The owner's named conversations, by name: each where its latest state is. `now` is on the entries' clock."""
    found: dict[str, SessionInfo] = {}

    def add(key: Key, tokens: int, size: int, place: CacheSource, idle: float) -> None:
        if key.owner == owner and key.name is not None and key.is_saved:
            found[key.name] = SessionInfo(
                name=key.name, tokens=tokens, bytes=size, place=place, idle_seconds=max(0.0, idle)
            )

    for file in saved:
        add(file.key, file.tokens, file.size, CacheSource.DISK, time.time() - file.modified)
    for entry in entries:
        add(entry.key, len(entry.ids), entry.block.size, CacheSource.RAM, now - entry.used)
    if live is not None and not live.deleted:
        idle = 0.0 if live.active else now - live.used
        add(live.key, live.tokens, live.bytes, CacheSource.LIVE, idle)
    return tuple(found[name] for name in sorted(found))
