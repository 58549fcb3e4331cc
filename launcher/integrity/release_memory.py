"""The newest signed release of each model that was verified here, so that an older one is not passed off as new."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Self

from launcher.errors import TrustError
from launcher.integrity.state_file import StateFile, cache_folder
from launcher.integrity.versions import parse_version

FILE_NAME: Final = "releases.json"
SCHEMA: Final = "mindnano.releases"
VERSION: Final = 1
MAX_MODELS: Final = 256


class ReleaseMemory:
    """Versions by name of model. A file that is missing, damaged or foreign remembers nothing.

    Args:
        path: where they are kept; None keeps none.
    """

    def __init__(self, path: Path | None) -> None:
        self._file = StateFile(path)

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Self:
        """The memory of the user whose environment this is."""
        folder = cache_folder(environ)
        return cls(None if folder is None else folder / FILE_NAME)

    def require_not_older(self, model: str, release: str) -> None:
        """Checks a signed release against the newest one that was seen.

        Raises:
            TrustError: it is older.
        """
        newest = _parse(self._file.read()).get(model)
        if newest is None or not _is_older(release, newest):
            return
        raise TrustError(
            "release-rollback",
            f"this is release {release} of {model}, but release {newest} was verified here before",
            hint=f"fetch release {newest} or newer; if you do want the older one, delete {self._file.path}",
        )

    def remember(self, model: str, release: str) -> bool:
        """Notes a signed release; an older one than the one known changes nothing.

        Returns:
            Whether it was noted.
        """

        def change(data: bytes | None) -> bytes:
            known = _parse(data)
            if model not in known or _is_older(known[model], release):
                known.pop(model, None)
                known[model] = release
            youngest = dict(list(known.items())[-MAX_MODELS:])
            return json.dumps({"schema": SCHEMA, "version": VERSION, "releases": youngest}, indent=1).encode()

        return self._file.update(change)


def _is_older(release: str, other: str) -> bool:
    left, right = parse_version(release), parse_version(other)
    return left is not None and right is not None and left < right


def _parse(data: bytes | None) -> dict[str, str]:
    try:
        document = json.loads(data or b"")
    except (ValueError, RecursionError):
        return {}
    if not isinstance(document, dict) or (document.get("schema"), document.get("version")) != (SCHEMA, VERSION):
        return {}
    entries = document.get("releases")
    if not isinstance(entries, dict):
        return {}
    return {name: release for name, release in entries.items() if isinstance(release, str) and parse_version(release)}
