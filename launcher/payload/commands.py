"""`--list-payload`, `--unpack DIR` and `--verify-self`: what the portable program carries, and whether it is whole."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from launcher.errors import PackageError, ResourceError, UsageError
from launcher.messages import Catalogue
from launcher.payload.carried import carried
from launcher.payload.file import Advance, Member, Payload

ELF_PART = "ELF"
DIRECTORY_PART = "directory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A stretch of the program's file: its name, its size in bytes and whether it is what the payload's list says."""

    name: str
    size: int
    sound: bool


def require_payload() -> Payload:
    """This program's payload.

    Raises:
        UsageError: the launcher runs from source, which carries none.
        PackageError: the payload contradicts itself.
    """
    payload = carried()
    if payload is None:
        raise UsageError(
            "payload-none",
            "this program runs from source and carries no files",
            hint="ask the portable program, mindnano-infer",
        )
    return payload


def run_list(texts: Catalogue, out: TextIO, payload: Payload) -> int:
    """Prints size, SHA-256 and name of every member."""
    print(texts("payload-list-elf", size=payload.elf.size, sha256=payload.elf.sha256), file=out)
    for member in payload.members.values():
        print(f"{member.size:>12}  {member.sha256}  {member.name}", file=out)
    return 0


def run_unpack(folder: Path, texts: Catalogue, err: TextIO, payload: Payload) -> int:
    """Writes every member into a folder that is new or empty, and verifies what it writes.

    Raises:
        UsageError: the folder holds something already, or is none.
        PackageError: a member is damaged; what was written of it is gone again.
        ResourceError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        occupied = next(folder.iterdir(), None)
    except (FileExistsError, NotADirectoryError) as error:
        raise UsageError("unpack-folder", f"{folder} is no folder", hint="name a new folder") from error
    except OSError as error:
        raise _unwritable(folder, error) from error
    if occupied is not None:
        raise UsageError(
            "unpack-folder",
            f"{folder} is not empty: it holds {occupied.name}",
            hint="name a new folder; nothing is overwritten",
        )
    for member in payload.members.values():
        unpack_member(payload, member, folder / member.name)
    print(texts("payload-unpacked", count=len(payload.members), folder=folder), file=err)
    return 0


def unpack_member(payload: Payload, member: Member, target: Path) -> None:
    """Writes one member to a file that must not exist yet.

    Raises:
        PackageError, ResourceError: as `run_unpack`.
    """
    digest = hashlib.sha256()
    created = False
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as stream:
            created = True
            for piece in payload.pieces(member.offset, member.size):
                digest.update(piece)
                stream.write(piece)
        sound = digest.hexdigest() == member.sha256
    except BaseException as error:  # an interrupt too must leave nothing that looks whole
        if created:
            target.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _unwritable(target, error) from error
        raise
    if not sound:
        target.unlink(missing_ok=True)
        raise PackageError(
            "self-damaged",
            f"{member.name} inside this program is damaged: its SHA-256 is not the listed one",
            hint="copy or download the program again",
        )


def run_verify_self(texts: Catalogue, out: TextIO, payload: Payload) -> int:
    """Hashes the whole file once more, by other code than at the start, and prints a line per part.

    Raises:
        PackageError: some part is damaged; the message names all that are.
    """
    parts = []
    for part in verify(payload):
        parts.append(part)
        print(
            texts("self-sound" if part.sound else "self-damaged", name=part.name, size=part.size), file=out, flush=True
        )
    damaged = [part.name for part in parts if not part.sound]
    if damaged:
        raise PackageError(
            "self-damaged",
            f"this program's file is damaged: {', '.join(damaged)}",
            hint="copy or download the program again",
        )
    print(texts("self-verified", size=payload.file_bytes, sha256=payload.sealed_sha256), file=out)
    return 0


def verify(payload: Payload, advance: Advance | None = None) -> Iterator[Part]:
    """Every part of the file and whether it is sound; `advance` gets the bytes that were read, twice the file in all.

    What belongs to no part (the directory, the list, bytes between members) is judged last, by the seal.
    """
    elf = payload.sha256(0, payload.elf.size, advance)
    yield Part(name=ELF_PART, size=payload.elf.size, sound=elf == payload.elf.sha256)
    sound = elf == payload.elf.sha256
    rest = payload.file_bytes - payload.elf.size
    for member in payload.members.values():
        found = payload.sha256(member.offset, member.size, advance)
        yield Part(name=member.name, size=member.size, sound=found == member.sha256)
        sound = sound and found == member.sha256
        rest -= member.size
    whole = payload.sealed_part_sha256(advance)
    # Where a member is damaged, the seal says nothing about the rest.
    yield Part(name=DIRECTORY_PART, size=rest, sound=whole == payload.sealed_sha256 or not sound)


def document(payload: Payload) -> Mapping[str, object]:
    """The list for programs."""
    return {
        "schema": "mindnano-infer.payload-list",
        "version": 1,
        "elf": {"size": payload.elf.size, "sha256": payload.elf.sha256},
        "members": [
            {"name": member.name, "size": member.size, "sha256": member.sha256} for member in payload.members.values()
        ],
    }


def _unwritable(path: Path, error: OSError) -> ResourceError:
    reason = error.strerror or os.strerror(error.errno or errno.EIO)
    return ResourceError(
        "unpack-unwritable",
        f"cannot write {path}: {reason}",
        hint="name a folder that you may write to, with free space",
    )
