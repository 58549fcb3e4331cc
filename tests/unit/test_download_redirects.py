"""A redirect that leaks a token, loses protection, leaves a mirror, never ends, or reaches into a private network."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from launcher.download.redirects import RedirectPolicy
from launcher.download.sources import HubSource
from launcher.errors import NetworkError
from tests.support.downloads import Bench, digest, random_bytes, release
from tests.support.fault_server import Fault, FaultServer, Resource, serve_repository

DATA = random_bytes(100_000)
GIVEN = ("--sha256", digest(DATA))
REPOSITORY = "some-org/some-model"


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(folder=tmp_path)


def refused(bench: Bench, source: str) -> NetworkError:
    with pytest.raises(NetworkError) as caught:
        bench.get(source, *GIVEN)
    assert caught.value.slug == "network-redirect"
    assert bench.waits == []
    return caught.value


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_followed(server: FaultServer, bench: Bench, status: int) -> None:
    server.redirect("/x.l3r", "/other", status)
    server.add("/other", DATA)
    assert bench.get(server.url("/x.l3r"), *GIVEN).read_bytes() == DATA


def test_range_survives_a_redirect(server: FaultServer, bench: Bench) -> None:
    server.redirect("/x.l3r", "/other")
    server.add("/other", DATA)
    server.fail("/other", Fault(end_after=60_000))
    bench.get(server.url("/x.l3r"), *GIVEN)
    assert [request.headers.get("range") for request in server.requests("/other")] == [None, "bytes=60000-"]


def test_five_redirects_are_followed_and_a_sixth_is_not(server: FaultServer, bench: Bench) -> None:
    for index in range(6):
        server.redirect(f"/{index}.l3r", f"/{index + 1}.l3r")
    server.add("/6.l3r", DATA)
    assert bench.get(server.url("/1.l3r"), *GIVEN).read_bytes() == DATA
    assert "more than 5" in refused(bench, server.url("/0.l3r")).message


def test_circle_is_recognised(server: FaultServer, bench: Bench) -> None:
    server.redirect("/x.l3r", "/y.l3r")
    server.redirect("/y.l3r", "/x.l3r")
    assert "circle" in refused(bench, server.url("/x.l3r")).message
    assert len(server.requests("/x.l3r")) == 1


@pytest.mark.parametrize(
    "location", ["", "ftp://far.test/x", "file:///etc/passwd", "http://user@far.test/x", "http://["]
)
def test_strange_target_is_refused(server: FaultServer, bench: Bench, location: str) -> None:
    server.redirect("/x.l3r", location)
    refused(bench, server.url("/x.l3r"))


def test_public_server_cannot_send_into_this_machine(server: FaultServer, bench: Bench) -> None:
    server.add("/inside", DATA)
    with FaultServer() as proxy:
        bench.environ["http_proxy"] = proxy.url()
        proxy.redirect("http://far.test/x.l3r", server.url("/inside"))
        assert "private network" in refused(bench, "http://far.test/x.l3r").message
    assert server.seen == []


class TestMirror:
    @pytest.fixture
    def cdn(self) -> Iterator[FaultServer]:
        with FaultServer() as running:
            yield running

    @pytest.fixture
    def mirror(self, server: FaultServer, cdn: FaultServer, bench: Bench) -> FaultServer:
        serve_repository(server, cdn, REPOSITORY, release(DATA))
        bench.environ |= {"HF_ENDPOINT": server.url(), "HF_TOKEN": "hf_secret"}
        return server

    def test_stays_a_mirror(self, mirror: FaultServer, bench: Bench) -> None:
        """It sends the description of the repository to the public Hub, under the name that it has there."""
        info = f"/api/models/{REPOSITORY}/revision/main"
        mirror.files[f"/api/models/{REPOSITORY.upper()}/revision/main"] = mirror.files[info]
        mirror.redirect(info, f"https://huggingface.co/api/models/{REPOSITORY.upper()}/revision/main")
        assert bench.get(REPOSITORY).read_bytes() == DATA
        assert mirror.requests(f"/api/models/{REPOSITORY.upper()}/revision/main")

    def test_that_only_sends_back_is_refused(self, mirror: FaultServer, bench: Bench) -> None:
        info = f"/api/models/{REPOSITORY}/revision/main"
        mirror.redirect(info, f"https://huggingface.co{info}?blobs=true")
        with pytest.raises(NetworkError, match="circle"):
            bench.get(REPOSITORY)

    def test_page_of_the_public_hub_is_refused(self, mirror: FaultServer, bench: Bench) -> None:
        mirror.redirect(f"/api/models/{REPOSITORY}/revision/main", "https://huggingface.co/login")
        with pytest.raises(NetworkError, match=r"redirect back to https://huggingface\.co/login") as caught:
            bench.get(REPOSITORY)
        assert "HF_ENDPOINT" in caught.value.hint

    def test_bytes_may_come_from_elsewhere_without_the_token(
        self, mirror: FaultServer, cdn: FaultServer, bench: Bench
    ) -> None:
        assert bench.get(REPOSITORY).read_bytes() == DATA
        assert [("authorization" in request.headers) for request in cdn.seen] == [False]
        assert all("authorization" in request.headers for request in mirror.seen)


def policy(
    *, addresses: Mapping[str, str] | None = None, hub: HubSource | None = None, plain_http: bool = False
) -> RedirectPolicy:
    known = addresses or {}
    return RedirectPolicy({}, lambda host: [known[host]] if host in known else [], hub=hub, plain_http=plain_http)


def test_protection_is_never_lost() -> None:
    for plain_http in (False, True):
        with pytest.raises(NetworkError, match="from https to http"):
            policy(plain_http=plain_http).next(["https://a.test/x"], "http://a.test/x")
    with pytest.raises(NetworkError, match="not protected"):
        policy().next(["http://127.0.0.1/x"], "http://a.test/x")
    assert policy(plain_http=True).next(["http://a.test/x"], "http://b.test/x") == "http://b.test/x"
    assert policy().next(["http://127.0.0.1/x"], "https://a.test/x") == "https://a.test/x"


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1", "10.1.2.3", "172.16.0.1", "192.168.1.1", "169.254.169.254", "::1", "fe80::1%eth0", "::ffff:10.0.0.1"],
)
def test_names_of_private_addresses_are_private(address: str) -> None:
    chosen = policy(addresses={"far.test": "93.184.216.34", "near.test": address})
    with pytest.raises(NetworkError, match="private network"):
        chosen.next(["https://far.test/x"], "https://near.test/x")
    # Who names a private server may be sent on within that network, and the same server may always answer.
    assert chosen.next(["https://near.test/x"], "https://near2.test/x")
    assert chosen.next(["https://near.test/x"], "/y") == "https://near.test/y"


def test_addresses_that_local_proxies_invent_are_no_private_network() -> None:
    chosen = policy(addresses={"far.test": "93.184.216.34", "cdn.test": "198.18.0.7"})
    assert chosen.next(["https://far.test/x"], "https://cdn.test/x") == "https://cdn.test/x"


def test_public_hub_may_redirect_within_itself() -> None:
    hub = HubSource(repository="a/b", revision="main", endpoint="https://huggingface.co", token=None)
    target = policy(hub=hub).next(["https://huggingface.co/a/b/resolve/main/x"], "/api/resolve-cache/models/a/b/x")
    assert target == "https://huggingface.co/api/resolve-cache/models/a/b/x"


def test_file_hosts_of_the_hub_are_open_to_a_mirror() -> None:
    hub = HubSource(repository="a/b", revision="main", endpoint="https://mirror.test", token="t")
    first = "https://mirror.test/a/b/resolve/main/x"
    assert (
        policy(hub=hub).next([first], "https://cdn-lfs.huggingface.co/x?s=1") == "https://cdn-lfs.huggingface.co/x?s=1"
    )
    moved = policy(hub=hub).next([first], "https://huggingface.co/c/d/resolve/main/x?download=true")
    assert moved == "https://mirror.test/c/d/resolve/main/x?download=true"


def test_answer_with_cookies_leaves_none(server: FaultServer, bench: Bench) -> None:
    server.files["/x.l3r"] = Resource(location="/y.l3r", status=302, headers={"Set-Cookie": "a=b; Path=/"})
    server.add("/y.l3r", DATA)
    bench.get(server.url("/x.l3r"), *GIVEN)
    assert not any("cookie" in request.headers for request in server.seen)
