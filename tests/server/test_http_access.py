"""A server that strangers, other keys' owners or web pages can use, or that keeps its own page from working."""

from __future__ import annotations

import datetime
import json
import socket
import ssl
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from launcher.errors import BusyError, RequestError, UsageError
from launcher.options.parse import ServerOptions, parse
from launcher.server.listening import find_address, listening, require_permission
from launcher.server.security import Access, Keyring, own_names, read_keys
from launcher.server.tls import server_context
from tests.support.certificates import DAY, Authority
from tests.support.http_bench import HttpBench, Job, chat_body, eventually, raw_request, read_until

CHAT = "/v1/chat/completions"
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def guarded() -> Iterator[HttpBench]:
    with HttpBench(keys=("first-key", "second-kéy")) as running:
        yield running


def bearer(key: str) -> dict[str, bytes]:
    return {"Authorization": f"Bearer {key}".encode()}


@pytest.mark.parametrize("path", ["/health", "/readyz", "/", "/page.css", "/page.js"])
def test_health_and_page_need_no_key(guarded: HttpBench, path: str) -> None:
    assert requests.get(guarded.url + path, timeout=60).status_code == 200


@pytest.mark.parametrize(
    "path", ["/metrics", "/props", "/v1/models", "/v1/sessions", "/openapi.json", "/nowhere", CHAT]
)
def test_all_else_needs_one(guarded: HttpBench, path: str) -> None:
    answer = requests.get(guarded.url + path, timeout=60)
    assert answer.status_code == 401
    assert answer.json()["error"]["code"] == "invalid_api_key"
    assert answer.headers["www-authenticate"].startswith("Bearer")


@pytest.mark.parametrize("key", ["", "wrong", "first-key2", "first-ke", "first-key second-kéy"])
def test_a_wrong_key_is_refused(guarded: HttpBench, key: str) -> None:
    assert requests.get(guarded.url + "/v1/models", headers=bearer(key), timeout=60).status_code == 401


def test_each_key_is_accepted_in_both_headers(guarded: HttpBench) -> None:
    for key in ("first-key", "second-kéy"):
        assert requests.get(guarded.url + "/v1/models", headers=bearer(key), timeout=60).status_code == 200
        headers = {"X-Api-Key": key.encode()}
        assert requests.get(guarded.url + "/v1/models", headers=headers, timeout=60).status_code == 200
    lower = {"authorization": "bearer first-key"}
    assert requests.get(guarded.url + "/v1/models", headers=lower, timeout=60).status_code == 200


def test_owners_do_not_reach_each_other(guarded: HttpBench) -> None:
    with guarded.connect() as connection:
        headers = "Authorization: Bearer first-key\r\n"
        connection.sendall(raw_request(CHAT, chat_body(stream=True), headers=headers))
        job = guarded.scheduler.job()
        body = json.dumps({"request_id": job.request.id}).encode()
        url = guarded.url + "/v1/cancel"
        other = requests.post(url, data=body, headers={**JSON, **bearer("second-kéy")}, timeout=60)
        assert other.status_code == 404
        assert guarded.scheduler.cancelled == []
        own = requests.post(url, data=body, headers={**JSON, **bearer("first-key")}, timeout=60)
        assert own.status_code == 200
        read_until(connection, b"cancelled")
    owner = job.request.owner
    assert owner
    assert "first-key" not in owner
    guarded.backend.kept[owner] = ["s"]
    url = guarded.url + "/v1/sessions"
    assert requests.get(url, headers=bearer("second-kéy"), timeout=60).json()["data"] == []
    assert requests.get(url, headers=bearer("first-key"), timeout=60).json()["data"] == [{"id": "s"}]
    assert requests.delete(url + "/s", headers=bearer("second-kéy"), timeout=60).status_code == 404
    assert requests.delete(url + "/s", headers=bearer("first-key"), timeout=60).json()["deleted"] is True


def test_key_files(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# comment\n\n  one  \ntwo\n")
    path.chmod(0o600)
    options = ServerOptions(api_keys=("zero",), api_key_file=path)
    assert read_keys(options) == (("zero", "one", "two"), False)
    path.chmod(0o644)
    assert read_keys(options)[1]
    path.write_text("# nothing\n")
    with pytest.raises(UsageError, match="no API key"):
        read_keys(options)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="UTF-8"):
        read_keys(options)
    with pytest.raises(UsageError, match="cannot read"):
        read_keys(ServerOptions(api_key_file=tmp_path / "missing"))


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost", True),
        ("LOCALHOST:9092", True),
        ("localhost.", True),
        ("127.0.0.1:1", True),
        ("192.168.1.7", True),
        ("[::1]:9092", True),
        ("board.lan", True),
        ("evil.example", False),
        ("localhost.evil.example", False),
        ("127.0.0.1.evil.example", False),
        ("", False),
        ("[evil]", False),
        ("[::1]evil.example", False),
        ("[::1].evil.example:80", False),
        ("[::1]:", True),
    ],
)
def test_host_names(host: str, allowed: bool) -> None:
    access = Access(keys=Keyring(()), hosts=own_names(ServerOptions(allow_hosts=("Board.lan",))))
    if allowed:
        access.check_host({"host": host})
    else:
        with pytest.raises(RequestError) as caught:
            access.check_host({"host": host})
        assert (caught.value.slug, caught.value.status) == ("host_not_allowed", 403)


def test_a_name_that_points_here_is_no_way_in() -> None:
    with HttpBench() as bench:
        answer = requests.get(bench.url + "/v1/models", headers={"Host": "evil.example"}, timeout=60)
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "host_not_allowed")


def test_a_page_of_another_origin_drives_nothing() -> None:
    with HttpBench() as bench:
        for origin in ("https://evil.example", "null", "http://127.0.0.1:1", "http://localhost"):
            answer = requests.post(bench.url + CHAT, data=chat_body(), headers={**JSON, "Origin": origin}, timeout=60)
            assert (answer.status_code, answer.json()["error"]["code"]) == (403, "origin_not_allowed")
            assert "access-control-allow-origin" not in answer.headers
        assert bench.scheduler.jobs == {}


def test_the_own_page_may_ask() -> None:
    with HttpBench() as bench:
        bench.scheduler.react = lambda job: job.finish()
        answer = requests.post(bench.url + CHAT, data=chat_body(), headers={**JSON, "Origin": bench.url}, timeout=60)
        assert answer.status_code == 200


def test_an_allowed_origin_gets_cors_headers_without_credentials() -> None:
    origin = "https://app.example"
    with HttpBench(origins=frozenset({origin}), keys=("k",)) as bench:
        asks = {
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "authorization, content-type, x-stainless-os",
        }
        preflight = requests.options(bench.url + CHAT, headers=asks, timeout=60)  # without a key
        assert preflight.status_code == 204
        assert preflight.headers["access-control-allow-origin"] == origin
        assert "x-stainless-os" in preflight.headers["access-control-allow-headers"]
        assert "POST" in preflight.headers["access-control-allow-methods"]
        refused = requests.options(bench.url + CHAT, headers={**asks, "Origin": "https://evil.example"}, timeout=60)
        assert refused.status_code == 403
        # Errors too, or the page cannot read them.
        answer = requests.post(bench.url + CHAT, data=chat_body(), headers={**JSON, "Origin": origin}, timeout=60)
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (401, origin)
        for each in (preflight, refused, answer):
            assert "access-control-allow-credentials" not in each.headers
            assert each.headers["vary"] == "Origin"


def test_every_origin_is_a_star() -> None:
    with HttpBench(origins=frozenset({"*"})) as bench:
        answer = requests.get(bench.url + "/v1/models", headers={"Origin": "https://any.example"}, timeout=60)
        assert answer.headers["access-control-allow-origin"] == "*"
        assert "access-control-allow-credentials" not in answer.headers


@pytest.mark.parametrize(
    ("host", "loopback"),
    [("127.0.0.1", True), ("localhost", True), ("::1", True), ("[::1]", True), ("0.0.0.0", False), ("::", False)],
)
def test_other_addresses_than_loopback_need_keys_or_the_word(host: str, loopback: bool) -> None:
    plain = parse(["--no-console", "--host", host], {}, ())
    address = find_address(plain)
    assert address.is_loopback is loopback
    if loopback:
        require_permission(address, plain, keys=False)
        return
    with pytest.raises(UsageError) as caught:
        require_permission(address, plain, keys=False)
    assert "--api-key" in caught.value.hint
    assert "--allow-lan" in caught.value.hint
    require_permission(address, plain, keys=True)
    require_permission(address, parse(["--no-console", "--host", host, "--allow-lan"], {}, ()), keys=False)


def test_no_token_waits_for_the_acknowledgement_of_the_one_before() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = find_address(parse(["--no-console", "--port", str(port)], {}))
    with listening(address, group=False) as bound, socket.create_connection(("127.0.0.1", port), timeout=60):
        accepted, _ = bound.accept()
        with accepted:
            assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_port_in_use_is_busy() -> None:
    with HttpBench() as bench:
        given = parse(["--no-console", "--port", str(bench.port)], {}, ())
        with pytest.raises(BusyError) as caught, listening(find_address(given), group=False):
            pass
        assert "ss " in caught.value.hint


@pytest.mark.parametrize("host", ["no such host", "unix:relative", "unix:/" + "x" * 200, "999.1.1.1"])
def test_addresses_that_are_none(host: str) -> None:
    with pytest.raises(UsageError):
        find_address(parse(["--no-console", "--host", host], {}, ()))


@pytest.mark.parametrize(("group", "mode"), [(False, 0o600), (True, 0o660)])
def test_unix_sockets(tmp_path: Path, group: bool, mode: int) -> None:
    path = tmp_path / "s"
    address = find_address(parse(["--no-console", "--host", f"unix:{path}"], {}, ()))
    with listening(address, group=group):
        assert stat.S_IMODE(path.stat().st_mode) == mode
        with pytest.raises(BusyError), listening(address, group=group):
            pass
        assert path.exists()
    assert not path.exists()
    path.write_text("precious")
    with pytest.raises(UsageError), listening(address, group=group):
        pass
    assert path.read_text() == "precious"


def test_a_stale_unix_socket_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as dead:
        dead.bind(str(path))
    with listening(find_address(parse(["--no-console", "--host", f"unix:{path}"], {}, ())), group=False):
        assert path.exists()


def test_requests_over_a_unix_socket_name_any_host(tmp_path: Path) -> None:
    with HttpBench(unix=tmp_path / "s", hosts=None) as bench:
        bench.scheduler.react = answer_hey
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(60)
            connection.connect(str(tmp_path / "s"))
            connection.sendall(raw_request(CHAT, chat_body(stream=True)).replace(b"localhost", b"anything"))
            assert b"hey" in read_until(connection, b"[DONE]")
        eventually(lambda: bench.connections() == 0, "it was forgotten")


def answer_hey(job: Job) -> None:
    job.say("hey")
    job.finish()


def certificates(folder: Path) -> tuple[Authority, Path, Path]:
    now = datetime.datetime.now(datetime.UTC)
    authority = Authority(folder, now)
    authority.server(now - DAY, now + DAY)
    return authority, folder / "server.pem", folder / "server.key"


def test_tls(tmp_path: Path) -> None:
    authority, certificate, key = certificates(tmp_path)
    context = server_context(ServerOptions(tls_cert=certificate, tls_key=key))
    assert context is not None
    assert context.minimum_version is ssl.TLSVersion.TLSv1_2
    with HttpBench(tls=context) as bench:
        bench.scheduler.react = answer_hey
        url = f"https://127.0.0.1:{bench.port}"
        # The text alone: as long as the answer lives, requests keeps its TLS connection open.
        text = requests.post(
            url + CHAT, data=chat_body(stream=True), headers=JSON, verify=str(authority.bundle), timeout=60
        ).text
        assert "[DONE]" in text
        eventually(lambda: bench.connections() == 0, "the connection was closed")


def test_tls_files_are_checked_before_anything_else(tmp_path: Path) -> None:
    authority, certificate, key = certificates(tmp_path)
    assert server_context(ServerOptions()) is None
    for wrong in (
        ServerOptions(tls_cert=certificate),
        ServerOptions(tls_key=key),
        ServerOptions(tls_cert=certificate, tls_key=tmp_path / "missing"),
        ServerOptions(tls_cert=key, tls_key=certificate),
        ServerOptions(tls_cert=authority.bundle, tls_key=key),
    ):
        with pytest.raises(UsageError) as caught:
            server_context(wrong)
        assert caught.value.slug == "tls-files"
