"""One server process with the built-in model for the tests of its protocol."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server_process import ServerProcess, nothing_left


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
