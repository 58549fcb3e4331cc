"""Unpacks pinned archives and applies their corrections.

The text of this module is part of the key of every stage that has sources.
"""

from __future__ import annotations

import tarfile
from collections.abc import Callable
from pathlib import Path, PurePosixPath

from bundle.errors import BundleError
from bundle.sources import Source

Run = Callable[..., None]


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
    corrections = folder.with_name(f"{folder.name}.patches")
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
