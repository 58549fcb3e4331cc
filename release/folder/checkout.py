"""The source that this program runs from: its commit, and the time that stands in for every time of building."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bundle.program_sources import FILES, FOLDERS, is_source, source_digest
from launcher.errors import UsageError

_LAST_SECOND: Final = 253402300799
"""Of the year 9999; the formats have no later one."""
ROOT: Final = Path(__file__).parents[2]
EPOCH: Final = "SOURCE_DATE_EPOCH"


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkout:
    """The source at hand.

    Attributes:
        commit: None where tracked files differ from it, or where a program built here would hold files that it has not.
        epoch: seconds since 1970, None where unknown.
        sources: digest of what a program built here is made from, as `bundle.program_sources` takes it.
    """

    commit: str | None
    epoch: int | None
    sources: str


def read_checkout(environ: Mapping[str, str], folder: Path = ROOT) -> Checkout:
    """Asks Git; SOURCE_DATE_EPOCH goes before the date of the commit.

    Raises:
        UsageError: SOURCE_DATE_EPOCH is no number of seconds.
    """
    given = environ.get(EPOCH, "")
    if given and not (given.isascii() and given.isdigit() and len(given) <= 12 and int(given) <= _LAST_SECOND):
        raise UsageError(
            "epoch-invalid",
            f"{EPOCH} is {given!r}, expected seconds since 1970, at most {_LAST_SECOND}",
            hint=f"Set it to what `date +%s` prints, or unset {EPOCH}.",
        )
    commit = date = None
    # A copy of the source inside somebody else's repository must not take that one's commit for its own.
    if _git(folder, environ, "rev-parse", "--show-toplevel") == str(folder.resolve()):
        changed = _git(folder, environ, "status", "--porcelain", "--untracked-files=no")
        is_whole = changed == "" and not _is_more_than_tracked(folder, environ)
        commit = _git(folder, environ, "rev-parse", "HEAD") if is_whole else None
        date = _git(folder, environ, "show", "-s", "--no-show-signature", "--format=%ct", "HEAD")
    date = given or date
    return Checkout(commit=commit or None, epoch=int(date) if date else None, sources=source_digest(folder))


def _is_more_than_tracked(folder: Path, environ: Mapping[str, str]) -> bool:
    """Whether a build would take files that Git does not know, ignored ones as well."""
    found = _git(folder, environ, "ls-files", "-z", "--others", "--", *FOLDERS, *FILES)
    return found is None or any(is_source(name) for name in found.split("\0") if name)


def _git(folder: Path, environ: Mapping[str, str], *words: str) -> str | None:
    """What Git prints, without blanks around it; None where this is no checkout, or there is no Git."""
    # Git's own variables, as a hook has them, may name another repository than that of the folder.
    kept = {name: value for name, value in environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *words]
    try:
        result = subprocess.run(command, env=kept, capture_output=True, text=True, errors="replace", check=False)
    except OSError:
        return None
    return result.stdout.strip() if result.returncode == 0 else None
