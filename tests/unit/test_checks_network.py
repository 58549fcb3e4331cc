"""A port that is taken and looks free, or a server that the whole network reaches without a word."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from launcher.checks.network import is_loopback, network_findings
from launcher.checks.report import Status
from launcher.messages import Catalogue, Language
from launcher.system import SystemView
from tests.fixtures.boards.builder import Board


@pytest.mark.parametrize(
    ("number", "slug"),
    [
        (errno.EADDRINUSE, "network-port-taken"),
        (errno.EACCES, "network-port-privileged"),
        (errno.EADDRNOTAVAIL, "network-address-foreign"),
        (errno.EAFNOSUPPORT, "network-port-unusable"),
    ],
)
def test_each_refusal_has_its_line(tmp_path: Path, number: int, slug: str) -> None:
    board = Board()
    board.host.taken[9092] = number
    (found,) = network_findings(board.build(tmp_path), "127.0.0.1", 9092)
    assert (found.slug, found.status) == (slug, Status.WARN)
    assert "9092" in found.text(Catalogue(Language.ENGLISH))
    assert found.next_step(Catalogue(Language.ENGLISH))


def test_command_names_the_port(tmp_path: Path) -> None:
    board = Board()
    board.host.taken[8080] = errno.EADDRINUSE
    (found,) = network_findings(board.build(tmp_path), "127.0.0.1", 8080)
    assert found.next_step(Catalogue(Language.ENGLISH)).startswith("ss -ltnp 'sport = :8080'")


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.8.8.8", True),
        ("localhost", True),
        ("::1", True),
        ("[::1]", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.5", False),
        ("fe80::1%eth0", False),
        ("board.example", False),
        ("localhost.example", False),
        ("", False),
    ],
)
def test_only_loopback_is_private(tmp_path: Path, host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback
    slugs = [finding.slug for finding in network_findings(Board().build(tmp_path), host, 9092)]
    assert slugs == ["network-port-free"] if loopback else ["network-port-free", "network-lan"]


@pytest.mark.parametrize("number", [errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT])
def test_address_that_is_not_there_is_not_called_reachable(tmp_path: Path, number: int) -> None:
    board = Board()
    board.host.taken[9092] = number
    assert len(network_findings(board.build(tmp_path), "192.168.7.7", 9092)) == 1


def test_ipv6_address_is_in_brackets(tmp_path: Path) -> None:
    (found,) = network_findings(Board().build(tmp_path), "::1", 9092)
    assert found.facts["address"] == "[::1]:9092"


def test_addresses_are_private(tmp_path: Path) -> None:
    for found in network_findings(Board().build(tmp_path), "192.168.7.7", 9092):
        assert "192.168.7.7" not in found.redacted().text(Catalogue(Language.ENGLISH))


def test_taken_port_of_this_machine_is_seen() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(1)
        port = server.getsockname()[1]
        (taken,) = network_findings(SystemView(), "127.0.0.1", port)
    (free,) = network_findings(SystemView(), "127.0.0.1", port)
    assert (taken.slug, free.slug) == ("network-port-taken", "network-port-free")


def test_host_that_cannot_be_one_is_a_warning() -> None:
    found = network_findings(SystemView(), "a" * 70 + ".é" + "\udc80", 9092)[0]
    assert (found.slug, found.status) == ("network-port-unusable", Status.WARN)


def test_a_unix_socket_has_no_port(tmp_path: Path) -> None:
    assert network_findings(Board().build(tmp_path), "unix:/run/mindnano.sock", 9092) == ()
