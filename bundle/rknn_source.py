"""librknnrt and its terms: from files that the user names, or from the repository that Rockchip publishes it in.

The library is known by its Git object name, which the address holds as well, so no branch or tag can move it. Its terms
are no part of this repository; `notices` knows their digest.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bundle.errors import BundleError
from engine.fetch import cache_root
from launcher.errors import NetworkError
from launcher.npu.rknn_library import NAME, version_in

BLOB: Final = "e53a2b6ec332f2863df5c70cd9f6ebec9dbef397"
LIBRARY_URL: Final = f"https://api.github.com/repos/airockchip/rknn-llm/git/blobs/{BLOB}"
TERMS_URL: Final = "https://raw.githubusercontent.com/airockchip/rknn-llm/main/LICENSE"
TERMS: Final = "LICENSE"

_MAX_BYTES: Final = 64 << 20
_TIMEOUT_S: Final = 20.0
_HINT: Final = (
    f"name the file with --rknn-runtime FILE, its terms ({TERMS}) beside it, or build with --without-rknn-runtime"
)

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RknnRuntime:
    """The library and the text of its terms on this machine. `version` is what the library says of itself."""

    library: Path
    terms: Path
    version: str
    sha256: str


def from_file(library: Path) -> RknnRuntime:
    """The library that the user names; its terms lie beside it.

    Raises:
        BundleError: one of the two cannot be read, or the library does not say which version it is.
    """
    terms = library.with_name(TERMS)
    try:
        data = library.read_bytes()
        terms.read_bytes()
    except OSError as error:
        raise BundleError(
            "rknn-unreadable", f"cannot read {error.filename}: {error.strerror}", hint=f"put {TERMS} beside the library"
        ) from error
    version, _ = version_in(data)
    if not version:
        raise BundleError("rknn-version", f"{library} does not say which version of librknnrt it is", hint=_HINT)
    return RknnRuntime(library=library, terms=terms, version=version, sha256=hashlib.sha256(data).hexdigest())


def cached() -> RknnRuntime | None:
    """The pinned library where it was fetched before."""
    library = _folder() / NAME
    return from_file(library) if library.is_file() and library.with_name(TERMS).is_file() else None


def from_publisher(say: Say) -> RknnRuntime:
    """The pinned library, from the cache or from the publisher's repository.

    Raises:
        NetworkError: it is not in the cache and cannot be had.
    """
    folder = _folder()
    library, terms = folder / NAME, folder / TERMS
    folder.mkdir(parents=True, exist_ok=True)
    if not library.is_file() or _git_name(library.read_bytes()) != BLOB:
        _write(library, _fetch(LIBRARY_URL, say, expected=BLOB))
    if not terms.is_file():
        _write(terms, _fetch(TERMS_URL, say))
    return from_file(library)


def _folder() -> Path:
    return cache_root() / "rknn" / BLOB


def _git_name(data: bytes) -> str:
    """The name that Git gives to a file's content."""
    return hashlib.sha1(f"blob {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()


def _fetch(url: str, say: Say, *, expected: str | None = None) -> bytes:
    say(f"downloading {url}")
    headers = {"User-Agent": "mindnano-build", "Accept": "application/vnd.github.raw"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT_S) as response:
            data = bytes(response.read(_MAX_BYTES))
    except (OSError, http.client.HTTPException) as error:
        raise NetworkError("rknn-unreachable", f"librknnrt cannot be had from {url}: {error}", hint=_HINT) from error
    if expected is not None and _git_name(data) != expected:
        raise NetworkError(
            "rknn-digest", f"{url} gave a file called {_git_name(data)} by Git, expected {expected}", hint=_HINT
        )
    return data


def _write(path: Path, data: bytes) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    partial.write_bytes(data)
    partial.replace(path)
