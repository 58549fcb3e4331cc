"""Release folders as `mindnano finalize` makes them, of a program that is no program but carries what one carries."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Iterator
from contextlib import redirect_stderr
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from bundle.payload import pack
from bundle.sbom import Program, bill_of_materials, to_bytes
from launcher.integrity import checksums, manifest, strict_json
from launcher.integrity.checksums import format_checksums
from launcher.integrity.manifest import ReleaseFile, read_manifest
from launcher.payload.carried import PUBLISHER, RKNN_RUNTIME, SBOM
from notices.collect import assign_owners
from notices.components import load_components
from notices.render import render_notices
from release.folder import provenance
from release.folder.checkout import Checkout
from release.folder.finalize import FinalizeOptions, finalize
from release.folder.verify import VerifyOptions, verify
from release.folder.verify_result import VerifyResult
from tests.bundle.inventories import PAYLOAD, SUPPLIED, inventory, with_known_terms
from tests.support.releases import Signer

SOURCES = "5" * 64
CHECKOUT = Checkout(commit="c" * 40, epoch=1_790_000_000, sources=SOURCES)
_ELF = b"\x7fELF" + bytes(range(256)) * 40


@cache
def _carried(runtime: bool, publisher: bytes) -> dict[str, bytes]:
    """The payload of a program; the inventory says that every file holds its own name."""
    without = () if runtime else (RKNN_RUNTIME,)
    ownership = assign_owners(inventory(without=without), with_known_terms(load_components()))
    program = Program(size=len(_ELF), sha256=hashlib.sha256(_ELF).hexdigest(), sources=SOURCES)
    bill = bill_of_materials(ownership, program, epoch=1_767_225_600, supplied=SUPPLIED)
    files = {name: name.encode() for name in PAYLOAD if name not in without}
    return {**files, PUBLISHER: publisher, SBOM: to_bytes(bill), **render_notices(ownership, SUPPLIED)}


def publisher_json(*signers: Signer) -> bytes:
    keys = [{"use": "release", "key": signer.public_text()} for signer in signers]
    return json.dumps({"schema": "mindnano.publisher", "version": 1, "repository": None, "keys": keys}).encode()


def stand_in_program(
    folder: Path, *, runtime: bool = False, publisher: bytes | None = None, **changes: bytes | None
) -> Path:
    """A sealed file with bill and notices of a whole build; `changes` replace members, or leave them out."""
    folder.mkdir(parents=True, exist_ok=True)
    members: dict[str, Any] = dict(_carried(runtime, publisher or publisher_json()))
    members |= changes
    (folder / "elf").write_bytes(_ELF)
    named = {name: content for name, content in members.items() if content is not None}
    return pack(folder / "elf", folder / "mindnano-infer", named).path


def make_release(folder: Path, program: Path, package: Path, **options: Any) -> Path:
    """A release of both, version 1.2.3 unless `options` say otherwise."""
    chosen = {"version": "1.2.3", "checkout": CHECKOUT, **options}
    with redirect_stderr(io.StringIO()):
        return finalize(FinalizeOptions(program=program, package=package, output=folder, **chosen))


def look(folder: Path, **options: Any) -> VerifyResult:
    return verify(VerifyOptions(folder=folder, stream=io.StringIO(), **options))


def faults(result: VerifyResult) -> dict[str, tuple[str, ...]]:
    """What is wrong, by check."""
    return {check.name: check.faults for check in result.checks if check.faults}


def files_of(folder: Path) -> dict[str, bytes]:
    """Every file of a folder, by its path in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in _walk(folder)}


def _walk(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def reseal(folder: Path, **changes: Any) -> None:
    """Writes manifest and lists anew, so that sums and sizes hold for whatever now lies in the folder.

    This is what somebody does who changes a release on purpose.
    """
    described = read_manifest(folder)
    assert described is not None
    old = {file.path: file for file in described.files}
    lists = {manifest.FILE_NAME, checksums.FILE_NAME, checksums.PUBLIC_FILE_NAME}
    found = {path: data for path, data in files_of(folder).items() if path not in lists}
    new = tuple(
        replace(old[path], size=len(data), sha256=hashlib.sha256(data).hexdigest())
        if path in old
        else ReleaseFile(
            path=path,
            size=len(data),
            sha256=hashlib.sha256(data).hexdigest(),
            role="notice",
            licence="MIT",
            public="/" not in path,
        )
        for path, data in found.items()
    )
    data = replace(described, **{"files": new, **changes}).to_json()
    (folder / manifest.FILE_NAME).write_bytes(data)
    digests = {file.path: file.sha256 for file in new} | {manifest.FILE_NAME: hashlib.sha256(data).hexdigest()}
    public = {path: digest for path, digest in digests.items() if "/" not in path}
    (folder / checksums.PUBLIC_FILE_NAME).write_bytes(format_checksums(public))
    digests[checksums.PUBLIC_FILE_NAME] = hashlib.sha256(format_checksums(public)).hexdigest()
    (folder / checksums.FILE_NAME).write_bytes(format_checksums(digests))


def reseal_statement(folder: Path, **changes: Any) -> None:
    """As `reseal`, and the provenance gives the new digests too. Nothing but what the files say is left to find."""
    path = folder / provenance.NAME
    document = json.loads(path.read_text(encoding="utf-8"))
    for entry in document["subject"]:
        entry["digest"]["sha256"] = hashlib.sha256((folder / entry["name"]).read_bytes()).hexdigest()
    path.write_bytes(strict_json.to_bytes(document))
    reseal(folder, **changes)


def edit(path: Path, old: str, new: str) -> None:
    """Replaces a text that must be there."""
    text = path.read_text(encoding="utf-8")
    assert old in text, f"{path.name} does not hold {old!r}"
    path.write_text(text.replace(old, new), encoding="utf-8")
