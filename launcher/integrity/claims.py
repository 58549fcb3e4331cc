"""What a release folder claims about its files, and on whose word.

Trust flows one way: a key in the program -> SHA256SUMS.minisig -> SHA256SUMS -> MANIFEST.json -> the files. Each link
is checked before the next is read. A folder with only one of SHA256SUMS and MANIFEST.json is taken by that one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from launcher.errors import PackageError, TrustError
from launcher.integrity import checksums, manifest, model_info, signature
from launcher.integrity.checksums import ChecksumList, Tolerated, parse_checksums
from launcher.integrity.manifest import Manifest, parse_manifest
from launcher.integrity.release_files import printable, read_capped
from launcher.integrity.signature import PublicKey, Signed, parse_signature, verify_signature

_LISTS: Final = (checksums.FILE_NAME, checksums.PUBLIC_FILE_NAME)
_SIGNATURE_SUFFIXES: Final = (signature.SUFFIX, ".sigstore.json")
METADATA: Final = frozenset(
    {manifest.FILE_NAME, *_LISTS, *(name + suffix for name in _LISTS for suffix in _SIGNATURE_SUFFIXES)}
)
"""Files about the release, which no manifest can list."""


class SignatureState(Enum):
    """What is known about the signature. One that is wrong is an error and never gets this far."""

    VALID = "valid"
    NONE = "none"
    NO_KEY = "no-key"


@dataclass(frozen=True, slots=True, kw_only=True)
class Claims:
    """What must be true of a folder.

    Attributes:
        digests: SHA-256 by name of file.
        sizes: bytes by name of file, where the manifest says them.
        sources: the files that say so.
        state: what is known about the signature.
        signed: the signature where it is valid.
        manifest: None where there is none, or where SHA256SUMS does not vouch for it.
        unlisted_manifest: there is a MANIFEST.json that SHA256SUMS does not list; it was not used.
        tolerated: harmless differences in the list of checksums.
    """

    digests: Mapping[str, str]
    sizes: Mapping[str, int]
    sources: tuple[str, ...]
    state: SignatureState
    signed: Signed | None
    manifest: Manifest | None
    unlisted_manifest: bool
    tolerated: tuple[Tolerated, ...]


def read_claims(folder: Path, keys: Sequence[PublicKey]) -> Claims | None:
    """What this folder claims, or None where it has neither SHA256SUMS nor MANIFEST.json.

    Raises:
        TrustError: the signature is wrong, by an unknown key, or signs nothing that is there.
        PackageError: a file is malformed, too large or unreadable, or two of them contradict each other.
    """
    name, data = _list_of(folder)
    if data is None:
        return _claims_of_manifest(folder)
    state, signed = _check_signature(folder, name, data, keys)
    sums = parse_checksums(data, where=str(folder / name))
    described, unlisted = _manifest_of(folder, sums)
    sizes = {} if described is None else {file.path: file.size for file in described.files}
    if described is not None:
        _require_agreement(sums, described, name)
    return Claims(
        digests=sums.digests,
        sizes={path: size for path, size in sizes.items() if path in sums.digests},
        sources=(name,) if described is None else (name, manifest.FILE_NAME),
        state=state,
        signed=signed,
        manifest=described,
        unlisted_manifest=unlisted,
        tolerated=sums.tolerated,
    )


def _claims_of_manifest(folder: Path) -> Claims | None:
    try:
        found = manifest.read_manifest(folder)
    except PackageError as error:
        if error.slug == "metadata-schema":  # other programs have files of this name
            return None
        raise
    if found is None:
        return None
    return Claims(
        digests={file.path: file.sha256 for file in found.files},
        sizes={file.path: file.size for file in found.files},
        sources=(manifest.FILE_NAME,),
        state=SignatureState.NONE,
        signed=None,
        manifest=found,
        unlisted_manifest=False,
        tolerated=(),
    )


def _list_of(folder: Path) -> tuple[str, bytes | None]:
    """The list of checksums that counts: the full one, else the public one."""
    for name in _LISTS:
        data = read_capped(folder / name, checksums.MAX_BYTES)
        if data is not None:
            return name, data
    for name in _LISTS:
        lone = folder / (name + signature.SUFFIX)
        if read_capped(lone, signature.MAX_BYTES) is not None:
            raise TrustError(
                "signature-orphan",
                f"{lone} is there, {name}, which it signs, is not",
                hint="fetch the release again from its publisher",
            )
    return checksums.FILE_NAME, None


def _check_signature(
    folder: Path, name: str, data: bytes, keys: Sequence[PublicKey]
) -> tuple[SignatureState, Signed | None]:
    path = folder / (name + signature.SUFFIX)
    packet = read_capped(path, signature.MAX_BYTES)
    if packet is None:
        return SignatureState.NONE, None
    if not keys:
        return SignatureState.NO_KEY, None
    signed = verify_signature(data, parse_signature(packet, where=str(path)), keys, where=str(path))
    return SignatureState.VALID, signed


def _manifest_of(folder: Path, sums: ChecksumList) -> tuple[Manifest | None, bool]:
    """The manifest if the list vouches for it, and whether there is one that the list does not mention."""
    path = folder / manifest.FILE_NAME
    data = read_capped(path, manifest.MAX_BYTES)
    if data is None:
        return None, False
    expected = sums.digests.get(manifest.FILE_NAME)
    if expected is None:
        return None, True
    if hashlib.sha256(data).hexdigest() != expected:
        return None, False  # it will be found among the changed files
    return parse_manifest(data, where=str(path)), False


def _require_agreement(sums: ChecksumList, described: Manifest, name: str) -> None:
    """Both lists must say the same; the public list may leave out what is not public."""
    full = name == checksums.FILE_NAME
    for file in described.files:
        digest = sums.digests.get(file.path)
        if digest is None and (full or file.public):
            raise _contradiction(f"{manifest.FILE_NAME} lists {printable(file.path)}, {name} does not")
        if digest is not None and digest != file.sha256:
            raise _contradiction(
                f"{printable(file.path)} has SHA-256 {digest} by {name}, {file.sha256} by {manifest.FILE_NAME}"
            )
    known = METADATA.union(file.path for file in described.files)
    for path in sums.digests:
        if path not in known:
            raise _contradiction(f"{name} lists {printable(path)}, {manifest.FILE_NAME} does not")


def require_consistency(folder: Path, claims: Claims) -> None:
    """Checks what files of a release, which are all as claimed, say about each other.

    Raises:
        PackageError: SHA256SUMS.PUBLIC is no part of SHA256SUMS, MODEL.json is about another package or model, or one
            of the two is malformed.
    """
    public = checksums.read_checksums(folder / checksums.PUBLIC_FILE_NAME)
    for path, digest in ({} if public is None else public.digests).items():
        expected = claims.digests.get(path)
        if expected != digest:
            raise _contradiction(
                f"{printable(path)} has SHA-256 {digest} by {checksums.PUBLIC_FILE_NAME}, "
                f"{expected or 'none'} by {claims.sources[0]}"
            )
    if model_info.FILE_NAME not in claims.digests:
        return
    info = model_info.read_model_info(folder)
    if info is None:
        return
    expected = claims.digests.get(info.package.path)
    if expected != info.package.sha256:
        raise _contradiction(
            f"{info.package.path} has SHA-256 {info.package.sha256} by {model_info.FILE_NAME}, "
            f"{expected or 'none'} by {claims.sources[0]}"
        )
    if claims.manifest is not None and claims.manifest.model != info.name:
        raise _contradiction(
            f"the model is {info.name} by {model_info.FILE_NAME}, {claims.manifest.model} by {manifest.FILE_NAME}"
        )


def _contradiction(message: str) -> PackageError:
    return PackageError(
        "release-contradiction",
        f"the release contradicts itself: {message}",
        hint="fetch the release again; if that does not help, tell its publisher",
    )
