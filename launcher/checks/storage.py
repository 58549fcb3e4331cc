"""Folders that hold the model, the cache and temporary files: space, flags of the mount, kind of disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from launcher.checks.mounts import disk_class, mount_of
from launcher.checks.report import Finding, Group, Status, warn
from launcher.integrity.state_file import cache_folder
from launcher.progress import format_bytes
from launcher.system import SystemView

# The released package in W4 is 4.5 GB (4.2 GiB) on disk, and with a context of 8K it needs 4.4 GiB of memory.
MODEL_BYTES = 9 << 29
_SAID_BY_THE_FILE_SYSTEM = {"unknown", "memory", "network"}
_SCRATCH_BYTES = 256 << 20  # the portable binary's libraries, logs


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder to look at.

    Attributes:
        role: ``model``, ``cache`` or ``temporary``: part of the slug.
        path: absolute; None where the environment names none.
        need: bytes that must be free.
        written: whether something has to be written there.
        executed: whether libraries are unpacked and loaded there.
    """

    role: str
    path: str | None
    need: int = 0
    written: bool = True
    executed: bool = False


def folders(environ: Mapping[str, str], model_folder: str, *, has_package: bool) -> tuple[Folder, ...]:
    """The folders that this environment means. Without a package one has to fit into the model folder."""
    cache = cache_folder(environ)
    temporary = environ.get("TMPDIR", "")
    return (
        Folder(role="model", path=model_folder, need=0 if has_package else MODEL_BYTES, written=not has_package),
        Folder(
            role="cache",
            path=None if cache is None else str(cache.parent),
            need=_SCRATCH_BYTES,
            executed=True,
        ),
        Folder(
            role="temporary",
            path=temporary if temporary.startswith("/") else "/tmp",
            need=_SCRATCH_BYTES,
            executed=True,
        ),
    )


def storage_findings(system: SystemView, wanted: tuple[Folder, ...]) -> tuple[Finding, ...]:
    """A line per folder with the first thing that is wrong with it."""
    return tuple(_folder(system, folder) for folder in wanted)


def _folder(system: SystemView, folder: Folder) -> Finding:
    if folder.path is None:
        return warn(Group.STORAGE, f"storage-{folder.role}-none")
    mount = mount_of(system, folder.path)
    space = system.host.space(folder.path)
    kind = "?" if mount is None else mount.kind
    disk = "unknown" if mount is None else disk_class(system, mount)
    facts: dict[str, object] = {
        "path": folder.path,
        "free": "?" if space is None else format_bytes(space.free),
        "need": format_bytes(folder.need),
        "filesystem": kind,
        "disk": disk,
        "medium": kind if disk in _SAID_BY_THE_FILE_SYSTEM else f"{kind} ({disk})",
        "read_only": mount is not None and mount.read_only,
        "noexec": mount is not None and mount.no_exec,
    }
    slug, status = f"storage-{folder.role}", Status.OK
    if space is None:
        slug, status = "storage-unknown", Status.SKIP
    elif folder.written and (not space.writable or (mount is not None and mount.read_only)):
        slug, status = f"storage-{folder.role}-read-only", Status.WARN
    elif folder.written and space.free < folder.need:
        slug, status = f"storage-{folder.role}-full", Status.WARN
    elif mount is not None and mount.no_exec and folder.executed:
        slug, status = f"storage-{folder.role}-noexec", Status.WARN
    return Finding(group=Group.STORAGE, status=status, slug=slug, facts=facts, private=frozenset({"path"}))
