"""What the portable program found out about itself before `main`: its built-in module `_l3`.

In a source checkout there is no such module, and one that lies about as a file is not taken for it.
"""

from __future__ import annotations

import _imp
import importlib
from dataclasses import dataclass
from typing import Final

MODULE: Final = "_l3"
PROGRAM: Final = "/proc/self/exe"


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The check that the program made of its own file. A program that fails it ends before Python starts.

    Attributes:
        file_bytes: length of the file.
        elf_bytes: length of its ELF part.
        directory_offset: where the payload's directory starts.
        nanoseconds: how long the check took.
        sha256: of the file up to the digest in its last bytes, 64 lower-case hexadecimal digits.
    """

    file_bytes: int
    elf_bytes: int
    directory_offset: int
    nanoseconds: int
    sha256: str


def start() -> Start | None:
    """What the portable program knows about itself; None where the launcher runs from source."""
    # Not `sys.builtin_module_names`: a compiler takes that for a constant, and Python that it knows has no such module.
    if not _imp.is_builtin(MODULE):
        return None
    file_bytes, elf_bytes, directory_offset, nanoseconds, sha256 = importlib.import_module(MODULE).start()
    return Start(
        file_bytes=file_bytes,
        elf_bytes=elf_bytes,
        directory_offset=directory_offset,
        nanoseconds=nanoseconds,
        sha256=sha256.hex(),
    )
