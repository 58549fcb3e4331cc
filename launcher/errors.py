"""The one tree of errors that the project raises; each class is one exit code.

The codes are a promise to scripts. ``mindnano-infer --help-exit-codes`` prints them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Final, Self

EXIT_SIGHUP: Final = 129
EXIT_SIGINT: Final = 130
EXIT_SIGTERM: Final = 143


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
