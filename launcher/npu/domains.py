"""Whether buffers fit into the address spaces of the NPU: 4 GB domains, filled with pieces of at most 64 MiB."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

# 32-bit addresses; the allocator keeps the ends for itself, about 3.9 GB of 4.29 can be had.
DOMAIN_BYTES = 3900 * 1000 * 1000
MAX_DOMAINS = 16
DOMAINS_SINCE = (0, 9, 6)  # the driver that can switch between domains
_PIECE_BYTES = 64 << 20  # single huge buffers fail where the same bytes in pieces succeed
_PAGE = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainPlan:
    """Bytes used in each domain, and the first buffer that found no place with what was still free then."""

    used: tuple[int, ...]
    misfit: str | None = None
    missing: int = 0
    free: int = 0


def domains_of(driver: tuple[int, int, int] | None) -> int:
    """How many domains a driver has; one where its version is unknown."""
    return MAX_DOMAINS if driver is not None and driver >= DOMAINS_SINCE else 1


def plan_domains(buffers: Iterable[tuple[str, int]], domains: int) -> DomainPlan:
    """Places named buffers, in pieces and in order, into the first domain with room for each piece."""
    used = [0] * domains
    for name, size in buffers:
        left = size
        while left > 0:
            piece = -(-min(left, _PIECE_BYTES) // _PAGE) * _PAGE
            place = next((index for index, taken in enumerate(used) if taken + piece <= DOMAIN_BYTES), None)
            if place is None:
                free = sum(DOMAIN_BYTES - taken for taken in used)
                return DomainPlan(used=_filled(used), misfit=name, missing=left, free=free)
            used[place] += piece
            left -= min(left, _PIECE_BYTES)
    return DomainPlan(used=_filled(used))


def _filled(used: list[int]) -> tuple[int, ...]:
    return tuple(taken for taken in used if taken)
