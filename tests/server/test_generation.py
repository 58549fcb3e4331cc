"""A failure in the generation thread that no request is told of, and that then nobody hears of."""

from __future__ import annotations

import os
import threading

import pytest

from launcher.errors import InternalError, MindnanoError
from launcher.messages import Catalogue, Language
from launcher.model import open_model
from launcher.options.parse import parse
from launcher.server.constraint import GrammarFactory
from launcher.server.generation import open_generation
from launcher.server.sessions import SessionStore
from launcher.system import SystemView
from tests.support.demo import require_demo


def test_upkeep_that_fails_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("the folder is gone")

    require_demo()
    monkeypatch.setattr(SessionStore, "idle", fail)
    told: list[MindnanoError] = []
    came = threading.Event()

    def report(error: MindnanoError) -> None:
        told.append(error)
        came.set()

    options = parse(["--demo", "--no-console"], {}, [])
    texts = Catalogue(Language.ENGLISH)
    with (
        open_model(options, dict(os.environ), SystemView(), texts) as model,
        open_generation(model, options, GrammarFactory(model.package), created=0, report=report),
    ):
        assert came.wait(20)
    assert isinstance(told[0], InternalError)
    assert "the folder is gone" in told[0].message
