"""Reading request bodies: JSON only, bounded in size and time, each one and all of them together."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from starlette.requests import Request

from launcher.errors import RequestError

_UTF8: Final = frozenset({"", "utf-8", "utf8", "us-ascii"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BodyLimits:
    """Bytes and seconds. `together` bounds the bodies that are held at the same time."""

    bytes: int = 8 << 20
    together: int = 64 << 20
    seconds: float = 60.0


class Bodies:
    """The bodies that are being read or worked on. Only the event loop's thread uses it."""

    def __init__(self, limits: BodyLimits) -> None:
        self._limits = limits
        self._held = 0

    @contextmanager
    def held(self) -> Iterator[HeldBody]:
        """A body; what it holds is counted until the context ends."""
        body = HeldBody(self)
        try:
            yield body
        finally:
            self._held -= body.size

    async def read(self, request: Request, body: HeldBody) -> bytes:
        """The whole body.

        Raises:
            RequestError: 415 no JSON, 413 too large, 408 too slow, 503 too many large ones at once.
            starlette.requests.ClientDisconnect: the client left.
        """
        _require_json(request)
        declared = request.headers.get("content-length", "")
        if declared.isascii() and declared.isdigit() and int(declared[:20]) > self._limits.bytes:
            raise self._too_large()
        parts = []
        try:
            async with asyncio.timeout(self._limits.seconds):
                async for part in request.stream():
                    body.size += len(part)
                    self._held += len(part)
                    if body.size > self._limits.bytes:
                        raise self._too_large()
                    if self._held > self._limits.together:
                        raise RequestError(
                            "overloaded",
                            "too many large requests at once; try again later",
                            status=503,
                            kind="server_error",
                            headers={"Retry-After": "2"},
                        )
                    parts.append(part)
        except TimeoutError as error:
            raise RequestError(
                "request_timeout",
                f"the request's body did not arrive within {self._limits.seconds:g} seconds",
                status=408,
                headers={"Connection": "close"},
            ) from error
        return b"".join(parts)

    def _too_large(self) -> RequestError:
        return RequestError(
            "request_too_large",
            f"the request's body is larger than {self._limits.bytes} bytes",
            status=413,
        )


class HeldBody:
    """How many bytes one request holds."""

    def __init__(self, bodies: Bodies) -> None:
        self.bodies = bodies
        self.size = 0

    async def read(self, request: Request) -> bytes:
        """As `Bodies.read`."""
        return await self.bodies.read(request, self)


def _require_json(request: Request) -> None:
    kind, _, rest = request.headers.get("content-type", "application/json").partition(";")
    kind = kind.strip().lower()
    charset = next(
        (part.partition("=")[2] for part in rest.lower().split(";") if part.strip().startswith("charset=")), ""
    )
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    is_json = kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))
    if is_json and charset.strip(' "') in _UTF8 and coding == "identity":
        return
    found = f"Content-Encoding {coding}" if coding != "identity" else f"{kind or 'nothing'} {charset}".strip()
    raise RequestError(
        "unsupported_media_type", f"the request's body is {found}; expected application/json in UTF-8", status=415
    )
