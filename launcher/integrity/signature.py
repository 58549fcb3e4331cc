"""Signatures in the format of minisign: Ed25519 over the BLAKE2b-512 of the signed file.

Only this prehashed form (``ED``) is accepted; the legacy form (``Ed``) is refused, so that one signature has one
meaning. The trusted comment has a signature of its own, which is checked too.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

from launcher.errors import TrustError
from launcher.integrity import ed25519
from launcher.integrity.release_files import printable

SUFFIX: Final = ".minisig"
MAX_BYTES: Final = 16 << 10
_UNTRUSTED: Final = b"untrusted comment: "
_TRUSTED: Final = b"trusted comment: "
_ID_BYTES: Final = 8
_BLAKE2B_BYTES: Final = 64
_SAFE_STEP: Final = "do not use these files; fetch the release again from its publisher"


class KeyUse(Enum):
    """What a key is for: the one that signs releases, or the one that takes over when that is lost or stolen."""

    RELEASE = "release"
    RECOVERY = "recovery"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicKey:
    """A key of the publisher: minisign's 8-byte key id and the 32 bytes of Ed25519."""

    use: KeyUse
    identifier: bytes
    point: bytes

    @property
    def name(self) -> str:
        """The id as minisign prints it: 16 upper-case hexadecimal digits."""
        return key_name(self.identifier)


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """What a .minisig file holds. `trusted` is the trusted comment as bytes, as it is signed."""

    identifier: bytes
    signature: bytes
    trusted: bytes
    trusted_signature: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Signed:
    """A signature that holds: by which key, and the publisher's comment, safe to print."""

    key: PublicKey
    comment: str


def key_name(identifier: bytes) -> str:
    """``b"\\x01\\x00..."`` -> ``"0000000000000001"``, as minisign prints it."""
    return f"{int.from_bytes(identifier, 'little'):016X}"


def parse_public_key(text: str, use: KeyUse) -> PublicKey:
    """The key in the second line of a minisign .pub file.

    Raises:
        TrustError: it is no such key.
    """
    data = _decoded(text.encode(errors="replace"), 2 + _ID_BYTES + ed25519.KEY_BYTES)
    if data is None or data[:2] != b"Ed":
        raise TrustError(
            "public-key-invalid",
            f"{printable(text[:80])!r} is no public key of minisign",
            hint="give the second line of the .pub file",
        )
    return PublicKey(use=use, identifier=data[2 : 2 + _ID_BYTES], point=data[2 + _ID_BYTES :])


def parse_signature(data: bytes, *, where: str) -> Signature:
    """The signature in a .minisig file.

    Raises:
        TrustError: it is not in minisign's format, or in its legacy form.
    """
    lines = data.split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    lines = [line.removesuffix(b"\r") for line in lines]
    if len(data) > MAX_BYTES or len(lines) != 4:
        raise _malformed(where, "expected four lines")
    if not lines[0].startswith(_UNTRUSTED) or not lines[2].startswith(_TRUSTED):
        raise _malformed(where, "expected an untrusted comment in line 1 and a trusted comment in line 3")
    packet = _decoded(lines[1], 2 + _ID_BYTES + ed25519.SIGNATURE_BYTES)
    trusted_signature = _decoded(lines[3], ed25519.SIGNATURE_BYTES)
    if packet is None or trusted_signature is None:
        raise _malformed(where, "a signature in it is not base64 of the right length")
    if packet[:2] == b"Ed":
        raise TrustError(
            "signature-legacy",
            f"{where}: it is in minisign's legacy form (Ed), expected the prehashed form (ED)",
            hint="ask the publisher to sign with a current minisign, without -l",
        )
    if packet[:2] != b"ED":
        raise _malformed(where, f"its algorithm is {packet[:2]!r}, expected b'ED'")
    return Signature(
        identifier=packet[2 : 2 + _ID_BYTES],
        signature=packet[2 + _ID_BYTES :],
        trusted=lines[2][len(_TRUSTED) :],
        trusted_signature=trusted_signature,
    )


def verify_signature(data: bytes, signature: Signature, keys: Sequence[PublicKey], *, where: str) -> Signed:
    """Checks a signature of these bytes.

    Args:
        keys: whom to trust.
        where: what to call the signature in errors.

    Raises:
        TrustError: it is by no key that is trusted, or it does not hold for the bytes or for its comment.
    """
    key = next((key for key in keys if key.identifier == signature.identifier), None)
    if key is None:
        trusted = ", ".join(key.name for key in keys)
        raise TrustError(
            "signature-key-unknown",
            f"{where}: it is by key {key_name(signature.identifier)}, this program trusts {trusted}",
            hint="use the mindnano-infer of the same publisher; if it is, do not use these files",
        )
    digest = hashlib.blake2b(data, digest_size=_BLAKE2B_BYTES).digest()
    if not ed25519.verify(key.point, digest, signature.signature):
        raise TrustError(
            "signature-invalid",
            f"{where}: it does not match what it should sign (key {key.name})",
            hint=_SAFE_STEP,
        )
    if not ed25519.verify(key.point, signature.signature + signature.trusted, signature.trusted_signature):
        raise TrustError(
            "signature-invalid", f"{where}: its trusted comment was changed (key {key.name})", hint=_SAFE_STEP
        )
    return Signed(key=key, comment=printable(signature.trusted.decode(errors="replace")))


def _malformed(where: str, fault: str) -> TrustError:
    return TrustError("signature-invalid", f"{where}: it is no signature of minisign: {fault}", hint=_SAFE_STEP)


def _decoded(text: bytes, length: int) -> bytes | None:
    """Base64 of exactly this many bytes, in its one canonical form."""
    try:
        data = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
    return data if len(data) == length and base64.b64encode(data) == text else None
