"""The one tree of errors that the project raises; each class is one exit code.

The codes are a promise to scripts. ``mindnano-infer --help-exit-codes`` prints them.
"""

from __future__ import annotations

import errno
from collections.abc import Mapping
from typing import ClassVar, Final, Self

EXIT_SIGHUP: Final = 129
EXIT_SIGINT: Final = 130
EXIT_SIGTERM: Final = 143

_NO_THREAD: Final = "can't start new thread"  # what Python says; it has no class of its own
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class MindnanoError(Exception):
    """What went wrong, under a stable name, with what to do next.

    Attributes:
        slug: lower-case-with-dashes name of the failure; key of the message catalogues, stable between releases.
        message: one English sentence: what was found and what was expected.
        hint: the next step for the reader, or an empty string.
        exit_code: what the process exits with when nothing handles the error.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, slug: str, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.slug = slug
        self.message = message
        self.hint = hint

    def about(self, name: object) -> Self:
        """The same error, with the name of what it is about in front of the message."""
        return type(self)(self.slug, f"{name}: {self.message}", hint=self.hint)


class InternalError(MindnanoError):
    """A bug in this program."""

    exit_code: ClassVar[int] = 1


class UsageError(MindnanoError):
    """The command line or a request asks for something that does not exist or contradicts itself."""

    exit_code: ClassVar[int] = 2


class DeviceError(MindnanoError):
    """The board, CPU or driver is not supported."""

    exit_code: ClassVar[int] = 3


class PackageError(MindnanoError):
    """A model package or checkpoint is missing, damaged or asks for something this build does not implement."""

    exit_code: ClassVar[int] = 4


class ResourceError(MindnanoError):
    """Not enough memory, disk space or context."""

    exit_code: ClassVar[int] = 5


class ContextFull(ResourceError):
    """The session holds as many tokens as its context allows."""


class NetworkError(MindnanoError):
    """The network or a download failed."""

    exit_code: ClassVar[int] = 6


class BusyError(MindnanoError):
    """A port or an instance is taken."""

    exit_code: ClassVar[int] = 7


class TrustError(MindnanoError):
    """A signature or a checksum does not match what is trusted."""

    exit_code: ClassVar[int] = 8


class EngineError(MindnanoError):
    """The engine library is missing, cannot be loaded or has another interface version."""

    exit_code: ClassVar[int] = 9


class EngineCrash(MindnanoError):
    """The engine failed while it ran."""

    exit_code: ClassVar[int] = 10


class RequestError(MindnanoError):
    """A request to the server cannot be served. Answers are JSON, so these stay English in every language.

    The slug is the `code` of the OpenAI error object.

    Attributes:
        status: of the HTTP answer.
        kind: the `type` of the error object.
        param: the field that is wrong, as a path such as ``messages[0].role``, or None.
        headers: further headers of the answer.
    """

    exit_code: ClassVar[int] = 2

    def __init__(
        self,
        slug: str,
        message: str,
        *,
        status: int = 400,
        kind: str = "invalid_request_error",
        param: str | None = None,
        headers: Mapping[str, str] | None = None,
        hint: str = "",
    ) -> None:
        super().__init__(slug, message, hint=hint)
        self.status = status
        self.kind = kind
        self.param = param
        self.headers = dict(headers or {})


class Cancelled(MindnanoError):
    """Work stopped because it was asked to stop."""

    exit_code: ClassVar[int] = EXIT_SIGINT


def resource_error(error: Exception) -> ResourceError | None:
    """What the machine has too little of, where that is the reason of an error; None where it is a bug."""
    if isinstance(error, OSError) and error.errno in _FULL:
        return ResourceError("output-full", f"cannot write: {error.strerror}", hint="free some space")
    if isinstance(error, MemoryError):
        return ResourceError(
            "memory", "the program ran out of memory", hint="choose a smaller --context, or free memory"
        )
    if isinstance(error, RuntimeError) and str(error) == _NO_THREAD:
        return ResourceError(
            "threads",
            "no thread could be started",
            hint="raise the limits on processes and memory: ulimit -u, ulimit -v, pids.max of the control group",
        )
    return None
