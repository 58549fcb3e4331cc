"""One server process with the built-in model for the tests of its protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_generation import Bench
from tests.support.server_process import ServerProcess, nothing_left
from tests.support.session_server import OpenFiles


@pytest.fixture(scope="session")
def common_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """Started once; see `live`."""
    with ServerProcess(tmp_path_factory.mktemp("server")) as server:
        server.warm_up()
        yield server


@pytest.fixture(scope="module")
def live(common_server: ServerProcess) -> Iterator[ServerProcess]:
    """The common server. After a module's tests it must be idle, with no more threads and descriptors than before."""
    with nothing_left(common_server):
        yield common_server


@pytest.fixture(autouse=True)
def session_folders() -> Iterator[None]:
    """What a test's servers without a process have opened is closed after it."""
    yield
    OpenFiles.close_all()


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A scheduler with an engine that computes nothing."""
    with Bench() as made:
        yield made


@pytest.fixture
def gated() -> Iterator[Bench]:
    """The same; the engine does a chunk of work only when it is let."""
    with Bench(gated=True) as made:
        yield made
