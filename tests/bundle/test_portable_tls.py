"""The portable program's own TLS fetches nothing, trusts everybody, or does not see the system's authorities."""

from __future__ import annotations

import datetime
import hashlib
import signal
import ssl
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import certifi
import pytest

from tests.bundle.portable import program, run
from tests.support.certificates import DAY, Authority
from tests.support.fault_server import Fault, FaultServer
from tests.support.packages import write_package

ENDED = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), datetime.datetime.now(datetime.UTC))


@pytest.fixture
def server(authority: Authority) -> Iterator[FaultServer]:
    now = datetime.datetime.now(datetime.UTC)
    with FaultServer(tls=authority.server(now - DAY, now + DAY)) as server:
        yield server


def download(server: FaultServer, home: Path, data: bytes, **environ: str) -> subprocess.CompletedProcess[str]:
    words = ("--download", server.url("/model.l3r"), "--sha256", hashlib.sha256(data).hexdigest())
    return run(program(), *words, environ={"HOME": str(home), **environ})


def test_a_model_comes_over_tls(server: FaultServer, authority: Authority, tmp_path: Path) -> None:
    data = write_package(tmp_path / "model.l3r").read_bytes()
    server.add("/model.l3r", data)
    done = download(server, tmp_path / "home", data, SSL_CERT_FILE=str(authority.bundle))
    assert done.returncode == 0, done.stderr
    [found] = (tmp_path / "home").rglob("model.l3r")
    assert found.read_bytes() == data


def test_a_server_that_nobody_vouches_for_is_refused(server: FaultServer, tmp_path: Path) -> None:
    server.add("/model.l3r", b"data")
    done = download(server, tmp_path / "home", b"data")
    assert done.returncode == 6
    assert "certificate" in done.stderr
    assert not list(tmp_path.rglob("*.l3r"))


def test_authorities_are_there_when_the_system_has_none(tmp_path: Path) -> None:
    unpacked = run(program(), "--unpack", str(tmp_path / "out"))
    assert unpacked.returncode == 0, unpacked.stderr
    carried = (tmp_path / "out" / "certs" / "cacert.pem").read_bytes()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(cadata=carried.decode("ascii"))
    assert len(context.get_ca_certs()) > 100
    assert carried == Path(certifi.where()).read_bytes()


@pytest.mark.parametrize("number", ENDED, ids=lambda number: number.name)
def test_a_signal_ends_a_download_with_its_code(
    server: FaultServer, authority: Authority, tmp_path: Path, number: signal.Signals
) -> None:
    server.add("/model.l3r", bytes(1 << 20))
    server.fail("/model.l3r", Fault(stall_after=1000))
    process = subprocess.Popen(
        [str(program()), "--download", server.url("/model.l3r"), "--sha256", "0" * 64],
        env={"HOME": str(tmp_path), "SSL_CERT_FILE": str(authority.bundle)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while not server.requests("/model.l3r"):
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == ENDED[number]
