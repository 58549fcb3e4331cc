"""What the program carries beside its code: libraries, the built-in model, notices. A checkout has none.

`launcher.payload.file` reads the archive, `launcher.payload.memory_file` gives libraries out of it a path.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

from launcher.payload.built_in import PROGRAM, start

if TYPE_CHECKING:
    from launcher.payload.file import Member, Payload
    from launcher.payload.memory_file import MemoryFile

RUNTIME_VARIABLE: Final = "MINDNANO_RKNN_RUNTIME"
RKNN_RUNTIME: Final = "lib/librknnrt.so"
LLGUIDANCE: Final = "lib/llguidance.whl"
"""The distribution as its authors publish it."""
DEMO_MODEL: Final = "models/demo.l3r"
CERTIFICATES: Final = "certs/cacert.pem"
PUBLISHER: Final = "publisher.json"
SBOM: Final = "sbom.cdx.json"
PAGE: Final = "page/"
"""What the names of the files of the server's page begin with."""
NOTICES: Final = "notices/"
"""What the names of all notices begin with."""


@cache
def carried() -> Payload | None:
    """The payload of this program, open until it ends; None where the launcher runs from source.

    Raises:
        PackageError: it contradicts itself.
    """
    if start() is None:
        return None
    from launcher.payload.file import Payload

    return Payload(PROGRAM)


def carried_member(name: str) -> Member | None:
    """A file of this program's payload, or None where it does not carry it."""
    payload = carried()
    return None if payload is None else payload.members.get(name)


def carried_bytes(name: str) -> bytes | None:
    """The bytes of a file that a checkout has in its folders, or None where this program does not carry it."""
    payload = carried()
    return None if payload is None or name not in payload.members else payload.read(name)


def rknn_runtime(environ: Mapping[str, str]) -> str | None:
    """Absolute path of the librknnrt.so that this program may load, or None where it carries none.

    Copies that the system has are left alone: boards carry versions of all ages under the same name. The carried one
    has a path in memory, which processes that this one starts can open too while it lives.

    Raises:
        EngineError: there is no place to load it from.
    """
    named = environ.get(RUNTIME_VARIABLE, "")
    if named:
        return named if named.startswith("/") else None
    if carried_member(RKNN_RUNTIME) is None:
        return None
    return _rknn_in_memory(tuple((name, environ.get(name, "")) for name in _PLACES)).path


_PLACES: Final = ("XDG_RUNTIME_DIR", "XDG_CACHE_HOME", "HOME")


@cache
def _rknn_in_memory(places: tuple[tuple[str, str], ...]) -> MemoryFile:
    from launcher.payload.memory_file import place

    payload = carried()
    assert payload is not None
    return place(payload.read(RKNN_RUNTIME), "librknnrt.so", dict(places))


def demo_package() -> tuple[str, tuple[int, int]] | None:
    """Path and window of the built-in model, as `Package(Path(path), window=window)` takes them; None without."""
    payload, member = carried(), carried_member(DEMO_MODEL)
    return None if payload is None or member is None else (payload.open_path, (member.offset, member.size))
