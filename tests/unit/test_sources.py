"""A source that is taken for another, fetched without protection, or shown with its secrets."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.download.sources import (
    HubSource,
    PathSource,
    UrlSource,
    hub_token,
    is_loopback,
    is_offline,
    parse_source,
    same_origin,
    shown_url,
)
from launcher.errors import MindnanoError, PackageError, UsageError

HOME = {"HOME": "/nonexistent"}


@pytest.mark.parametrize(
    ("text", "repository", "revision"),
    [
        ("org/name", "org/name", "main"),
        ("org/name@v1.0", "org/name", "v1.0"),
        ("org/name@refs/pr/1", "org/name", "refs/pr/1"),
        ("Org-1/name_2.x@0123456789abcdef", "Org-1/name_2.x", "0123456789abcdef"),
        ("https://huggingface.co/org/name", "org/name", "main"),
        ("https://huggingface.co/org/name/", "org/name", "main"),
        ("https://huggingface.co/org/name/tree/v1.0", "org/name", "v1.0"),
    ],
)
def test_repositories(text: str, repository: str, revision: str) -> None:
    source = parse_source(text, HOME)
    assert source == HubSource(repository=repository, revision=revision, endpoint="https://huggingface.co", token=None)


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("https://a.test/x.l3r", "https://a.test/x.l3r"),
        ("https://a.test/f/", "https://a.test/f/"),
        ("https://a.test/x.l3r?k=1#part", "https://a.test/x.l3r?k=1"),
        ("http://127.0.0.1:8000/x.l3r", "http://127.0.0.1:8000/x.l3r"),
        ("http://localhost/f/", "http://localhost/f/"),
        ("http://[::1]:8000/x.l3r", "http://[::1]:8000/x.l3r"),
        ("https://huggingface.co/o/n/blob/main/x.l3r", "https://huggingface.co/o/n/resolve/main/x.l3r"),
        ("https://huggingface.co/o/n/resolve/main/x.l3r", "https://huggingface.co/o/n/resolve/main/x.l3r"),
    ],
)
def test_urls(text: str, url: str) -> None:
    assert parse_source(text, HOME) == UrlSource(url=url)


@pytest.mark.parametrize(
    ("text", "slug"),
    [
        ("", "source-unknown"),
        (" org/name", "source-unknown"),
        ("name", "source-unknown"),
        ("org/name@", "package-missing"),
        ("org/../name", "package-missing"),
        ("org/name@a b", "package-missing"),
        ("org/name@../x", "source-unknown"),
        ("org/name@a..b", "source-unknown"),
        ("./nowhere", "package-missing"),
        ("nowhere.l3r", "package-missing"),
        ("ftp://a.test/x.l3r", "source-unknown"),
        ("file:///tmp/x.l3r", "source-unknown"),
        ("https:///x.l3r", "source-unknown"),
        ("https://a.test:99999/x.l3r", "source-unknown"),
        ("https://[::1/x.l3r", "source-unknown"),
        ("https://user:secret@a.test/x.l3r", "source-unknown"),
        ("https://a.test/x.bin", "source-unknown"),
        ("https://a.test", "source-unknown"),
        ("https://a.test/f/?k=1", "source-unknown"),
        ("https://a.test/..%2fx%00.l3r", "source-unknown"),
        ("http://a.test/x.l3r", "source-insecure"),
        ("http://192.168.1.2/x.l3r", "source-insecure"),
        ("http://localhost.evil.test/x.l3r", "source-insecure"),
        ("http://127.0.0.1.evil.test/x.l3r", "source-insecure"),
        ("https://a.test/x.l3r\n", "source-unknown"),
    ],
)
def test_what_is_no_source(text: str, slug: str) -> None:
    with pytest.raises(MindnanoError) as caught:
        parse_source(text, HOME)
    assert caught.value.slug == slug
    assert "secret" not in caught.value.message + caught.value.hint


def test_http_is_allowed_where_the_digest_is_known() -> None:
    source = parse_source("http://192.168.1.2/x.l3r", HOME, plain_http=True)
    assert source == UrlSource(url="http://192.168.1.2/x.l3r")


def test_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.l3r").write_bytes(b"")
    (tmp_path / "x.bin").write_bytes(b"")
    (tmp_path / "org" / "name").mkdir(parents=True)
    assert parse_source("x.l3r", HOME) == PathSource(path=Path("x.l3r"))
    assert parse_source("./org/name", HOME) == PathSource(path=Path("org/name"))
    assert parse_source(str(tmp_path), HOME) == PathSource(path=tmp_path)
    with pytest.raises(UsageError) as caught:
        parse_source("./x.bin", HOME)
    assert caught.value.slug == "source-unknown"
    with pytest.raises(UsageError) as caught:
        parse_source("org/name", HOME)
    assert caught.value.slug == "source-ambiguous"
    assert isinstance(parse_source("org/name@main", HOME), HubSource)


class TestEndpoint:
    def test_mirror(self) -> None:
        source = parse_source("org/name", {**HOME, "HF_ENDPOINT": "https://mirror.test/"})
        assert isinstance(source, HubSource)
        assert source.endpoint == "https://mirror.test"
        assert source.page == "https://mirror.test/org/name"

    def test_page_of_the_public_hub_goes_to_the_mirror(self) -> None:
        source = parse_source("https://huggingface.co/org/name", {**HOME, "HF_ENDPOINT": "https://mirror.test"})
        assert isinstance(source, HubSource)
        assert source.endpoint == "https://mirror.test"

    @pytest.mark.parametrize(
        ("endpoint", "slug"),
        [
            ("http://mirror.test", "source-insecure"),
            ("mirror.test", "endpoint-invalid"),
            ("https://mirror.test/hub", "endpoint-invalid"),
            ("https://u:p@mirror.test", "source-unknown"),
        ],
    )
    def test_that_cannot_be_one(self, endpoint: str, slug: str) -> None:
        with pytest.raises(UsageError) as caught:
            parse_source("org/name", {**HOME, "HF_ENDPOINT": endpoint})
        assert caught.value.slug == slug

    def test_without_a_scheme_is_shown_as_it_is_with_an_example(self) -> None:
        with pytest.raises(UsageError) as caught:
            parse_source("org/name", {**HOME, "HF_ENDPOINT": "mirror.test"})
        assert caught.value.message == "HF_ENDPOINT is mirror.test, expected https and a host"
        assert caught.value.hint == "e.g. https://huggingface.co"


class TestToken:
    def test_variable_outweighs_the_file(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_text("from-file\n")
        assert hub_token({"HF_HOME": str(tmp_path)}) == "from-file"
        assert hub_token({"HF_HOME": str(tmp_path), "HF_TOKEN": " from-variable "}) == "from-variable"

    def test_usual_places(self, tmp_path: Path) -> None:
        place = tmp_path / ".cache" / "huggingface"
        place.mkdir(parents=True)
        (place / "token").write_text("one")
        (tmp_path / "other").write_text("two")
        assert hub_token({"HOME": str(tmp_path)}) == "one"
        assert hub_token({"HOME": str(tmp_path), "HF_TOKEN_PATH": str(tmp_path / "other")}) == "two"
        assert hub_token({"HOME": str(tmp_path / "nowhere")}) is None

    @pytest.mark.parametrize("token", ["two words", "line\nbreak", "Zeichen-ü"])
    def test_that_could_change_a_request_is_refused(self, token: str) -> None:
        with pytest.raises(UsageError) as caught:
            hub_token({"HF_TOKEN": token})
        assert caught.value.slug == "token-invalid"
        assert token not in caught.value.message

    def test_file_that_is_too_large_is_refused(self, tmp_path: Path) -> None:
        (tmp_path / "token").write_bytes(b"x" * 5000)
        with pytest.raises(PackageError):
            hub_token({"HF_HOME": str(tmp_path)})

    def test_is_never_shown(self) -> None:
        source = parse_source("org/name", {**HOME, "HF_TOKEN": "hf_secret"})
        assert "hf_secret" not in f"{source} {source!r}"


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST.", "a.localhost", "127.0.0.1", "127.9.9.9", "::1", "[::1]"])
def test_this_machine(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["localhost.test", "127.0.0.1.test", "128.0.0.1", "::2", "", "0x7f.1"])
def test_other_machines(host: str) -> None:
    assert not is_loopback(host)


def test_shown_urls_hold_no_secret() -> None:
    assert shown_url("https://user:pass@a.test:8443/x?token=1#y") == "https://a.test:8443/x"


def test_origins() -> None:
    assert same_origin("https://a.test/x", "https://A.test:443/y")
    assert not same_origin("https://a.test", "http://a.test")
    assert not same_origin("https://a.test", "https://a.test:444")
    assert not same_origin("https://a.test", "https://b.a.test")


@pytest.mark.parametrize(("value", "offline"), [("1", True), ("true", True), ("ON", True), ("0", False), ("", False)])
def test_offline_variable(value: str, offline: bool) -> None:
    assert is_offline({"HF_HUB_OFFLINE": value}) is offline
