"""Another library than the pinned one gets into the portable program, or one without its terms."""

from __future__ import annotations

import hashlib
import io
import urllib.request
from pathlib import Path

import pytest

from bundle import rknn_source
from bundle.errors import BundleError
from launcher.errors import NetworkError

LIBRARY = b"\x7fELF a stand-in, librknnrt version: 2.3.2 (abc@2025-04-09)\0"
TERMS = b"Terms of a stand-in.\n"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINDNANO_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """What the publisher's addresses give."""
    served = {rknn_source.LIBRARY_URL: LIBRARY, rknn_source.TERMS_URL: TERMS}

    def answer(request: urllib.request.Request, timeout: float) -> io.BytesIO:
        if request.full_url not in served:
            raise OSError("no route to host")
        return io.BytesIO(served[request.full_url])

    monkeypatch.setattr(urllib.request, "urlopen", answer)
    name = hashlib.sha1(f"blob {len(LIBRARY)}\0".encode() + LIBRARY).hexdigest()
    monkeypatch.setattr(rknn_source, "BLOB", name)
    return served


def test_the_pin_is_the_version_that_the_launcher_knows() -> None:
    from launcher.npu import rknn_library

    assert rknn_library._PUBLISHED[rknn_source.BLOB] == "2.3.2"
    assert rknn_source.BLOB in rknn_source.LIBRARY_URL


def test_a_library_is_fetched_once(cache: Path, server: dict[str, bytes]) -> None:
    assert rknn_source.cached() is None
    said: list[str] = []
    runtime = rknn_source.from_publisher(said.append)
    assert runtime.library.read_bytes() == LIBRARY
    assert runtime.terms.read_bytes() == TERMS
    assert (runtime.version, runtime.sha256) == ("2.3.2", hashlib.sha256(LIBRARY).hexdigest())
    assert len(said) == 2
    server.clear()
    assert rknn_source.from_publisher(said.append) == rknn_source.cached() == runtime
    assert len(said) == 2


def test_another_file_is_refused_and_not_kept(cache: Path, server: dict[str, bytes]) -> None:
    server[rknn_source.LIBRARY_URL] = LIBRARY + b"x"
    with pytest.raises(NetworkError, match=f"expected {rknn_source.BLOB}"):
        rknn_source.from_publisher(lambda _line: None)
    assert rknn_source.cached() is None


def test_a_damaged_copy_in_the_cache_is_fetched_again(cache: Path, server: dict[str, bytes]) -> None:
    runtime = rknn_source.from_publisher(lambda _line: None)
    runtime.library.write_bytes(b"damaged")
    assert rknn_source.from_publisher(lambda _line: None).library.read_bytes() == LIBRARY


def test_without_a_network_both_ways_out_are_named(cache: Path, server: dict[str, bytes]) -> None:
    server.clear()
    with pytest.raises(NetworkError, match="no route to host") as caught:
        rknn_source.from_publisher(lambda _line: None)
    assert "--rknn-runtime FILE" in caught.value.hint
    assert "--without-rknn-runtime" in caught.value.hint


def test_a_library_of_the_user_needs_its_terms(tmp_path: Path) -> None:
    library = tmp_path / "librknnrt.so"
    library.write_bytes(LIBRARY)
    with pytest.raises(BundleError, match=r"cannot read .*LICENSE"):
        rknn_source.from_file(library)
    (tmp_path / "LICENSE").write_bytes(TERMS)
    assert rknn_source.from_file(library).version == "2.3.2"


def test_a_file_that_is_no_rknn_library_is_refused(tmp_path: Path) -> None:
    library = tmp_path / "librknnrt.so"
    library.write_bytes(b"\x7fELF something else")
    (tmp_path / "LICENSE").write_bytes(TERMS)
    with pytest.raises(BundleError, match="does not say which version"):
        rknn_source.from_file(library)
