"""The routes that make the model write, and those that cancel, pause and resume that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from string import punctuation
from typing import Final
from urllib.parse import quote

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from launcher.errors import RequestError
from launcher.server.answers import json_answer, refusal
from launcher.server.app import HEADERS, OWNER, Services
from launcher.server.bridge import Bridge
from launcher.server.events import Event, Failed
from launcher.server.journal import Entry
from launcher.server.ports import Backend, Call, Caller, SchedulerPort
from launcher.server.sse import EventStream, collect

_Planner = Callable[[Backend, bytes, Caller], Call]
# What stands in a header for itself; the rest is percent-encoded, "%" too, so that it can be read back.
_PLAIN: Final = punctuation.replace("%", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Control:
    """What is done to a request that its caller names.

    Attributes:
        act: does it; whether there is such a request.
        done: the member of the answer that says so.
        missing: the end of the sentence that says that there is no such request.
        name_of: reads the name.
        param: the field that it is read from.
    """

    act: Callable[[SchedulerPort, str, str], bool]
    done: str
    missing: str
    name_of: Callable[[Backend, bytes], str] = lambda backend, body: backend.request_id(body)
    param: str = "request_id"


_CANCEL: Final = _Control(
    act=lambda scheduler, id, owner: scheduler.cancel(id, owner), done="cancelled", missing="that could be cancelled"
)
_PAUSE: Final = _Control(
    act=lambda scheduler, id, owner: scheduler.pause(id, owner), done="paused", missing="that could be paused"
)
_RESUME: Final = _Control(
    act=lambda scheduler, id, owner: scheduler.resume(id, owner), done="resumed", missing="that could be resumed"
)
_END_THINKING: Final = _Control(
    act=lambda scheduler, id, owner: scheduler.end_thinking(id, owner),
    done="thinking_ended",
    missing="whose thinking could be ended",
)


def generation_routes(services: Services) -> list[Route]:
    """The paths that answer chats, completions and responses, and those that act on a request by its id."""

    def generating(path: str, plan: _Planner) -> Route:
        async def endpoint(request: Request) -> Response:
            return await _generate(services, request, path, plan)

        return Route(path, endpoint, methods=["POST"])

    def controlling(path: str, control: _Control) -> Route:
        async def endpoint(request: Request) -> Response:
            return await _control(services, request, control)

        return Route(path, endpoint, methods=["POST"])

    return [
        generating("/v1/chat/completions", lambda backend, body, caller: backend.chat(body, caller)),
        generating("/v1/completions", lambda backend, body, caller: backend.completion(body, caller)),
        generating("/v1/responses", lambda backend, body, caller: backend.responses(body, caller)),
        controlling("/v1/cancel", _CANCEL),
        controlling("/v1/pause", _PAUSE),
        controlling("/v1/resume", _RESUME),
        controlling("/v1/end-thinking", _END_THINKING),
        controlling(
            "/v1/chat/completions/control",
            replace(_END_THINKING, name_of=lambda backend, body: backend.controlled_id(body), param="id"),
        ),
    ]


async def _generate(services: Services, request: Request, path: str, plan: _Planner) -> Response:
    services.state.accepting()  # before a large body is read
    caller = Caller(owner=request.scope[OWNER], headers=request.scope[HEADERS])
    with services.bodies.held() as held:
        body = await held.read(request)
        call = await services.plan(plan, services.state.accepting(), body, caller)
    backend = services.state.accepting()
    bridge = Bridge(asyncio.get_running_loop())
    entry = Entry(services.journal, path, call)
    backend.scheduler.submit(call.request, bridge.sink)

    def cancel() -> None:
        backend.scheduler.withdraw(call.request)

    headers = _headers(call)
    if call.stream:
        return EventStream(
            bridge,
            call.new_stream(),
            typed=call.typed_events,
            headers=headers,
            cancel=cancel,
            observe=entry.observe,
            close=lambda gone: entry.close(200, gone=gone),
            ping_seconds=services.ping_seconds,
        )
    return await _whole(services, request, bridge, call, entry, cancel, headers)


async def _whole(
    services: Services,
    request: Request,
    bridge: Bridge,
    call: Call,
    entry: Entry,
    cancel: Callable[[], None],
    headers: dict[str, str],
) -> Response:
    writer = call.new_reply()

    def take(event: Event) -> None:
        entry.observe(event)
        if not isinstance(event, Failed):
            writer.add(event)

    last: Event | None = None
    try:
        last = await collect(bridge, request.receive, take)
    finally:
        if last is None:
            cancel()
            entry.close(499, gone=bridge.has_left())
    if last is None:
        raise ClientDisconnect
    if isinstance(last, Failed):
        told = refusal(last.error)
        entry.close(told.status, gone=False)
        told.answer.headers.update(headers)
        return told.answer
    entry.close(200, gone=False)
    # With log-probabilities a document may have megabytes.
    document = await services.work(writer.document)
    return Response(document, headers=headers, media_type="application/json")


def _headers(call: Call) -> dict[str, str]:
    headers = {"X-Request-Id": call.request.id}
    session = call.request.session
    if session is not None:
        # Spaces at the ends of a header's value are no part of it.
        plain = _PLAIN if session != session.strip() else f"{_PLAIN} "
        headers["X-Session-Id"] = quote(session, safe=plain)
    return headers


async def _control(services: Services, request: Request, control: _Control) -> Response:
    backend = services.state.loaded()
    with services.bodies.held() as held:
        name = await services.work(control.name_of, backend, await held.read(request))
    if not control.act(backend.scheduler, name, request.scope[OWNER]):
        raise RequestError(
            "request_not_found", f"there is no request {name!r} {control.missing}", status=404, param=control.param
        )
    return json_answer({"request_id": name, control.done: True})
