"""An HTTP(S) server on loopback that serves files well, or with scripted faults, and remembers what it was asked."""

from __future__ import annotations

import json
import re
import socket
import ssl
import struct
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

LONGEST_STALL_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Resource:
    """A file of the server, or a redirect where `location` is set."""

    data: bytes = b""
    etag: str | None = '"v1"'
    content_type: str = "application/octet-stream"
    ranges: bool = True
    location: str | None = None
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What one answer does differently. None leaves it as it would be.

    Attributes:
        status: another status.
        headers: other headers; a None value leaves one out.
        body: other bytes, with a Content-Length that fits.
        cut_after: bytes of the body after which the connection is reset.
        end_after: bytes of the body after which the connection is closed in good order.
        stall_after: bytes of the body after which nothing more comes.
        drip: size of the pieces in which the body is sent, a moment apart.
        chunked: sent in chunks, without a Content-Length.
        ignore_range: the whole file with status 200.
        cut_before: the connection is reset before anything is sent.
    """

    status: int | None = None
    headers: Mapping[str, str | None] = field(default_factory=dict)
    body: bytes | None = None
    cut_after: int | None = None
    end_after: int | None = None
    stall_after: int | None = None
    drip: int | None = None
    chunked: bool = False
    ignore_range: bool = False
    cut_before: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """A request: its path with query (a whole URL where the server was used as a proxy), its headers in lower case."""

    path: str
    headers: Mapping[str, str]


class FaultServer:
    """A context manager. `files` by path; `faults` by path, one for each coming request, then none."""

    def __init__(self, *, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self.files: dict[str, Resource] = {}
        self.faults: dict[str, deque[Fault]] = {}
        self.seen: list[Seen] = []
        self.closing = threading.Event()
        self._tls = tls
        self._host = host
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), self, tls)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def url(self, path: str = "") -> str:
        """The URL of a path."""
        return f"{'http' if self._tls is None else 'https'}://{self._host}:{self.port}{path}"

    def add(self, path: str, data: bytes, **settings: Any) -> None:
        """Serves bytes under a path."""
        self.files[path] = Resource(data=data, **settings)

    def redirect(self, path: str, location: str, status: int = 302) -> None:
        """Sends a path on."""
        self.files[path] = Resource(location=location, status=status)

    def fail(self, path: str, *faults: Fault) -> None:
        """Scripts the answers to the next requests for a path."""
        self.faults[path] = deque(faults)

    def requests(self, path: str) -> list[Seen]:
        """What was asked for a path, without its query, in order."""
        with self._lock:
            return [request for request in self.seen if request.path.partition("?")[0] == path]

    def take(self, request: Seen) -> tuple[Resource | None, Fault]:
        """Remembers a request; the file and the fault that answer it."""
        path = request.path.partition("?")[0]
        with self._lock:
            self.seen.append(request)
            waiting = self.faults.get(path)
            return self.files.get(path), waiting.popleft() if waiting else Fault()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def serve_repository(
    hub: FaultServer,
    cdn: FaultServer,
    repository: str,
    files: Mapping[str, bytes],
    *,
    commit: str = "c0ffee" * 6 + "abcd",
) -> None:
    """A repository as the Hub answers for it: small files itself, packages by a redirect to another server."""
    siblings: list[dict[str, object]] = []
    for path, data in files.items():
        entry: dict[str, object] = {"rfilename": path, "size": len(data), "blobId": "0" * 40}
        where = f"/{repository}/resolve/{commit}/{path}"
        if path.endswith(".l3r"):
            digest = sha256(data).hexdigest()
            entry["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 134}
            cdn.add(f"/lfs/{digest}", data, etag=f'"{digest[:32]}"')
            linked = {"X-Linked-Size": str(len(data)), "X-Linked-Etag": f'"{digest}"', "X-Repo-Commit": commit}
            location = f"{cdn.url(f'/lfs/{digest}')}?Signature=secret"
            hub.files[where] = Resource(location=location, status=302, headers=linked)
        else:
            hub.add(where, data)
        siblings.append(entry)
    document = {"id": repository, "sha": commit, "private": False, "gated": False, "siblings": siblings}
    hub.add(f"/api/models/{repository}/revision/main", json.dumps(document).encode(), content_type="application/json")


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], owner: FaultServer, tls: ssl.SSLContext | None) -> None:
        super().__init__(address, _Handler)
        self.owner = owner
        self._context = tls

    def finish_request(self, request: Any, client_address: Any) -> None:
        if self._context is None:
            super().finish_request(request, client_address)
            return
        # In the thread of the request, where a handshake that fails or waits holds up nobody.
        request.settimeout(LONGEST_STALL_SECONDS)
        with self._context.wrap_socket(request, server_side=True) as protected:
            super().finish_request(protected, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        if not isinstance(sys.exception(), OSError):  # clients that leave are what the tests are about
            super().handle_error(request, client_address)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def do_GET(self) -> None:
        owner = self.server.owner
        headers = {name.lower(): value for name, value in self.headers.items()}
        resource, fault = owner.take(Seen(path=self.path, headers=headers))
        if fault.cut_before:
            self._reset()
            return
        status, answer, body = _plan(resource, headers, fault)
        if fault.body is not None:
            body = fault.body
        if fault.chunked:
            answer["Transfer-Encoding"] = "chunked"
        else:
            answer["Content-Length"] = str(len(body))
        for name, value in fault.headers.items():
            answer.pop(name, None)
            if value is not None:
                answer[name] = value
        self.send_response(fault.status or status)
        for name, value in answer.items():
            self.send_header(name, value)
        if "Content-Length" not in answer and not fault.chunked:
            self.close_connection = True
        self.end_headers()
        self._send_body(body, fault, owner)

    def _send_body(self, body: bytes, fault: Fault, owner: FaultServer) -> None:
        stops = [stop for stop in (fault.cut_after, fault.end_after, fault.stall_after) if stop is not None]
        sent = body[: stops[0]] if stops else body
        size = fault.drip or 1 << 16
        for start in range(0, len(sent), size):
            piece = sent[start : start + size]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if fault.chunked else piece)
            if fault.drip is not None:
                time.sleep(0.001)
        if fault.stall_after is not None:
            owner.closing.wait(LONGEST_STALL_SECONDS)
        if fault.cut_after is not None:
            self._reset()
        elif stops:
            self.close_connection = True
        elif fault.chunked:
            self.wfile.write(b"0\r\n\r\n")

    def _reset(self) -> None:
        self.wfile.flush()
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close_connection = True

    def log_message(self, format: str, *args: Any) -> None:
        pass


def _plan(resource: Resource | None, headers: Mapping[str, str], fault: Fault) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of the answer without its fault."""
    if resource is None:
        return 404, {"Content-Type": "text/html"}, b"<html>not here</html>"
    answer = {"Content-Type": resource.content_type, **resource.headers}
    if resource.location is not None:
        return resource.status, {**answer, "Location": resource.location}, b"moved"
    if resource.etag is not None:
        answer["ETag"] = resource.etag
    data = resource.data
    wanted = re.fullmatch(r"bytes=(\d+)-", headers.get("range", ""))
    fresh = headers.get("if-range") in {None, resource.etag}
    if wanted is None or not resource.ranges or fault.ignore_range or not fresh:
        return resource.status, answer, data
    start = int(wanted[1])
    if start >= len(data):
        return 416, {**answer, "Content-Range": f"bytes */{len(data)}"}, b""
    return 206, {**answer, "Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"}, data[start:]
