"""The loaded engine library: calls with their errors, and the owner of one C object.

`launcher/engine.py` derives the nouns of `ling3.h` from `Handle`.
"""

from __future__ import annotations

import ctypes
import errno
from collections.abc import Sequence
from ctypes import byref, c_float, c_int32
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self
from weakref import WeakSet

from launcher import engine_abi as abi
from launcher.errors import (
    Cancelled,
    ContextFull,
    EngineCrash,
    InternalError,
    MindnanoError,
    PackageError,
    ResourceError,
    UsageError,
)

_OK = 0
_E_ARG = 1
_E_IO = 2
_E_FORMAT = 3
_E_UNSUPPORTED = 4
_E_MEMORY = 5
_E_CONTEXT = 6
_E_CANCELLED = 7


def status_error(status: int, message: str, os_errno: int = 0) -> MindnanoError:
    """The error that stands for a failed status of the engine."""
    if status == _E_ARG:
        return UsageError("engine-argument", message)
    if status == _E_IO and os_errno == errno.ENOENT:
        return PackageError("package-missing", message, hint="check the path, or use --demo for the built-in model")
    if status == _E_IO:
        return PackageError("package-unreadable", message, hint="check the file's permissions and the disk")
    if status == _E_FORMAT:
        return PackageError("package-damaged", message, hint="copy or download the package again")
    if status == _E_UNSUPPORTED:
        return PackageError("package-unsupported", message, hint="use a newer engine or another package")
    if status == _E_MEMORY:
        return ResourceError("memory", message, hint="choose a smaller --context, or free memory")
    if status == _E_CONTEXT:
        return ContextFull("context-full", message, hint="start again with a larger --context")
    if status == _E_CANCELLED:
        return Cancelled("cancelled", message)
    return EngineCrash("engine-internal", message, hint="please report this with the command that led to it")


class Library:
    """The loaded shared library."""

    def __init__(self, path: Path | None = None) -> None:
        """Loads the library from `path`, MINDNANO_ENGINE or the build folder.

        Raises:
            EngineError: missing, not loadable, or of another interface version.
        """
        self.path = abi.library_path(path)
        self.functions: ctypes.CDLL = abi.load(self.path)

    @property
    def version(self) -> str:
        """Name and version of the engine."""
        return str(self.functions.l3_version().decode())

    @property
    def abi_version(self) -> int:
        """Version of the interface."""
        return int(self.functions.l3_abi_version())

    @property
    def simd_available(self) -> tuple[str, ...]:
        """Kernel sets that this build has and this CPU can run, best first."""
        return tuple(self.functions.l3_simd_available().decode().split())

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function that returns a status and takes an error last; raises what the status means."""
        error = abi.CError()
        status = int(getattr(self.functions, name)(*arguments, byref(error)))
        if status != _OK:
            raise status_error(status, error.message.decode(errors="replace"), int(error.os_errno))


class Handle:
    """Owns one object of the engine."""

    _destructor: ClassVar[str]

    def __init__(self, library: Library, parent: Handle | None) -> None:
        self.library = library
        self._parent = parent  # keeps it alive
        self._pointer = ctypes.c_void_p()
        self._children: WeakSet[Handle] = WeakSet()
        if parent is not None:
            parent._children.add(self)

    @property
    def address(self) -> ctypes.c_void_p:
        """The C pointer.

        Raises:
            InternalError: the object is closed.
        """
        if not self._pointer:
            raise InternalError("closed-handle", f"{type(self).__name__} is closed")
        return self._pointer

    def close(self) -> None:
        """Frees the object and everything made from it; does nothing the second time."""
        for child in list(self._children):
            child.close()
        if self._pointer:
            pointer, self._pointer = self._pointer, ctypes.c_void_p()
            getattr(self.library.functions, self._destructor)(pointer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def floats(buffer: Any, count: int) -> Any:
    """A writable float32 buffer of at least `count` values as a C array; None stays None."""
    if buffer is None:
        return None
    try:
        return (c_float * count).from_buffer(buffer)
    except (TypeError, ValueError, BufferError) as error:
        raise InternalError("buffer", f"expected a writable buffer of {count} float32: {error}") from error


def ids_array(ids: Sequence[int]) -> Any:
    """Token ids as a C array of int32."""
    try:
        return (c_int32 * len(ids))(*ids)
    except TypeError as error:
        raise InternalError("buffer", f"token ids must be integers: {error}") from error
