"""`/v1/sessions/{id}/state`, by which a conversation moves to another server, and `/slots`."""

from __future__ import annotations

import asyncio
import base64
import re
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import ExitStack
from typing import Final, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from launcher.errors import RequestError
from launcher.server.answers import json_answer
from launcher.server.app import OWNER, Services
from launcher.server.connections import PATIENT
from launcher.server.ports import ExchangePort
from launcher.server.protocol.limits import LABEL, MAX_NAME_CHARACTERS
from launcher.server.session_format import ID_BYTES, PREFIX
from launcher.server.session_state import check_header, check_prefix, check_state, damaged_state, state_file
from launcher.server.session_transfer import Loan, Room
from launcher.server.state_body import Progress, StateReader, StateResponse, in_time

T = TypeVar("T")
STATE_SUFFIX: Final = "/state"
_STATE_METHODS: Final = "GET, HEAD, PUT"
_BINARY: Final = "application/octet-stream"
_LABEL: Final = re.compile(LABEL)


def state_routes(services: Services) -> list[Route]:
    """The routes; they come before that of `/v1/sessions/{id}`, whose names may hold slashes."""

    async def state(request: Request) -> Response:
        if not names_state(request):
            raise _not_allowed("DELETE")
        return await (_receive if request.method == "PUT" else _send)(services, request)

    async def slots(request: Request) -> Response:
        wanted = bool(request.query_params.get("fail_on_no_slot"))
        backend = services.state.accepting() if wanted else services.state.loaded()
        found = await services.work(backend.slots, request.scope[OWNER])
        if wanted and all(slot["is_processing"] for slot in found):
            raise RequestError(
                "no_slot_available",
                "no slot is available: a request is being answered",
                status=503,
                kind="server_error",
                headers={"Retry-After": "2"},
            )
        return json_answer(list(found))

    return [
        Route("/slots", slots, methods=["GET"]),
        Route("/v1/sessions/{name:path}/state", state, methods=["GET", "PUT"]),
    ]


def names_state(request: Request) -> bool:
    """Whether the path means a session's state, not a session whose name ends like that: that one has its slash
    percent-encoded."""
    raw: bytes = request.scope["raw_path"]
    return raw.endswith(STATE_SUFFIX.encode())


def refuse_state(request: Request) -> None:
    """For the route of sessions themselves.

    Raises:
        RequestError: 405, the path means a state.
    """
    if names_state(request):
        raise _not_allowed(_STATE_METHODS)


async def _send(services: Services, request: Request) -> Response:
    exchange = services.state.loaded().exchange
    exchange.rules.require_cache()
    with ExitStack() as held:
        held.enter_context(services.carried.place())
        loan = await _performed(exchange.lend(request.scope[OWNER], request.path_params["name"]), Loan.close)
        held.callback(loan.close)
        file = await services.carry(state_file, loan.entry, exchange.rules.origin)
        tag = f'"{file.checksum.hex()}"'
        headers = {
            "Content-Type": _BINARY,
            "ETag": tag,
            "Repr-Digest": f"sha-256=:{base64.b64encode(file.digest).decode()}:",
            "Cache-Control": "no-store",
        }
        if _is_known(request.headers.get("if-none-match", ""), tag):
            return Response(status_code=304, headers=headers)
        if request.method == "HEAD":
            return Response(headers={**headers, "Content-Length": str(file.length)})
        return StateResponse(file, headers=headers, pace=services.pace, close=held.pop_all().close)


async def _receive(services: Services, request: Request) -> Response:
    exchange = services.state.accepting().exchange
    exchange.rules.require_cache()
    name, owner = request.path_params["name"], request.scope[OWNER]
    if not _LABEL.search(name):
        message = f"the session's name is not 1 to {MAX_NAME_CHARACTERS} printable characters"
        raise RequestError("invalid_value", message, param="id")
    _require_binary(request)
    declared = _declared(request)
    exchange.rules.check_length(declared or 0)
    with services.carried.place():
        request.scope[PATIENT] = True
        is_new, tokens, size = await _take_in(services, request, exchange, owner, name, declared)
    document = {"id": name, "object": "session", "tokens": tokens, "bytes": size, "place": "ram"}
    return json_answer(document, 201 if is_new else 200)


async def _take_in(
    services: Services, request: Request, exchange: ExchangePort, owner: str, name: str, declared: int | None
) -> tuple[bool, int, int]:
    """Whether there was no such session, its tokens and the bytes of its state."""
    rules = exchange.rules
    room: Room | None = None
    progress = Progress(services.pace)
    reader = StateReader(request.stream(), progress.move)
    try:
        with in_time(progress):
            async with progress:
                prefix = await reader.exactly(PREFIX.size)
                text = await reader.exactly(check_prefix(prefix))
                header = check_header(text)
                rules.check_header(header, owner)
                whole = reader.taken + header.body_bytes()
                if declared not in (None, whole):
                    raise damaged_state(f"it has {declared} bytes, its header asks for {whole}")
                head = prefix + text + await reader.exactly(ID_BYTES * header.tokens)
                room = await _performed(exchange.reserve(owner, name, header.export_bytes), Room.close)
                with memoryview(room.block.memory) as view:
                    await reader.fill(view)
                checksum = await reader.exactly(whole - reader.taken)
                await reader.end()
        ids = await services.carry(check_state, head, header, room.block.memory, checksum, rules)
        is_new = await asyncio.wrap_future(exchange.accept(room, ids, header.checkpoints))
    finally:
        if room is not None:
            room.close()
    return is_new, header.tokens, header.export_bytes


async def _performed(future: Future[T], give_back: Callable[[T], None]) -> T:
    """What the generation thread made; it gets it back where nobody waits for it any more."""
    try:
        return await asyncio.shield(asyncio.wrap_future(future))
    except asyncio.CancelledError:
        future.add_done_callback(lambda done: None if done.exception() else give_back(done.result()))
        raise


def _is_known(given: str, tag: str) -> bool:
    return given.strip() == "*" or tag in (part.strip().removeprefix("W/") for part in given.split(","))


def _declared(request: Request) -> int | None:
    text = request.headers.get("content-length", "")
    return int(text[:20]) if text.isascii() and text.isdigit() else None


def _require_binary(request: Request) -> None:
    kind = request.headers.get("content-type", _BINARY).partition(";")[0].strip().lower()
    coding = request.headers.get("content-encoding", "identity").strip().lower()
    if kind != _BINARY or coding != "identity":
        found = kind if coding == "identity" else f"Content-Encoding {coding}"
        raise RequestError(
            "unsupported_media_type", f"the request's body is {found or 'nothing'}; expected {_BINARY}", status=415
        )


def _not_allowed(methods: str) -> RequestError:
    return RequestError(
        "method_not_allowed", "this path does not take that method", status=405, headers={"Allow": methods}
    )
