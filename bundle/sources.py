"""The source archives of the portable file, pinned in `sources.toml`: how each is had and checked.

An archive is known by its SHA-256, so any place may serve it: a folder that the user names in MINDNANO_SOURCES, the
cache, the package mirrors that the system's own apt is set up for, and the addresses that the table lists.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bundle.errors import BundleError
from engine.errors import BuildError, UnreachableError
from engine.fetch import Archive, obtain
from launcher.errors import NetworkError, TrustError

TABLE = Path(__file__).with_name("sources.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """One program or library as its authors publish it, with the corrections that are applied to it.

    Attributes:
        name: what stages and notices call it.
        version: the version of the archive, without the corrections.
        licence: SPDX expression.
        homepage: address of the project.
        archive: the program text.
        folder: the one folder at the top of the archive.
        patch_archive: an archive that holds corrections, or None.
        patch_folder: the folder below which they lie in it.
        patches: file names of the corrections that are applied, in order.
    """

    name: str
    version: str
    licence: str
    homepage: str
    archive: Archive
    folder: str
    patch_archive: Archive | None
    patch_folder: str
    patches: tuple[str, ...]

    @property
    def archives(self) -> tuple[Archive, ...]:
        """Everything that has to be fetched."""
        return (self.archive,) if self.patch_archive is None else (self.archive, self.patch_archive)

    @property
    def digest(self) -> str:
        """SHA-256 over what decides the unpacked text."""
        words = [self.folder, self.patch_folder, *(archive.sha256 for archive in self.archives), *self.patches]
        return hashlib.sha256("\0".join(words).encode()).hexdigest()


def load_sources(table: Path = TABLE) -> dict[str, Source]:
    """The pinned sources by name.

    Raises:
        BundleError: the table is not what it must be.
    """
    try:
        with table.open("rb") as stream:
            entries = tomllib.load(stream)
        return {name: _source(name, entry) for name, entry in entries.items()}
    except (tomllib.TOMLDecodeError, KeyError, TypeError, ValueError) as error:
        raise BundleError("sources-invalid", f"{table} is not valid: {error!r}") from error


def _source(name: str, entry: Mapping[str, Any]) -> Source:
    patches = entry.get("patches")
    return Source(
        name=name,
        version=entry["version"],
        licence=entry["licence"],
        homepage=entry["homepage"],
        archive=_archive(entry["archive"]),
        folder=entry["folder"],
        patch_archive=None if patches is None else _archive(patches["archive"]),
        patch_folder="" if patches is None else patches["folder"],
        patches=() if patches is None else tuple(patches["apply"]),
    )


def _archive(entry: Mapping[str, Any]) -> Archive:
    unknown = set(entry) - {"names", "sha256", "size", "urls", "pool"}
    if unknown:
        raise ValueError(f"unknown keys {sorted(unknown)}")
    first, *others = entry["urls"]
    return Archive(
        names=tuple(entry["names"]),
        sha256=entry["sha256"],
        size=entry["size"],
        url=first,
        other_urls=tuple(others),
        pool=entry["pool"],
    )


def fetch(source: Source, say: Callable[[str], None]) -> tuple[Path, ...]:
    """The source's archives on this machine, each with its pinned content.

    Raises:
        NetworkError: no place has one of them; every place that was tried is named.
        TrustError: a file in the user's folder has other content.
    """
    try:
        return tuple(obtain(archive, say) for archive in source.archives)
    except UnreachableError as error:
        raise NetworkError("source-unreachable", f"{source.name}: {error.message}", hint=error.hint) from error
    except BuildError as error:
        raise TrustError("source-digest", f"{source.name}: {error.message}", hint=error.hint) from error
