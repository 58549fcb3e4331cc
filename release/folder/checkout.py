"""The source that this program runs from: its commit, and the time that stands in for every time of building."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launcher.errors import UsageError

ROOT: Final = Path(__file__).parents[2]
EPOCH: Final = "SOURCE_DATE_EPOCH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """`commit` is None where tracked files differ from it; `epoch` in seconds since 1970, None where unknown."""

    commit: str | None
    epoch: int | None


def read_checkout(environ: Mapping[str, str], folder: Path = ROOT) -> Checkout:
    """Asks Git; SOURCE_DATE_EPOCH goes before the date of the commit.

    Raises:
        UsageError: SOURCE_DATE_EPOCH is no number of seconds.
    """
    commit = _git(folder, "rev-parse", "HEAD")
    changed = _git(folder, "status", "--porcelain", "--untracked-files=no")
    given = environ.get(EPOCH, "")
    date = given or _git(folder, "show", "-s", "--format=%ct", "HEAD")
    if given and not (given.isascii() and given.isdigit() and len(given) <= 12):
        raise UsageError("epoch-invalid", f"{EPOCH} is {given!r}, expected seconds since 1970")
    return Checkout(commit=None if changed != "" else commit or None, epoch=int(date) if date else None)


def _git(folder: Path, *words: str) -> str | None:
    """What Git prints, without blanks around it; None where this is no checkout, or there is no Git."""
    try:
        result = subprocess.run(["git", "-C", str(folder), *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None
