"""The signatures of a release, and whether they are those that it must have.

The launcher checks that of the list it reads; here both are, since the other one is uploaded as well.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.errors import TrustError
from launcher.integrity import checksums
from launcher.integrity.release_files import Refused, open_member, read_capped
from launcher.integrity.signature import MAX_BYTES, SUFFIX, PublicKey, Signed, parse_signature, verify_signature
from launcher.integrity.versions import parse_version
from release.folder.files import LISTS
from release.folder.verify_result import Check


@dataclass(frozen=True, slots=True, kw_only=True)
class ListSignature:
    """A list of checksums that is signed; `signed` is None where no key is known to check the signature with."""

    name: str
    signed: Signed | None


def check_signatures(folder: Path, keys: Sequence[PublicKey]) -> tuple[ListSignature, ...]:
    """Checks every signature that is there, at least that it is one where no key is known.

    Args:
        folder: the release, as `Path.resolve` gives it.
        keys: whose signatures count.

    Returns:
        The lists that are signed.

    Raises:
        PackageError: a list cannot be read.
        TrustError: something under a signature's name is none, leads out of the folder, or does not hold.
    """
    found = []
    for name in LISTS:
        packet = _packet(folder, name + SUFFIX)
        if packet is None:
            continue
        where = str(folder / (name + SUFFIX))
        signature = parse_signature(packet, where=where)
        data = read_capped(folder / name, checksums.MAX_BYTES)
        if data is None:
            continue  # that a list is missing is found elsewhere
        signed = verify_signature(data, signature, keys, where=where) if keys else None
        found.append(ListSignature(name=name, signed=signed))
    return tuple(found)


def judge(found: Sequence[ListSignature], lists: Sequence[str], comment: str, *, required: bool) -> Check:
    """What the signatures say of a release.

    Args:
        found: as `check_signatures` gives them.
        lists: which of them the release must have, the one that counts first. Either all are signed or none is.
        comment: model and version, which is what a signer writes beside the signature.
        required: whether there must be one.
    """
    names = [each.name for each in found]
    unsigned = [name for name in lists if name not in names]
    said = "; ".join(map(_said, found))
    if unsigned and names:
        fault = f"{' and '.join(unsigned)}: the signature is missing, though there is one for {' and '.join(names)}"
        return Check(name="signature", fact=said, faults=(fault,))
    if unsigned and required:
        fault = f"{unsigned[0]} has no signature, expected one by the key that was given"
        return Check(name="signature", fact="", faults=(fault,))
    if unsigned:
        return Check(name="signature", fact="none: nobody vouches for this release", doubtful=True)
    faults = tuple(
        f"the signature of {each.name} is about {each.signed.comment}, the manifest about {comment}"
        for each in found
        if each.signed is not None and _names_other_release(each.signed.comment, comment)
    )
    return Check(name="signature", fact=said, faults=faults, doubtful=any(each.signed is None for each in found))


def _said(each: ListSignature) -> str:
    if each.signed is None:
        return f"{each.name} signed, and no key is known to check it with"
    return f"{each.name} by key {each.signed.key.name}: {each.signed.comment}"


def _names_other_release(said: str, wanted: str) -> bool:
    """Whether a comment has the form MODEL VERSION with another of either; what minisign itself writes has not."""
    words = said.split()
    return len(words) == 2 and parse_version(words[1]) is not None and said != wanted


def _packet(folder: Path, name: str) -> bytes | None:
    try:
        handle = open_member(folder, name)
    except FileNotFoundError:
        if (folder / name).is_symlink():
            raise TrustError("signature-invalid", f"{folder / name} is a link to nothing") from None
        return None
    except (OSError, Refused) as error:
        raise TrustError("signature-invalid", f"{folder / name} is no signature: {error}") from error
    with os.fdopen(handle, "rb") as file:
        return file.read(MAX_BYTES + 1)
