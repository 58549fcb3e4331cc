"""What is told of the conversations that are kept."""

from __future__ import annotations

from dataclasses import dataclass

from launcher.server.events import CacheSource


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
