"""The application: what is checked of every request, what every answer carries, and how errors become answers."""

from __future__ import annotations

import asyncio
import sys
import traceback
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.routing import BaseRoute, Route, Router

from launcher.errors import MindnanoError, RequestError
from launcher.server.answers import refusal
from launcher.server.backlog import Backlog
from launcher.server.bodies import Bodies, BodyLimits
from launcher.server.bridge import Receive
from launcher.server.connections import Headers, new_request_id
from launcher.server.journal import Journal
from launcher.server.ports import Backend
from launcher.server.security import Access
from launcher.server.sse import PING_SECONDS, Send
from launcher.server.state_body import Pace

Scope = MutableMapping[str, Any]
T = TypeVar("T")
OWNER: Final = "mindnano.owner"  # in the scope of a request
HEADERS: Final = "mindnano.headers"
_UNMATCHED: Final = "unmatched"
_PLANNERS: Final = 2
_CARRIED: Final = 2
_MAX_HEAD: Final = 1 << 16
_SECURITY_HEADERS: Final = ((b"x-content-type-options", b"nosniff"),)


class Phase(Enum):
    """What the server can do now."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"


@dataclass(slots=True, kw_only=True)
class State:
    """What changes while the server runs. Only the event loop's thread uses it."""

    phase: Phase = Phase.LOADING
    backend: Backend | None = None

    def loaded(self) -> Backend:
        """The model.

        Raises:
            RequestError: 503, it is not loaded yet.
        """
        if self.backend is None:
            raise _unavailable("model_loading", "the model is being loaded", retry=5)
        return self.backend

    def accepting(self) -> Backend:
        """The model, for new work.

        Raises:
            RequestError: 503, it is not loaded yet, or the server stops.
        """
        if self.phase is Phase.DRAINING:
            raise _unavailable("shutting_down", "the server is shutting down", retry=30)
        return self.loaded()


def _unavailable(code: str, message: str, *, retry: int) -> RequestError:
    return RequestError(code, message, status=503, kind="server_error", headers={"Retry-After": str(retry)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What the routes work with.

    Attributes:
        state: whether the model is there.
        journal: notes what happens.
        bodies: reads bodies.
        backlog: bounds what is planned at the same time.
        workers: do what would keep the event loop waiting.
        watcher: makes the page of metrics, which may wait for a disk, whatever the workers have to do.
        ping_seconds: longest silence on a stream.
        carried: bounds the sessions that come or leave at the same time.
        pace: how slow they may be.
        carrier: does what takes long about them, beside the workers.
        timeout: seconds after which a request is given up; None for no limit.
    """

    state: State
    journal: Journal
    bodies: Bodies = field(default_factory=lambda: Bodies(BodyLimits()))
    backlog: Backlog = field(default_factory=Backlog)
    ping_seconds: float = PING_SECONDS
    workers: ThreadPoolExecutor = field(
        default_factory=lambda: ThreadPoolExecutor(_PLANNERS, thread_name_prefix="plan")
    )
    watcher: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="metrics"))
    carried: Backlog = field(default_factory=lambda: Backlog(_CARRIED, "sessions are on their way"))
    pace: Pace = field(default_factory=Pace)
    carrier: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="sessions"))

    async def work(self, function: Callable[..., T], *arguments: object) -> T:
        """Runs in a worker thread what would keep the event loop waiting."""
        return await asyncio.get_running_loop().run_in_executor(self.workers, lambda: function(*arguments))

    async def carry(self, function: Callable[..., T], *arguments: object) -> T:
        """Runs in the carrier's thread what goes through a whole session."""
        return await asyncio.get_running_loop().run_in_executor(self.carrier, lambda: function(*arguments))

    async def plan(self, function: Callable[..., T], *arguments: object) -> T:
        """The same for what a client sent, of which only so much may wait at the same time.

        Raises:
            RequestError: 429, too much does.
        """
        with self.backlog.place():
            return await self.work(function, *arguments)


class Application:
    """The ASGI application. Closed by `close`. `headers` are those that every answer has, lower case."""

    def __init__(
        self, services: Services, access: Access, routes: list[Route], *, open_paths: frozenset[str], served_by: str
    ) -> None:
        """Args:
        services: what the routes work with.
        access: what is checked first.
        routes: the table.
        open_paths: what needs no key.
        served_by: the name of this machine, for `X-Served-By`.
        """
        self._services = services
        self._access = access
        self._open = open_paths
        self.headers: Headers = ((b"x-served-by", served_by.encode("ascii", errors="replace")), *_SECURITY_HEADERS)
        listed: list[BaseRoute] = list(routes)
        self._router = Router(listed, redirect_slashes=False)
        self._routes = routes

    def close(self) -> None:
        """Ends the worker threads, when they are done with what they do."""
        for pool in (self._services.workers, self._services.watcher, self._services.carrier):
            pool.shutdown(cancel_futures=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers one request."""
        if scope["type"] != "http":
            return
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(scope["headers"])}
        _shorten_target(scope, headers)
        extra = _Extra(self.headers, self._access.cors_headers(headers), send)
        try:
            await self._serve(scope, headers, receive, extra)
        except ClientDisconnect:
            extra.status = extra.status or 499
        except Exception as error:
            if extra.status:
                traceback.print_exc(file=sys.stderr)
                raise
            await self._refuse(error, scope, receive, extra)
        self._services.journal.metrics.answered(self._route(scope), extra.status)

    async def _serve(self, scope: Scope, headers: Mapping[str, str], receive: Receive, send: _Extra) -> None:
        _check_head(scope)
        self._access.check_host(headers)
        if scope["method"] == "OPTIONS":
            await self._options(scope, headers)(scope, receive, send)
            return
        self._access.check_origin(scope["method"], headers)
        scope[OWNER] = "" if scope["path"] in self._open else self._access.keys.require(headers)
        scope[HEADERS] = headers
        scope["app"] = self  # makes the router raise what it does not find
        await self._router(scope, receive, send)

    def _options(self, scope: Scope, headers: Mapping[str, str]) -> Response:
        """A browser's question before its request, or anybody's about the methods of a path. Needs no key."""
        if "origin" in headers and "access-control-request-method" in headers:
            return Response(status_code=204, headers=self._access.preflight(headers))
        # As for every method, the first one counts: a session's name may end like the path of a state.
        found = next((route for route in self._routes if route.path_regex.fullmatch(scope["path"])), None)
        if found is None:
            raise RequestError("not_found", "there is no such path on this server", status=404)
        methods = found.methods or set()
        return Response(status_code=204, headers={"Allow": ", ".join(sorted({*methods, "OPTIONS"}))})

    def _route(self, scope: Scope) -> str:
        """The path in the table that this one fits, also where the request never came that far."""
        matching = (route.path for route in self._routes if route.path_regex.fullmatch(scope["path"]))
        return next(matching, _UNMATCHED)

    async def _refuse(self, error: Exception, scope: Scope, receive: Receive, send: _Extra) -> None:
        told = refusal(error)
        if not isinstance(error, MindnanoError) and told.detail is not None:
            traceback.print_exception(error, file=sys.stderr)
        self._services.journal.refused(self._route(scope), told.status, told.code, told.detail)
        await told.answer(scope, receive, send)


def _shorten_target(scope: Scope, headers: MutableMapping[str, str]) -> None:
    """A target may be a whole address, and its host then counts instead of the Host header's (RFC 9112, 3.2.2)."""
    scheme, mark, rest = scope["raw_path"].partition(b"://")
    if not mark or scheme.lower() not in {b"http", b"https"}:
        return
    authority, _, path = rest.partition(b"/")
    headers["host"] = authority.decode("latin-1")
    scope["raw_path"] = b"/" + path
    scope["path"] = unquote("/" + path.decode("ascii"))


def _check_head(scope: Scope) -> None:
    """h11 bounds a head only while it is incomplete."""
    size = len(scope["raw_path"]) + len(scope["query_string"])
    size += sum(len(name) + len(value) for name, value in scope["headers"])
    if size > _MAX_HEAD:
        raise RequestError("headers_too_large", "the request's head is larger than 64 KiB", status=431)
    names = {name for name, _ in scope["headers"]}
    if {b"content-length", b"transfer-encoding"} <= names:
        # Where the body ends is then a matter of opinion, and a proxy in front may have another one (RFC 9112, 6.3).
        raise RequestError(
            "invalid_http",
            "the request has both Content-Length and Transfer-Encoding, expected one of them",
            headers={"Connection": "close"},
        )


class _Extra:
    """`send` that adds the headers of every answer and remembers the status."""

    def __init__(self, always: Headers, cors: Mapping[str, str], send: Callable[[Scope], Awaitable[None]]) -> None:
        self._headers = [
            *always,
            *((name.lower().encode(), value.encode("latin-1")) for name, value in cors.items()),
        ]
        self._send = send
        self.status = 0

    async def __call__(self, message: Scope) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            given = list(message.get("headers", ()))
            if not any(name == b"x-request-id" for name, _ in given):
                given.append((b"x-request-id", new_request_id()))
            message = {**message, "headers": [*given, *self._headers]}
        await self._send(message)
