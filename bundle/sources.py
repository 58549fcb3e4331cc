"""The source archives of the portable file, pinned in `sources.toml`: how each is had, checked, unpacked and patched.

An archive is known by its SHA-256, so any place may serve it: a folder that the user names in MINDNANO_SOURCES, the
cache, the package mirrors that the system's own apt is set up for, and the addresses that the table lists.
"""

from __future__ import annotations

import hashlib
import tarfile
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from bundle.errors import BundleError
from engine.errors import BuildError, UnreachableError
from engine.fetch import Archive, obtain
from launcher.errors import NetworkError, TrustError

Run = Callable[..., None]

TABLE = Path(__file__).with_name("sources.toml")
PATCHES = "patches"


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
    patches = entry.get(PATCHES)
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


def unpack(source: Source, archives: tuple[Path, ...], folder: Path, run: Run) -> None:
    """Unpacks a source to `folder`, which does not exist yet, and applies its patches.

    Raises:
        BundleError: the archive is not laid out as the table says, or a patch does not fit.
    """
    scratch = folder.with_name(f"{folder.name}.unpacked")
    _extract(archives[0], scratch)
    top = scratch / source.folder
    if not top.is_dir():
        found = ", ".join(sorted(path.name for path in scratch.iterdir()))
        raise BundleError("source-layout", f"{archives[0].name} holds {found}; expected the folder {source.folder}")
    top.rename(folder)
    scratch.rmdir()
    if not source.patches:
        return
    corrections = folder.with_name(f"{folder.name}.{PATCHES}")
    _extract(archives[1], corrections)
    for name in source.patches:
        path = corrections / source.patch_folder / name
        if not path.is_file():
            raise BundleError("source-layout", f"{archives[1].name} holds no {source.patch_folder}/{name}")
        options = ["--strip=1", "--force", "--fuzz=0", "--no-backup-if-mismatch", "--quiet"]
        run(["patch", *options, f"--input={path}"], folder=folder, what=f"applying {name}")


def _extract(archive: Path, folder: Path) -> None:
    """Takes a tar archive apart; members that point out of the folder are refused."""
    folder.mkdir()
    with tarfile.open(archive) as tar:
        # The checks are below; the interpreter's own differ between its versions.
        tar.extraction_filter = getattr(tarfile, "fully_trusted_filter", None)
        for member in tar:
            place = PurePosixPath(member.name)
            link = PurePosixPath(member.linkname) if member.issym() or member.islnk() else PurePosixPath()
            if place.is_absolute() or ".." in place.parts or link.is_absolute():
                raise BundleError("source-layout", f"{archive.name} holds {member.name}, which leads out of it")
            if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
                raise BundleError("source-layout", f"{archive.name} holds {member.name}, which is no file or folder")
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
            tar.extract(member, folder)
