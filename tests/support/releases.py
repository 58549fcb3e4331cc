"""Release folders for tests, signed in minisign's format by another implementation of Ed25519 than ours."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from launcher.integrity.checksums import format_checksums
from launcher.integrity.manifest import Manifest, ReleaseFile
from launcher.integrity.publisher import Publisher
from launcher.integrity.signature import KeyUse, PublicKey, parse_public_key


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@dataclass(frozen=True)
class Signer:
    """A secret key that signs as minisign does."""

    secret: Ed25519PrivateKey
    identifier: bytes

    @classmethod
    def from_seed(cls, number: int) -> Signer:
        seed = hashlib.sha256(f"signer {number}".encode()).digest()
        return cls(Ed25519PrivateKey.from_private_bytes(seed), hashlib.sha256(seed).digest()[:8])

    def public_text(self) -> str:
        point = self.secret.public_key().public_bytes_raw()
        return base64.b64encode(b"Ed" + self.identifier + point).decode()

    def public(self, use: KeyUse = KeyUse.RELEASE) -> PublicKey:
        return parse_public_key(self.public_text(), use)

    def sign(self, data: bytes, comment: bytes = b"timestamp:1\tfile:SHA256SUMS", *, legacy: bool = False) -> bytes:
        message = data if legacy else hashlib.blake2b(data).digest()
        signature = self.secret.sign(message)
        packet = (b"Ed" if legacy else b"ED") + self.identifier + signature
        return b"\n".join(
            (
                b"untrusted comment: signature of a test",
                base64.b64encode(packet),
                b"trusted comment: " + comment,
                base64.b64encode(self.secret.sign(signature + comment)),
                b"",
            )
        )


def publisher(*keys: PublicKey) -> Publisher:
    return Publisher(repository=None, keys=keys)


def manifest_of(files: Mapping[str, bytes], **changes: Any) -> Manifest:
    facts: dict[str, Any] = {
        "model": "toy",
        "release": "1.0.0",
        "builder": "test 1",
        "tools": {"zig": "0.17.1"},
        "commit": "0" * 40,
        "source_sha256": "5" * 64,
        "source_date_epoch": 1_700_000_000,
        "min_launcher_version": "0.1.0",
        "files": tuple(
            ReleaseFile(
                path=path,
                size=len(data),
                sha256=sha256(data),
                role="binary" if path == "mindnano-infer" else "package",
                licence="MIT",
                public=path != "private.txt",
            )
            for path, data in files.items()
        ),
    }
    return Manifest(**{**facts, **changes})


TOY_FILES = {
    "toy.l3r": bytes(range(256)) * 8192,
    "NOTICE": b"nothing to notice\n",
    "licences/Größe 大.txt": b"",
    "private.txt": b"stays here\n",
}


def write_release(
    folder: Path,
    files: Mapping[str, bytes] = TOY_FILES,
    *,
    signer: Signer | None = None,
    lists: tuple[str, ...] = ("MANIFEST.json", "SHA256SUMS"),
    **changes: Any,
) -> Path:
    """Writes the files and the lists that are asked for; SHA256SUMS.PUBLIC leaves out private.txt."""
    digests = {}
    for path, data in files.items():
        place = folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(data)
        digests[path] = sha256(data)
    if "MANIFEST.json" in lists:
        data = manifest_of(files, **changes).to_json()
        (folder / "MANIFEST.json").write_bytes(data)
        digests["MANIFEST.json"] = sha256(data)
    for name in ("SHA256SUMS.PUBLIC", "SHA256SUMS"):
        if name in lists:
            public = name.endswith("PUBLIC")
            listed = {path: digest for path, digest in digests.items() if not (public and path == "private.txt")}
            data = format_checksums(listed)
            (folder / name).write_bytes(data)
            digests[name] = sha256(data)
            if signer is not None:
                (folder / f"{name}.minisig").write_bytes(signer.sign(data))
    return folder
