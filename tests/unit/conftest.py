"""Fixtures of several files here: a release folder, and a home for what is remembered of releases."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.releases import write_release
from tests.support.verification import SIGNER


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return write_release(tmp_path / "release", signer=SIGNER)
