"""The routes that tell: health, metrics, models, properties, sessions, tokens, the description and the page."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from importlib.resources import files
from typing import Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from launcher.errors import RequestError
from launcher.payload.carried import PAGE, carried_bytes
from launcher.server.answers import json_answer
from launcher.server.app import OWNER, Phase, Services, State
from launcher.server.ports import Backend
from launcher.server.prometheus import CONTENT_TYPE
from launcher.server.protocol.limits import MAX_NAME_CHARACTERS
from launcher.server.routes_state import refuse_state

PAGE_FILES: Final[Mapping[str, tuple[str, str]]] = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
}
OPEN_PATHS: Final = frozenset({"/health", "/readyz", *PAGE_FILES})
_PAGE_HEADERS: Final = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Referrer-Policy": "no-referrer",
}
_Endpoint = Callable[[Request], Awaitable[Response]]


def information_routes(services: Services, description: Callable[[], Mapping[str, object]]) -> list[Route]:
    """All routes but those that make the model write.

    Args:
        services: what they work with.
        description: makes the document of `/openapi.json`.
    """
    state = services.state

    async def health(_request: Request) -> Response:
        return json_answer({"status": "ok", **_sleep(state)})

    async def ready(_request: Request) -> Response:
        state.accepting()
        return json_answer({"status": Phase.READY.value, **_sleep(state)})

    async def metrics(_request: Request) -> Response:
        # The sizes of the session cache may have to wait for a disk.
        text = services.journal.metrics.text
        page = await asyncio.get_running_loop().run_in_executor(services.watcher, text)
        return Response(page, headers={"Content-Type": CONTENT_TYPE})

    async def models(_request: Request) -> Response:
        return json_answer({"object": "list", "data": list(state.loaded().models())})

    async def model(request: Request) -> Response:
        name = request.path_params["name"]
        served = state.loaded().models()
        for found in served:
            if found["id"] == name:
                return json_answer(found)
        names = ", ".join(repr(found["id"]) for found in served)
        message = f"the model {name[:MAX_NAME_CHARACTERS]!r} is not served here; this server has {names}"
        raise RequestError("model_not_found", message, status=404, param="model")

    async def properties(_request: Request) -> Response:
        return json_answer(await services.work(state.loaded().props))

    async def sessions(request: Request) -> Response:
        listed = await services.work(state.loaded().sessions, request.scope[OWNER])
        return json_answer({"object": "list", "data": list(listed)})

    async def delete_session(request: Request) -> Response:
        refuse_state(request)
        name = request.path_params["name"]
        if not await services.work(state.loaded().delete_session, request.scope[OWNER], name):
            raise RequestError("session_not_found", f"there is no session {name!r}", status=404, param="id")
        return json_answer({"id": name, "object": "session.deleted", "deleted": True})

    async def description_page(_request: Request) -> Response:
        return json_answer(await services.work(description))

    return [
        Route("/health", health, methods=["GET"]),
        Route("/readyz", ready, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/props", properties, methods=["GET"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name:path}", model, methods=["GET"]),
        Route("/v1/sessions", sessions, methods=["GET"]),
        Route("/v1/sessions/{name:path}", delete_session, methods=["DELETE"]),
        Route("/openapi.json", description_page, methods=["GET"]),
        _posted(services, "/v1/chat/completions/input_tokens", lambda backend, body: backend.count_chat(body)),
        _posted(services, "/v1/responses/input_tokens", lambda backend, body: backend.count_responses(body)),
        _posted(services, "/tokenize", lambda backend, body: backend.tokenize(body)),
        _posted(services, "/detokenize", lambda backend, body: backend.detokenize(body)),
        _posted(services, "/apply-template", lambda backend, body: backend.apply_template(body)),
        *(_page_route(services, path, name, kind) for path, (name, kind) in PAGE_FILES.items()),
    ]


def _sleep(state: State) -> Mapping[str, object]:
    """What is said only while the server sleeps: that wakes nobody, and it accepts requests as before."""
    return {"sleeping": True} if state.backend is not None and state.backend.queue().sleeping else {}


def _posted(services: Services, path: str, work: Callable[[Backend, bytes], Mapping[str, object]]) -> Route:
    async def endpoint(request: Request) -> Response:
        backend = services.state.loaded()
        with services.bodies.held() as held:
            body = await held.read(request)
            # The answer may be larger than the body, and writing it must not keep the event loop waiting either.
            data = await services.plan(lambda: msgspec.json.encode(work(backend, body)))
        return Response(data, media_type="application/json")

    return Route(path, endpoint, methods=["POST"])


def _page_route(services: Services, path: str, name: str, kind: str) -> Route:
    def read() -> bytes:
        # The portable program has no folder of its own.
        carried = carried_bytes(f"{PAGE}{name}")
        return files("launcher.server").joinpath("page", name).read_bytes() if carried is None else carried

    async def endpoint(_request: Request) -> Response:
        data = await services.work(read)
        return Response(data, headers={**_PAGE_HEADERS, "Content-Type": kind})

    return Route(path, endpoint, methods=["GET"])
