"""A line that is cut, slow, silent or lying: bytes lost, bytes mixed, wrong bytes used, no end, or no cause named."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from launcher.download.http_errors import retry_after
from launcher.errors import NetworkError, PackageError
from tests.support.demo import require_demo
from tests.support.downloads import Bench, digest, random_bytes, release
from tests.support.fault_server import Fault, FaultServer, Resource

SIZE = 3_000_000
DATA = random_bytes(SIZE)
FILE = "/x.l3r"
GIVEN = ("--sha256", digest(DATA))


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        running.add(FILE, DATA)
        yield running


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(folder=tmp_path)


def ranges(server: FaultServer) -> list[str | None]:
    return [request.headers.get("range") for request in server.requests(FILE)]


def leave_part(server: FaultServer, bench: Bench, count: int) -> Path:
    """A download that ended after `count` bytes and could not go on."""
    server.fail(FILE, Fault(end_after=count), *[Fault(status=503)] * 3)
    with pytest.raises(NetworkError):
        bench.get(server.url(FILE), *GIVEN)
    part = bench.folder / "models" / "x.l3r.part"
    assert part.read_bytes() == DATA[:count]
    assert bench.names() == ["x.l3r.part", "x.l3r.part.json"]
    server.seen.clear()
    bench.waits.clear()
    return part


@pytest.mark.parametrize(
    "fault",
    [
        Fault(cut_after=1_000_000),
        Fault(end_after=1_000_000),
        Fault(end_after=1_000_000, chunked=True),
        Fault(cut_before=True),
        Fault(status=500),
        Fault(status=503, headers={"Retry-After": "7"}),
        Fault(status=429, headers={"Retry-After": "7"}),
    ],
    ids=str,
)
def test_passing_fault_costs_a_try_and_no_byte(server: FaultServer, bench: Bench, fault: Fault) -> None:
    server.fail(FILE, fault)
    assert bench.get(server.url(FILE), *GIVEN).read_bytes() == DATA
    assert bench.waits == [7.0 if fault.headers else 1.0]


def test_end_without_a_stated_size_is_taken_for_the_end_and_found_out(server: FaultServer, bench: Bench) -> None:
    server.fail(FILE, Fault(end_after=1_000_000, headers={"Content-Length": None}))
    with pytest.raises(PackageError) as caught:
        bench.get(server.url(FILE), *GIVEN)
    assert caught.value.slug == "download-damaged"
    assert bench.names() == ["x.l3r.bad"]


def test_cut_line_continues_where_it_was_cut(server: FaultServer, bench: Bench) -> None:
    server.fail(FILE, Fault(end_after=1_000_000), Fault(end_after=1_200_000))
    assert bench.get(server.url(FILE), *GIVEN).read_bytes() == DATA
    assert ranges(server) == [None, "bytes=1000000-", "bytes=2200000-"]
    assert [request.headers.get("if-range") for request in server.requests(FILE)] == [None, '"v1"', '"v1"']


def test_tries_end_when_nothing_is_gained(server: FaultServer, bench: Bench) -> None:
    server.fail(FILE, *[Fault(status=502)] * 20)
    with pytest.raises(NetworkError) as caught:
        bench.get(server.url(FILE), *GIVEN)
    assert caught.value.slug == "http-status"
    assert caught.value.exit_code == 6
    assert bench.waits == [1.0, 2.0, 4.0]


def test_tries_begin_anew_when_something_is_gained(server: FaultServer, bench: Bench) -> None:
    step = 1 << 20
    server.fail(FILE, Fault(end_after=step), Fault(status=500), Fault(end_after=step), Fault(status=500))
    assert bench.get(server.url(FILE), *GIVEN).read_bytes() == DATA
    assert bench.waits == [1.0, 2.0, 1.0, 2.0]


def test_server_that_never_continues_cannot_keep_it_running(server: FaultServer, bench: Bench) -> None:
    server.fail(FILE, *[Fault(end_after=2_000_000, ignore_range=True)] * 50)
    with pytest.raises(NetworkError) as caught:
        bench.get(server.url(FILE), *GIVEN)
    assert caught.value.slug == "network-cut"
    assert len(server.requests(FILE)) < 10


def test_server_that_asks_to_wait_too_long_is_not_waited_for(server: FaultServer, bench: Bench) -> None:
    server.fail(FILE, Fault(status=429, headers={"Retry-After": "86400"}))
    with pytest.raises(NetworkError) as caught:
        bench.get(server.url(FILE), *GIVEN)
    assert caught.value.slug == "http-busy"
    assert bench.waits == []


def test_second_run_continues_the_first(server: FaultServer, bench: Bench) -> None:
    leave_part(server, bench, 1_234_567)
    assert bench.get(server.url(FILE), *GIVEN).read_bytes() == DATA
    assert ranges(server) == ["bytes=1234567-"]
    assert "Continuing after 1.2 MiB" in bench.err
    assert bench.names() == ["x.l3r"]


def test_damage_in_the_first_part_is_found_at_the_end(server: FaultServer, bench: Bench) -> None:
    part = leave_part(server, bench, 1_000_000)
    with part.open("r+b") as file:
        file.seek(500_000)
        file.write(bytes(1000))
    with pytest.raises(PackageError, match="left by an earlier run") as caught:
        bench.get(server.url(FILE), *GIVEN)
    assert caught.value.slug == "download-damaged"
    assert bench.names() == ["x.l3r.bad"]
    assert bench.get(server.url(FILE), *GIVEN).read_bytes() == DATA


def test_part_of_another_version_is_not_continued(server: FaultServer, bench: Bench) -> None:
    leave_part(server, bench, 1_000_000)
    newer = random_bytes(SIZE, seed=2)
    server.add(FILE, newer, etag='"v2"')
    assert bench.get(server.url(FILE), "--sha256", digest(newer)).read_bytes() == newer
    assert ranges(server) == [None]


def test_part_without_its_note_is_not_continued(server: FaultServer, bench: Bench) -> None:
    part = leave_part(server, bench, 1_000_000)
    part.with_name("x.l3r.part.json").write_text('{"schema": "mindnano.part"')
    assert bench.get(server.url(FILE), *GIVEN).read_bytes() == DATA
    assert ranges(server) == [None]


def test_part_longer_than_the_file_is_not_continued(server: FaultServer, bench: Bench) -> None:
    part = leave_part(server, bench, 1_000_000)
    with part.open("ab") as file:
        file.write(bytes(SIZE))
    assert bench.get(server.url(FILE), *GIVEN).read_bytes() == DATA


def test_complete_part_needs_no_byte_more(server: FaultServer, bench: Bench) -> None:
    part = leave_part(server, bench, 1_000_000)
    part.write_bytes(DATA)
    assert bench.get(server.url(FILE), *GIVEN).read_bytes() == DATA
    assert server.requests(FILE) == []


def test_complete_part_of_wrong_bytes_is_not_used(server: FaultServer, bench: Bench) -> None:
    part = leave_part(server, bench, 1_000_000)
    part.write_bytes(DATA[::-1])
    with pytest.raises(PackageError, match=digest(DATA[::-1])):
        bench.get(server.url(FILE), *GIVEN)
    assert bench.names() == ["x.l3r.bad"]


class TestWithoutDigest:
    """The bytes of two versions must not be mixed where no digest would tell."""

    @pytest.fixture
    def demo(self, server: FaultServer) -> bytes:
        data = require_demo().read_bytes()
        server.add(FILE, data)
        return data

    def stop(self, server: FaultServer, bench: Bench, count: int) -> None:
        server.fail(FILE, Fault(end_after=count), *[Fault(status=503)] * 3)
        with pytest.raises(NetworkError):
            bench.get(server.url(FILE))
        server.seen.clear()

    def test_unchanged_file_is_continued(self, server: FaultServer, bench: Bench, demo: bytes) -> None:
        self.stop(server, bench, 1_500_000)
        assert bench.get(server.url(FILE)).read_bytes() == demo
        assert ranges(server) == ["bytes=1500000-"]

    def test_changed_file_starts_anew(self, server: FaultServer, bench: Bench, demo: bytes) -> None:
        server.add(FILE, random_bytes(len(demo)))
        self.stop(server, bench, 1_500_000)
        server.add(FILE, demo, etag='"v2"')
        assert bench.get(server.url(FILE)).read_bytes() == demo
        assert "the server sends the whole file" in bench.err

    def test_server_that_continues_a_changed_file_is_caught(
        self, server: FaultServer, bench: Bench, demo: bytes
    ) -> None:
        server.add(FILE, random_bytes(len(demo)))
        self.stop(server, bench, 1_500_000)
        server.add(FILE, demo, etag='"v2"')
        rest = len(demo) - 1_500_000
        lie = {"Content-Range": f"bytes 1500000-{len(demo) - 1}/{len(demo)}"}
        server.fail(FILE, Fault(status=206, body=demo[-rest:], headers=lie))
        assert bench.get(server.url(FILE)).read_bytes() == demo
        assert "another version" in bench.err

    @pytest.mark.parametrize("etag", [None, 'W/"v1"'])
    def test_without_a_strong_validator_it_starts_anew(
        self, server: FaultServer, bench: Bench, demo: bytes, etag: str | None
    ) -> None:
        server.add(FILE, demo, etag=etag)
        self.stop(server, bench, 1_500_000)
        assert bench.get(server.url(FILE)).read_bytes() == demo
        assert ranges(server) == [None]

    def test_complete_part_is_taken_when_the_server_says_so(
        self, server: FaultServer, bench: Bench, demo: bytes
    ) -> None:
        self.stop(server, bench, 1_500_000)
        (bench.folder / "models" / "x.l3r.part").write_bytes(demo)
        assert bench.get(server.url(FILE)).read_bytes() == demo
        assert ranges(server) == [f"bytes={len(demo)}-"]  # answered with 416


@pytest.mark.parametrize(
    "fault",
    [
        Fault(ignore_range=True),
        Fault(status=206, headers={"Content-Range": None}),
        Fault(body=DATA[:2_000_000], headers={"Content-Range": "bytes 0-1999999/3000000"}),
        Fault(headers={"Content-Range": "bytes 1000000-2999998/2000000"}),
        Fault(headers={"Content-Range": "items 1000000-2999999/3000000"}),
        Fault(headers={"Content-Range": f"bytes {10**17}-{10**17 + 1}/*"}),
        Fault(status=416, body=b""),
        Fault(status=416, body=b"", headers={"Content-Range": "bytes */5"}),
    ],
    ids=[
        "whole",
        "no-range",
        "other-range",
        "beyond-total",
        "other-unit",
        "far",
        "unsatisfied",
        "unsatisfied-other-size",
    ],
)
def test_wrong_answer_to_a_range_starts_anew(server: FaultServer, bench: Bench, fault: Fault) -> None:
    leave_part(server, bench, 1_000_000)
    server.fail(FILE, fault)
    assert bench.get(server.url(FILE), *GIVEN).read_bytes() == DATA


def test_range_without_a_total_is_continued(server: FaultServer, bench: Bench) -> None:
    leave_part(server, bench, 1_000_000)
    server.fail(FILE, Fault(headers={"Content-Range": "bytes 1000000-2999999/*"}))
    assert bench.get(server.url(FILE), *GIVEN).read_bytes() == DATA
    assert len(server.requests(FILE)) == 1


def test_partial_answer_that_nobody_asked_for_is_refused(server: FaultServer, bench: Bench) -> None:
    lie = Fault(status=206, headers={"Content-Range": "bytes 0-2999999/3000000"})
    server.fail(FILE, *[lie] * 9)
    with pytest.raises(NetworkError) as caught:
        bench.get(server.url(FILE), *GIVEN)
    assert caught.value.slug == "http-range"


@pytest.mark.parametrize(
    "fault",
    [Fault(headers={"Content-Length": None}), Fault(chunked=True), Fault(headers={"ETag": None})],
    ids=str,
)
def test_missing_headers_do_no_harm(server: FaultServer, bench: Bench, fault: Fault) -> None:
    server.fail(FILE, fault)
    assert bench.get(server.url(FILE), *GIVEN).read_bytes() == DATA


def test_content_length_that_is_too_small_never_gets_a_name(server: FaultServer, bench: Bench) -> None:
    server.fail(FILE, *[Fault(headers={"Content-Length": str(SIZE - 1)})] * 9)
    with pytest.raises(PackageError) as caught:
        bench.get(server.url(FILE), *GIVEN)
    assert caught.value.slug == "download-damaged"
    assert bench.names() == ["x.l3r.bad"]


def test_content_length_that_is_too_large_is_asked_about_again(server: FaultServer, bench: Bench) -> None:
    server.fail(FILE, Fault(headers={"Content-Length": str(SIZE + 1)}, end_after=SIZE))
    assert bench.get(server.url(FILE), *GIVEN).read_bytes() == DATA
    assert ranges(server) == [None, f"bytes={SIZE}-"]


def test_content_length_against_the_list_stops_before_the_first_byte(server: FaultServer, bench: Bench) -> None:
    for name, data in release(DATA, name="x.l3r").items():
        server.add(f"/{name}", data)
    server.add(FILE, DATA + b"more")
    with pytest.raises(PackageError, match="expected 3000000 bytes") as caught:
        bench.get(server.url("/"))
    assert caught.value.slug == "download-size"
    server.fail(FILE, Fault(chunked=True))
    with pytest.raises(PackageError) as caught:
        bench.get(server.url("/"))
    assert caught.value.slug == "download-size"
    assert not any(name.endswith("x.l3r") for name in bench.names())


def test_body_that_ends_early_in_good_order_is_continued(server: FaultServer, bench: Bench) -> None:
    """Only the size in the list can tell: the chunks end as they should."""
    for name, data in release(DATA, name="x.l3r").items():
        server.add(f"/{name}", data)
    server.fail(FILE, Fault(chunked=True, body=DATA[:1_000_000]))
    assert bench.get(server.url("/")).read_bytes() == DATA
    assert ranges(server) == [None, "bytes=1000000-"]


def test_login_page_with_status_200_is_recognised(server: FaultServer, bench: Bench) -> None:
    files = {"SHA256SUMS": f"{digest(DATA)}  x.l3r\n".encode()}
    for name, data in files.items():
        server.add(f"/{name}", data)
    page = b"<html>Please log in</html>"
    server.files[FILE] = Resource(data=page, content_type="text/html; charset=utf-8")
    with pytest.raises(PackageError) as caught:
        bench.get(server.url(FILE))
    assert caught.value.exit_code == 4
    server.fail(FILE, Fault(headers={"Content-Length": None}))
    with pytest.raises(PackageError, match="it is a web page") as caught:
        bench.get(server.url(FILE))
    assert "login" in caught.value.hint


def test_compressed_answer_is_refused(server: FaultServer, bench: Bench) -> None:
    server.fail(FILE, Fault(headers={"Content-Encoding": "gzip"}))
    with pytest.raises(NetworkError, match="gzip") as caught:
        bench.get(server.url(FILE), *GIVEN)
    assert caught.value.slug == "http-encoding"
    assert server.requests(FILE)[0].headers["accept-encoding"] == "identity"


def test_silent_line_is_given_up_and_continued(server: FaultServer, bench: Bench) -> None:
    bench.surroundings = replace(bench.surroundings, read_seconds=2.0)
    server.fail(FILE, Fault(stall_after=1_000_000))
    assert bench.get(server.url(FILE), *GIVEN).read_bytes() == DATA
    assert ranges(server) == [None, "bytes=1000000-"]
    assert "stopped sending" in bench.err


def test_line_that_only_drips_is_given_up(server: FaultServer, bench: Bench) -> None:
    # A clock that makes every piece come 30 seconds after the last one.
    bench.surroundings = replace(bench.surroundings, clock=itertools.count(step=30.0).__next__)
    server.add(FILE, DATA[:2000])
    server.fail(FILE, *[Fault(drip=10)] * 9)
    with pytest.raises(NetworkError) as caught:
        bench.get(server.url(FILE), "--sha256", digest(DATA[:2000]))
    assert caught.value.slug == "network-timeout"


@pytest.mark.parametrize(
    ("status", "slug"),
    [(401, "http-credentials"), (403, "http-forbidden"), (404, "http-missing"), (410, "http-missing")],
)
def test_refusal_is_not_repeated(server: FaultServer, bench: Bench, status: int, slug: str) -> None:
    server.fail(FILE, *[Fault(status=status)] * 9)
    with pytest.raises(NetworkError, match=f"HTTP {status}") as caught:
        bench.get(server.url(FILE), *GIVEN)
    assert caught.value.slug == slug
    assert bench.waits == []


def test_name_without_an_address_is_named(bench: Bench) -> None:
    with pytest.raises(NetworkError, match=r"no-such-host\.invalid") as caught:
        bench.get("https://no-such-host.invalid/x.l3r")
    assert caught.value.slug == "network-name"
    assert bench.waits == []


def test_refused_connection_is_named(bench: Bench) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
    with pytest.raises(NetworkError, match="Connection refused") as caught:
        bench.get(f"http://127.0.0.1:{port}/x.l3r")
    assert caught.value.slug == "network-unreachable"
    assert bench.waits == []


class TestProxy:
    def test_proxy_is_used(self, bench: Bench) -> None:
        with FaultServer() as proxy:
            proxy.add("http://far.test/x.l3r", DATA)
            bench.environ["http_proxy"] = proxy.url()
            assert bench.get("http://far.test/x.l3r", *GIVEN).read_bytes() == DATA

    def test_this_machine_is_never_asked_through_a_proxy(self, server: FaultServer, bench: Bench) -> None:
        bench.environ["http_proxy"] = "http://127.0.0.1:9"
        assert bench.get(server.url(FILE), *GIVEN).read_bytes() == DATA

    def test_excluded_host_is_asked_directly(self, bench: Bench) -> None:
        with FaultServer() as proxy:
            bench.environ |= {"http_proxy": proxy.url(), "no_proxy": "example.org,.invalid"}
            with pytest.raises(NetworkError) as caught:
                bench.get("http://no-such-host.invalid/x.l3r", *GIVEN)
            assert caught.value.slug == "network-name"
            assert proxy.seen == []

    def test_proxy_that_is_not_there_is_named_without_its_password(self, bench: Bench) -> None:
        with closing(socket.create_server(("127.0.0.1", 0))) as taken:
            port = taken.getsockname()[1]
        bench.environ["https_proxy"] = f"http://user:secret@127.0.0.1:{port}"
        with pytest.raises(NetworkError, match=r"127\.0\.0\.1") as caught:
            bench.get("https://far.test/x.l3r", *GIVEN)
        assert caught.value.slug == "network-proxy"
        assert "secret" not in caught.value.message

    @pytest.mark.parametrize("proxy", ["socks5://127.0.0.1:9", "http://", "ftp://127.0.0.1:9"])
    def test_proxy_that_cannot_be_one_is_named(self, bench: Bench, proxy: str) -> None:
        bench.environ["all_proxy"] = proxy
        with pytest.raises(NetworkError) as caught:
            bench.get("https://far.test/x.l3r", *GIVEN)
        assert caught.value.slug == "network-proxy"
        assert bench.waits == []

    def test_proxy_that_wants_a_password_is_named(self, bench: Bench) -> None:
        with FaultServer() as proxy:
            proxy.fail("http://far.test/x.l3r", Fault(status=407))
            proxy.fail("http://far.test/SHA256SUMS", Fault(status=407))
            bench.environ["http_proxy"] = proxy.url()
            with pytest.raises(NetworkError) as caught:
                bench.get("http://far.test/x.l3r", *GIVEN)
            assert caught.value.slug == "network-proxy"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("7", 7.0),
        (" 0 ", 0.0),
        ("Mon, 30 Nov 2026 00:01:00 GMT", 60.0),
        ("Sun, 29 Nov 2026 00:00:00 GMT", 0.0),
        ("soon", None),
        ("-5", None),
        (None, None),
    ],
)
def test_wait_is_read_in_both_forms(text: str | None, seconds: float | None) -> None:
    assert retry_after(text, datetime(2026, 11, 30, tzinfo=UTC)) == seconds
