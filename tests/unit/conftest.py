"""Fixtures of several files here: releases and what is remembered of them, servers and a place to download to."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.downloads import Bench
from tests.support.fault_server import FaultServer
from tests.support.releases import write_release
from tests.support.verification import SIGNER


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return write_release(tmp_path / "release", signer=SIGNER)


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


@pytest.fixture
def cdn() -> Iterator[FaultServer]:
    with FaultServer() as running:
        yield running


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(folder=tmp_path)
