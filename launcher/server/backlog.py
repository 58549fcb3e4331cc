"""How many requests may be planned, or wait for it, at the same time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from launcher.errors import RequestError

SPARE: Final = 16
"""More than may wait for the engine: most requests are planned in no time, and the engine then refuses them itself."""


class Backlog:
    """The requests that worker threads plan, or others of a kind. Only the event loop's thread uses it."""

    def __init__(self, limit: int = SPARE, what: str = "requests are being read") -> None:
        self._limit = limit
        self._what = what
        self._count = 0

    @contextmanager
    def place(self) -> Iterator[None]:
        """A place for one request, until the context ends.

        Raises:
            RequestError: 429, there is none.
        """
        if self._count >= self._limit:
            raise RequestError(
                "overloaded",
                f"{self._count} {self._what} already; try again later",
                status=429,
                kind="rate_limit_error",
                headers={"Retry-After": "2"},
            )
        self._count += 1
        try:
            yield
        finally:
            self._count -= 1
