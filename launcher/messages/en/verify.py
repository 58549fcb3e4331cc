"""English: `--verify`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "verify-progress": "Hashing {name}",
    "verify-title": "{folder}, checked against {sources}",
    "verify-title-release": "{model} {release} in {folder}, checked against {sources}",
    "verify-signature-valid": "signature: valid, key {key} ({use}): {comment}",
    "verify-signature-none": "signature: none",
    "verify-signature-no-key": "signature: not checked",
    "verify-key-release": "release key",
    "verify-key-recovery": "recovery key",
    "verify-missing": "missing ({count}):",
    "verify-changed": "changed ({count}):",
    "verify-expected": "expected {sha256}, {size} bytes",
    "verify-found": "found    {sha256}, {size} bytes",
    "verify-unreadable": "unreadable ({count}):",
    "verify-reason-link-leaves-folder": "a link that leaves the folder",
    "verify-reason-link-loop": "a loop of links",
    "verify-reason-not-a-regular-file": "no regular file",
    "verify-reason-changed-while-read": "it changed while it was read",
    "verify-reason-no-permission": "no permission to read it",
    "verify-reason-read-error": "it cannot be read; check the disk",
    "verify-extra": "not part of the release ({count}):",
    "verify-warning": "warning: {text}",
    "verify-warning-no-list": "there is no SHA256SUMS; {source} alone says which files belong here",
    "verify-warning-unsigned": "the release has no signature; this shows that it is complete, not who made it",
    "verify-warning-no-key": "this build has no key to check the signature with; who made the release is not known",
    "verify-warning-unlisted-manifest": "MANIFEST.json is not listed in {source} and was not used",
    "verify-warning-tolerated": "{source} is not as sha256sum writes it ({kinds}); sha256sum -c may fail on it",
    "verify-warning-absent": "not here, and not needed by the model: {absent}",
    "verify-warning-extra": "{count} files are not part of the release",
    "verify-intact": "intact: {intact} of {files} files, {size} hashed",
    "verify-damaged": "damaged: {intact} of {files} files are intact, {size} hashed",
    "verify-damaged-next": "next: fetch the missing and changed files again, then verify again",
    "verify-links-next": "next: fetch the files themselves, not links to a cache; from Hugging Face with: "
    "hf download ORG/NAME --local-dir DIR",
    "verify-strict": "failed: a warning counts as a failure with --strict",
}
