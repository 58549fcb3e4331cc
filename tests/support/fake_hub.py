"""A hub on loopback: repositories with commits, trees, large files by parts, and the faults that a real one has.

It speaks what `huggingface_hub` asks for when it publishes: repo info, tree, create, validate-yaml, preupload, the LFS
batch with multi-part upload and its completion, and the commit as lines of JSON. It also gives out the files.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote, urlsplit

TOKEN = "hf_secretsecretsecret"
_TEXTS = (".md", ".json", ".txt", ".gitattributes", ".PUBLIC", ".minisig")
_INFO = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/revision/(?P<revision>.+)")
_TREE = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/tree/(?P<revision>[^/]+)/?")
_PREUPLOAD = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/preupload/(?P<revision>.+)")
_BATCH = re.compile(r"/(?P<repo>[^/]+/[^/]+)\.git/info/lfs/objects/batch")
_COMMIT = re.compile(r"/api/models/(?P<repo>[^/]+/[^/]+)/commit/(?P<revision>.+)")
_FILE = re.compile(r"/(?P<repo>[^/]+/[^/]+)/resolve/(?P<revision>[^/]+)/(?P<path>.+)")


@dataclass
class Stored:
    """A file of a commit."""

    data: bytes
    large: bool

    @property
    def blob(self) -> str:
        return hashlib.sha1(b"blob %d\0" % len(self.data) + self.data).hexdigest()

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.data).hexdigest()


@dataclass
class Repository:
    """Commits of the one branch, `main`: (id, message, parent, files)."""

    commits: list[tuple[str, str, str | None, dict[str, Stored]]] = field(default_factory=list)

    @property
    def head(self) -> str:
        return self.commits[-1][0]

    @property
    def files(self) -> dict[str, Stored]:
        return self.commits[-1][3]

    def add(self, message: str, files: dict[str, Stored]) -> str:
        """Makes a commit."""
        name = hashlib.sha1(f"{len(self.commits)} {message}".encode()).hexdigest()
        self.commits.append((name, message, self.commits[-1][0] if self.commits else None, files))
        return name


class FakeHub:
    """The server; as a context it listens.

    Attributes:
        requests: `METHOD path` of all that came.
        fault: called with the same text before it is answered: a number is answered as a status, "cut" closes the
            connection in the middle.
        part_bytes: size of the parts of a large file.
    """

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.objects: dict[str, bytes] = {}
        self.parts: dict[tuple[str, int], bytes] = {}
        self.requests: list[str] = []
        self.fault: Callable[[str], int | str | None] = lambda _request: None
        self.part_bytes = 100_000
        self.lock = threading.Lock()
        hub = self

        class Handler(_Handler):
            owner = hub

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def make(self, name: str) -> Repository:
        """A repository as the hub makes it: with one commit."""
        repository = self.repositories[name] = Repository()
        repository.add("initial commit", {".gitattributes": Stored(b"*.bin filter=lfs\n", False)})
        return repository

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Handler(BaseHTTPRequestHandler):
    owner: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        """Says nothing."""

    def do_GET(self) -> None:
        self._serve()

    do_POST = do_PUT = do_HEAD = do_GET

    def _serve(self) -> None:
        self.close_connection = True
        request = f"{self.command} {urlsplit(self.path).path}"
        with self.owner.lock:
            self.owner.requests.append(request)
            fault = self.owner.fault(request)
        length = int(self.headers.get("Content-Length", 0))
        if fault == "cut":
            self.rfile.read(length // 2)
            self.connection.close()
            return
        body = self._body(length)
        if isinstance(fault, int):
            self._answer(fault, {"error": f"fault {fault} for {self.headers.get('Authorization')}"})
        elif self.command == "PUT":
            self._put(body)
        elif self.headers.get("Authorization") not in (None, f"Bearer {TOKEN}"):
            self._answer(401, {"error": "Invalid username or password."})
        else:
            with self.owner.lock:
                self._route(urlsplit(self.path).path, body)

    def _body(self, length: int) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(length)
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _put(self, body: bytes) -> None:
        _, _, oid, number = self.path.split("/")
        with self.owner.lock:
            self.owner.parts[oid, int(number)] = body
        self._answer(200, {}, {"ETag": hashlib.md5(body).hexdigest()})

    def _route(self, path: str, body: bytes) -> None:
        logged_in = self.headers.get("Authorization") is not None
        if path == "/api/repos/create":
            asked = json.loads(body)
            name = f"{asked['organization']}/{asked['name']}"
            if name in self.owner.repositories:
                self._answer(409, {"error": "You already created this model repo"})
                return
            self.owner.make(name)
            self._answer(200, {"url": f"{self.owner.url}/{name}"})
        elif path == "/api/validate-yaml":
            is_bad = "license: nonsense" in json.loads(body)["content"]
            self._answer(400 if is_bad else 200, {"errors": [{"message": '"license" is not one'}] if is_bad else []})
        elif path.startswith("/complete/"):
            self._complete(json.loads(body))
        elif match := _FILE.fullmatch(path):
            self._give_out(match)
        elif match := _INFO.fullmatch(path) or _TREE.fullmatch(path) or _PREUPLOAD.fullmatch(path):
            self._read(path, match, body)
        elif not logged_in:
            self._answer(401, {"error": "Invalid username or password."})
        elif match := _BATCH.fullmatch(path):
            self._batch(json.loads(body))
        elif match := _COMMIT.fullmatch(path):
            self._commit(match["repo"], [json.loads(line) for line in body.splitlines()])
        else:
            self._answer(404, {"error": f"not in this fake: {path}"})

    def _read(self, path: str, match: re.Match[str], body: bytes) -> None:
        repository = self.owner.repositories.get(match["repo"])
        if repository is None:
            self._answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif match["revision"] not in ("main", *(commit[0] for commit in repository.commits)):
            self._answer(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        elif "/tree/" in path:
            self._answer(200, [_entry(name, stored) for name, stored in repository.files.items()])
        elif "/preupload/" in path:
            files = json.loads(body)["files"]
            self._answer(200, {"files": [_mode(entry, repository) for entry in files]})
        else:
            siblings = [{"rfilename": name} for name in repository.files]
            self._answer(200, {"id": match["repo"], "sha": repository.head, "siblings": siblings})

    def _give_out(self, match: re.Match[str]) -> None:
        repository = self.owner.repositories[match["repo"]]
        stored = repository.files[unquote(match["path"])]
        self.send_response(200)
        self.send_header("ETag", f'"{stored.sha256 if stored.large else stored.blob}"')
        self.send_header("X-Repo-Commit", repository.head)
        self.send_header("Content-Length", str(len(stored.data)))
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(stored.data)

    def _batch(self, asked: dict[str, Any]) -> None:
        objects = []
        for wanted in asked["objects"]:
            entry = {"oid": wanted["oid"], "size": wanted["size"]}
            if wanted["oid"] not in self.owner.objects:
                count = -(-wanted["size"] // self.owner.part_bytes)
                header = {str(number + 1): f"{self.owner.url}/part/{wanted['oid']}/{number}" for number in range(count)}
                header["chunk_size"] = str(self.owner.part_bytes)
                entry["actions"] = {"upload": {"href": f"{self.owner.url}/complete/x", "header": header}}
            objects.append(entry)
        self._answer(200, {"transfer": "multipart", "objects": objects})

    def _complete(self, asked: dict[str, Any]) -> None:
        data = b"".join(self.owner.parts[asked["oid"], number] for number in range(len(asked["parts"])))
        if hashlib.sha256(data).hexdigest() != asked["oid"]:
            self._answer(400, {"error": "the parts do not make the object"})
            return
        self.owner.objects[asked["oid"]] = data
        self._answer(200, {})

    def _commit(self, name: str, lines: list[dict[str, Any]]) -> None:
        repository = self.owner.repositories[name]
        header = lines[0]["value"]
        if header.get("parentCommit", repository.head) != repository.head:
            self._answer(412, {"error": "A commit has happened since. Please refresh and try again."})
            return
        files = dict(repository.files)
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = Stored(base64.b64decode(value["content"]), False)
            elif line["key"] == "lfsFile":
                files[value["path"]] = Stored(self.owner.objects[value["oid"]], True)
            else:
                del files[value["path"]]
        made = repository.add(header["summary"], files)
        self._answer(200, {"commitUrl": f"{self.owner.url}/{name}/commit/{made}", "commitOid": made})

    def _answer(self, status: int, document: object, headers: dict[str, str] | None = None) -> None:
        data = json.dumps(document).encode()
        self.send_response(status)
        for key, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(data)


def _entry(path: str, stored: Stored) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": path, "size": len(stored.data), "oid": stored.blob}
    if stored.large:
        entry["oid"] = "0" * 40
        entry["lfs"] = {"oid": stored.sha256, "size": len(stored.data), "pointerSize": 130}
    return entry


def _mode(asked: dict[str, Any], repository: Repository) -> dict[str, Any]:
    is_text = asked["path"].endswith(_TEXTS) or "." not in asked["path"]
    is_large = asked["size"] > 10_000_000 or not is_text or b"\0" in base64.b64decode(asked["sample"])
    stored = repository.files.get(asked["path"])
    oid = None if stored is None else stored.sha256 if stored.large else stored.blob
    return {
        "path": asked["path"],
        "uploadMode": "lfs" if is_large else "regular",
        "shouldIgnore": False,
        "oid": oid,
    }
