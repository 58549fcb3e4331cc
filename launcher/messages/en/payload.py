"""English: what the portable program carries."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "payload-list-elf": "{size:>12}  {sha256}  (the program itself)",
    "payload-unpacked": "{count} files unpacked to {folder}",
    "self-sound": "ok       {name} ({size} bytes)",
    "self-damaged": "damaged  {name} ({size} bytes)",
    "self-verified": "This program's file is whole: {size} bytes, sealed with {sha256}.",
}
