"""Signs lists of checksums with a secret key of minisign, as `minisign -S` does: prehashed Ed25519 with a comment.

The key's format is that of minisign 0.11: base64 of algorithm, KDF, salt and limits, key id, secret and public half,
and a checksum; where a password protects it, id, halves and checksum are combined with scrypt's output.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launcher.errors import ResourceError, TrustError, UsageError
from launcher.integrity.release_files import read_capped
from launcher.integrity.signature import KeyUse, PublicKey

_PACKET: Final = struct.Struct("<2s2s2s32sQQ104s")
_SECRET: Final = struct.Struct("<8s32s32s32s")
_MAX_BYTES: Final = 4096
_SCRYPT_R: Final = 8
_MOST_MEMORY: Final = 4 << 30

AskPassword = Callable[[], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretKey:
    """A key that signs: minisign's 8-byte id, the 32 bytes of the seed, and the public half."""

    identifier: bytes
    seed: bytes
    point: bytes

    def public(self) -> PublicKey:
        """The half that others check with."""
        return PublicKey(use=KeyUse.RELEASE, identifier=self.identifier, point=self.point)

    def __repr__(self) -> str:
        return f"SecretKey({self.public().name})"


def read_secret_key(path: Path, ask: AskPassword) -> SecretKey:
    """The key in a file that `minisign -G` wrote.

    Args:
        ask: called where a password protects it.

    Raises:
        UsageError: it is no such file.
        TrustError: the password is wrong, or the file is damaged.
        ResourceError: there is not the memory that the password's protection takes, usually 1 GiB.
    """
    data = read_capped(path, _MAX_BYTES)
    lines = [] if data is None else data.decode(errors="replace").split("\n")
    try:
        packet = base64.b64decode(lines[1].strip(), validate=True) if len(lines) >= 2 else b""
    except (binascii.Error, ValueError):
        packet = b""
    if len(packet) != _PACKET.size:
        raise UsageError(
            "secret-key-invalid",
            f"{path} is no secret key of minisign" if data is not None else f"there is no file {path}",
            hint="make one with: minisign -G -p release.pub -s release.key",
        )
    algorithm, derivation, checksum_kind, salt, operations, memory, secret = _PACKET.unpack(packet)
    if algorithm != b"Ed" or checksum_kind != b"B2" or derivation not in (b"Sc", b"\0\0"):
        raise UsageError("secret-key-invalid", f"{path}: it is a key of a kind that minisign 0.11 does not write")
    if derivation == b"Sc":
        stream = _derive(ask(), salt, operations, memory)
        secret = bytes(one ^ other for one, other in zip(secret, stream, strict=True))
    identifier, seed, point, checksum = _SECRET.unpack(secret)
    expected = hashlib.blake2b(algorithm + identifier + seed + point, digest_size=32).digest()
    # `minisign -G -W`, without a password, leaves the checksum empty.
    if checksum != expected and (derivation == b"Sc" or any(checksum)):
        raise TrustError(
            "secret-key-locked",
            f"{path}: the password is wrong" if derivation == b"Sc" else f"{path}: the key is damaged",
            hint="try again, or take the copy of the key",
        )
    return SecretKey(identifier=identifier, seed=seed, point=point)


def sign(data: bytes, key: SecretKey, comment: str) -> bytes:
    """The .minisig file of these bytes; the same bytes, key and comment give the same signature.

    Args:
        comment: one line, signed too.

    Raises:
        UsageError: the package `cryptography` is not installed.
        TrustError: the key is damaged.
    """
    try:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    except ImportError as error:
        raise UsageError(
            "signing-unavailable",
            "signing needs the Python package cryptography, which is not installed",
            hint='install it, or sign both lists by hand: minisign -Sm SHA256SUMS -s KEY -t "MODEL VERSION"',
        ) from error
    secret = Ed25519PrivateKey.from_private_bytes(key.seed)
    if secret.public_key().public_bytes_raw() != key.point:
        raise TrustError(
            "secret-key-damaged",
            f"the two halves of key {key.public().name} do not belong together",
            hint="take a copy",
        )
    signature = secret.sign(hashlib.blake2b(data, digest_size=64).digest())
    trusted = comment.encode()
    lines = (
        f"untrusted comment: signature by key {key.public().name}".encode(),
        base64.b64encode(b"ED" + key.identifier + signature),
        b"trusted comment: " + trusted,
        base64.b64encode(secret.sign(signature + trusted)),
    )
    return b"".join(line + b"\n" for line in lines)


def _derive(password: str, salt: bytes, operations: int, memory: int) -> bytes:
    """scrypt with the cost that libsodium derives from its two limits (crypto_pwhash_scryptsalsa208sha256)."""
    operations = max(operations, 32768)
    wide = operations >= memory // 32
    most = memory // (_SCRYPT_R * 128) if wide else operations // (_SCRYPT_R * 4)
    exponent = next((power for power in range(1, 63) if 1 << power > most // 2), 63)
    parallel = max(1, (operations // 4 >> exponent) // _SCRYPT_R) if wide else 1
    needed = 128 * _SCRYPT_R * ((1 << exponent) + parallel + 2)
    if needed > _MOST_MEMORY:
        raise UsageError("secret-key-invalid", f"the key asks for {needed} bytes of memory, which no minisign does")
    try:
        return hashlib.scrypt(
            password.encode(),
            salt=salt,
            n=1 << exponent,
            r=_SCRYPT_R,
            p=parallel,
            maxmem=needed + (1 << 20),
            dklen=_SECRET.size,
        )
    except (MemoryError, ValueError) as error:
        raise ResourceError(
            "secret-key-memory",
            f"unlocking the key takes {needed} bytes of memory",
            hint="free memory, or use another machine",
        ) from error
