"""English: `--download` and the first start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "download-from": ("From {source}\nto   {path}"),
    "download-label-download": "Downloading {name}",
    "download-label-check": "Checking what is here of {name}",
    "download-label-copy": "Copying {name}",
    "download-label-verify": "Looking into {name}",
    "download-resume": "Continuing after {done}.",
    "download-retry": "{reason}. Trying again in {pause}.",
    "download-restart": "Starting from the beginning: {reason}.",
    "download-restart-unknown": "nothing says where the bytes so far come from",
    "download-restart-version": "the bytes so far belong to another version of the file",
    "download-restart-unproven": "nothing proves that the bytes so far belong to this file",
    "download-restart-longer": "there are more bytes than the file has",
    "download-restart-server": "the server sends the whole file",
    "download-restart-range": "the server does not have the range that was asked for",
    "download-already": "{path} is already here, with the expected SHA-256.",
    "download-trust-signed": "Every byte is as the publisher signed it.",
    "download-trust-listed": "Every byte is as the list at the source says. The list is not proven by a signature.",
    "download-trust-given": "Every byte is as --sha256 expects.",
    "download-trust-nobody": (
        "warning: nobody vouches for this file: no list, no signature. "
        "It is whole in itself; trust it as you trust its source."
    ),
    "download-unchecked": "warning: there is a signature, and this build has no key to check it with.",
    "first-start": (
        "There is no model yet. This one can be downloaded:\n"
        "  source  {source}\n"
        "  file    {name}, {size}\n"
        "  folder  {folder}, {free} free\n"
        "Other ways: --download SOURCE (a repository, a URL, a folder; HF_ENDPOINT names a mirror), "
        "--model FILE, --demo."
    ),
    "first-start-ask": "Download it now? [y/N] ",
}
