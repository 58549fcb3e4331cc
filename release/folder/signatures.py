"""Both signatures of a release. The launcher checks that of the list it reads; the other one is uploaded as well."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from launcher.errors import TrustError
from launcher.integrity import checksums
from launcher.integrity.release_files import Refused, open_member, read_capped
from launcher.integrity.signature import MAX_BYTES, SUFFIX, PublicKey, parse_signature, verify_signature
from release.folder.files import LISTS


def check_signatures(folder: Path, keys: Sequence[PublicKey]) -> tuple[str, ...]:
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
    signed = []
    for name in LISTS:
        packet = _packet(folder, name + SUFFIX)
        if packet is None:
            continue
        where = str(folder / (name + SUFFIX))
        signature = parse_signature(packet, where=where)
        data = read_capped(folder / name, checksums.MAX_BYTES)
        if data is None:
            continue  # that a list is missing is found elsewhere
        if keys:
            verify_signature(data, signature, keys, where=where)
        signed.append(name)
    return tuple(signed)


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
