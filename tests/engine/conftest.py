"""The engine and the random models that its tests share."""

from __future__ import annotations

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is imported; small products gain nothing by more

from collections.abc import Iterator

import pytest

from engine.build import build_library
from launcher.engine_library import Library
from tests.support.models import Models


@pytest.fixture(scope="session")
def library() -> Library:
    """The engine of this tree."""
    return Library(build_library())


@pytest.fixture(scope="session")
def models(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """Checkpoints and packages, made on demand."""
    models = Models(tmp_path_factory.mktemp("models"), library)
    yield models
    models.close()
