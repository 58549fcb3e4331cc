"""A certificate that is not checked, or a failed check that does not say whether the clock is to blame."""

from __future__ import annotations

import datetime
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from launcher.errors import MindnanoError, NetworkError, UsageError
from tests.support.certificates import DAY, Authority
from tests.support.downloads import Bench, digest, random_bytes
from tests.support.fault_server import Fault, FaultServer

DATA = random_bytes(100_000)
GIVEN = ("--sha256", digest(DATA))
NOW = datetime.datetime.now(datetime.UTC)
IMAGE = datetime.datetime(1970, 1, 1, 0, 3, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), NOW)


@pytest.fixture
def bench(tmp_path: Path, authority: Authority) -> Bench:
    return Bench(folder=tmp_path, environ={"SSL_CERT_FILE": str(authority.bundle)})


@pytest.fixture
def sound(authority: Authority) -> Iterator[FaultServer]:
    with FaultServer(tls=authority.server(NOW - DAY, NOW + DAY)) as running:
        running.add("/x.l3r", DATA)
        yield running


def failure(bench: Bench, server: FaultServer) -> MindnanoError:
    with server, pytest.raises(MindnanoError) as caught:
        bench.get(server.url("/x.l3r"), *GIVEN)
    assert server.seen == []
    assert bench.waits == []
    return caught.value


def test_sound_certificate_is_trusted(sound: FaultServer, bench: Bench) -> None:
    assert bench.get(sound.url("/x.l3r"), *GIVEN).read_bytes() == DATA


def test_unknown_authority_is_not_trusted(authority: Authority, bench: Bench) -> None:
    del bench.environ["SSL_CERT_FILE"]
    error = failure(bench, FaultServer(tls=authority.server(NOW - DAY, NOW + DAY)))
    assert error.slug == "network-tls"
    assert "SSL_CERT_FILE" in error.hint


def test_certificate_of_another_host_is_not_trusted(authority: Authority, bench: Bench) -> None:
    error = failure(bench, FaultServer(tls=authority.server(NOW - DAY, NOW + DAY, host="far.test")))
    assert error.slug == "network-tls"
    assert "127.0.0.1" in error.message


def test_expired_certificate_shows_the_clock(authority: Authority, bench: Bench) -> None:
    error = failure(bench, FaultServer(tls=authority.server(NOW - 30 * DAY, NOW - DAY)))
    assert error.slug == "network-clock"
    assert "has expired" in error.message
    assert f"{NOW:%Y-%m-%d}" in error.message or f"{NOW + DAY:%Y-%m-%d}" in error.message
    assert "if that is wrong" in error.message
    assert "timedatectl" in error.hint


def test_certificate_of_the_future_shows_a_clock_that_cannot_be_right(authority: Authority, bench: Bench) -> None:
    bench.surroundings = replace(bench.surroundings, now=lambda: IMAGE)
    error = failure(bench, FaultServer(tls=authority.server(NOW + DAY, NOW + 30 * DAY)))
    assert error.slug == "network-clock"
    assert "is not valid yet" in error.message
    assert "1970-01-01 00:03 UTC, which is wrong" in error.message


def test_bundle_that_holds_nothing_is_named(bench: Bench, sound: FaultServer) -> None:
    empty = bench.folder / "empty.pem"
    empty.write_text("nothing")
    bench.environ["SSL_CERT_FILE"] = str(empty)
    with pytest.raises(UsageError, match="SSL_CERT_FILE") as caught:
        bench.get(sound.url("/x.l3r"), *GIVEN)
    assert caught.value.slug == "ca-bundle"


def test_given_authorities_replace_those_of_the_environment(
    authority: Authority, bench: Bench, sound: FaultServer
) -> None:
    given = bench.environ.pop("SSL_CERT_FILE")
    empty = bench.folder / "empty.pem"
    empty.write_text("nothing")
    bench.environ["SSL_CERT_FILE"] = str(empty)
    assert bench.get(sound.url("/x.l3r"), *GIVEN, "--cacert", given).read_bytes() == DATA
    with pytest.raises(UsageError, match="--cacert"):
        bench.get(sound.url("/x.l3r"), *GIVEN, "--cacert", str(empty))


def test_server_that_speaks_no_tls_is_named(bench: Bench) -> None:
    with FaultServer() as plain, pytest.raises(NetworkError) as caught:
        bench.get(plain.url("/x.l3r").replace("http:", "https:"), *GIVEN)
    assert caught.value.slug == "network-tls"


def test_server_that_hangs_up_is_no_end(bench: Bench) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        bench.surroundings = replace(bench.surroundings, connect_seconds=0.2, read_seconds=0.2)
        with pytest.raises(NetworkError) as caught:
            bench.get(f"https://127.0.0.1:{silent.getsockname()[1]}/x.l3r", *GIVEN)
    assert caught.value.slug == "network-timeout"


def test_cut_protected_line_is_continued(sound: FaultServer, bench: Bench) -> None:
    sound.fail("/x.l3r", Fault(cut_after=50_000), Fault(end_after=10_000))
    assert bench.get(sound.url("/x.l3r"), *GIVEN).read_bytes() == DATA


def test_protection_is_not_given_up_on_the_way(sound: FaultServer, bench: Bench) -> None:
    with FaultServer() as plain:
        plain.add("/x.l3r", DATA)
        sound.redirect("/x.l3r", plain.url("/x.l3r"))
        with pytest.raises(NetworkError, match="from https to http") as caught:
            bench.get(sound.url("/x.l3r"), *GIVEN)
        assert caught.value.slug == "network-redirect"
        assert plain.seen == []
