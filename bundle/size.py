"""What takes how much room in the portable program, held against the budget in elf_policy.toml."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bundle.elf_policy import Rules, load_rules
from bundle.errors import BundleError
from bundle.payload import Packed
from launcher.payload.carried import LLGUIDANCE, NOTICES, RKNN_RUNTIME, SBOM

TOTAL: Final = "total"
MODEL: Final = "model"
_PROGRAM: Final = "program"
_OTHER: Final = "other"
_MODELS: Final = "models/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A component with its size and the most that it may have, in bytes; a limit of None is none."""

    component: str
    size: int
    limit: int | None

    @property
    def passed(self) -> bool:
        """Whether it stays within its limit."""
        return self.limit is None or self.size <= self.limit


def component_sizes(packed: Packed) -> dict[str, int]:
    """Bytes by component; they add up to the file. `other` holds lists, gaps and members of no other component."""
    sizes = {_PROGRAM: packed.elf_bytes}
    for member in packed.members:
        component = _component(member.name)
        if component != _OTHER:
            sizes[component] = sizes.get(component, 0) + member.size
    sizes[_OTHER] = packed.size - sum(sizes.values())
    return sizes


def _component(name: str) -> str:
    if name == RKNN_RUNTIME:
        return "rknn"
    if name == LLGUIDANCE:
        return "llguidance"
    if name == SBOM:
        return "sbom"
    if name.startswith(NOTICES):
        return "notices"
    return MODEL if name.startswith(_MODELS) else _OTHER


def check_sizes(sizes: Mapping[str, int], rules: Rules | None = None) -> tuple[Row, ...]:
    """Components with their limits, largest first, then the total without the model, which has no limit.

    Raises:
        BundleError: a component has no budget.
    """
    budget = (rules or load_rules()).budget
    unknown = sorted(name for name in sizes if name not in budget.keys() - {TOTAL} | {MODEL})
    if unknown:
        raise BundleError("budget-unknown", f"no budget is set for {', '.join(unknown)}")
    rows = [Row(component=name, size=size, limit=budget.get(name)) for name, size in sizes.items()]
    rows.sort(key=lambda row: (-row.size, row.component))
    total = sum(size for name, size in sizes.items() if name != MODEL)
    return (*rows, Row(component=TOTAL, size=total, limit=budget[TOTAL]))


def table(rows: tuple[Row, ...]) -> str:
    """The rows for people, in millions of bytes."""
    lines = ["component        MB    at most"]
    for row in rows:
        limit = "" if row.limit is None else f"{row.limit / 1e6:10.1f}"
        lines.append(f"{row.component:<10} {row.size / 1e6:8.2f} {limit}{'' if row.passed else '  too large'}".rstrip())
    return "\n".join(lines)
