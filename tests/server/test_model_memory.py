"""A loaded model whose memory comes back although there is none, in part, or with other contents."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher.engine import Engine
from launcher.errors import Cancelled, InternalError, PackageError, RequestError
from launcher.messages import Catalogue, Language
from launcher.model import DEMO_VARIABLE, OpenModel, open_model
from launcher.options.parse import parse
from launcher.server.model_memory import ModelMemory
from launcher.system import SystemView
from tests.support.demo import require_demo
from tests.support.mapped import mapped_bytes

IDS = list(range(40))


def never() -> bool:
    return False


@pytest.fixture
def model(tmp_path: Path) -> Iterator[OpenModel]:
    """A copy of the built-in one, which no other test of this process has mapped."""
    path = shutil.copy(require_demo(), tmp_path / "demo.l3r")
    options = parse(["--demo", "--no-console", "--context", "512"], {}, [])
    environ = {**os.environ, DEMO_VARIABLE: str(path)}
    with open_model(options, environ, SystemView(), Catalogue(Language.ENGLISH)) as opened:
        assert opened.package.path == path
        yield opened


def machine(folder: Path, available: int) -> SystemView:
    """One with so many bytes of memory left."""
    (folder / "proc").mkdir(parents=True, exist_ok=True)
    (folder / "proc" / "meminfo").write_text(f"MemTotal: 9999999 kB\nMemAvailable: {available >> 10} kB\n")
    return SystemView(root=folder)


def resident(model: OpenModel) -> int:
    return mapped_bytes(os.getpid(), model.package.path)


def evaluated(model: OpenModel) -> tuple[bytes, bytes]:
    model.session.eval(IDS)
    return model.session.state_sha256(), model.session.logits().tobytes()


def test_it_comes_back_as_it_was(model: OpenModel) -> None:
    memory = ModelMemory(model, SystemView(), force=False)
    before, text = evaluated(model), model.package.tokenize("as it was")
    for _ in range(3):
        memory.give_back()
        assert resident(model) == 0
        assert model.package.tokenize("as it was") == text
        with pytest.raises(InternalError, match="closed"):
            model.session.eval(IDS)
        memory.take_again(never)
        assert (model.session.position, model.session.tokens()) == (0, [])
        assert evaluated(model) == before


def test_both_parts_are_needed_and_no_more(model: OpenModel, tmp_path: Path) -> None:
    needed = model.memory.plan.mapped + model.session.allocated
    memory = ModelMemory(model, machine(tmp_path, needed + 1024), force=False)
    memory.give_back()
    machine(tmp_path, needed - 1024)
    with pytest.raises(RequestError, match=r"too little to load it again: .* are needed, .* are available") as caught:
        memory.take_again(never)
    assert (caught.value.status, caught.value.slug, caught.value.headers) == (
        503,
        "memory_short",
        {"Retry-After": "10"},
    )
    assert resident(model) == 0
    machine(tmp_path, needed + 1024)
    memory.take_again(never)
    assert evaluated(model)


@pytest.mark.parametrize("room", [-1, 1])
def test_with_force_it_is_tried_and_loaded_only_where_it_fits(model: OpenModel, tmp_path: Path, room: int) -> None:
    """As at the start: weights that do not fit would push each other out."""
    before = evaluated(model)
    memory = ModelMemory(model, machine(tmp_path, model.memory.plan.mapped + (room << 12)), force=True)
    memory.give_back()
    memory.take_again(never)
    assert (resident(model) == mapped_bytes(os.getpid(), model.package.path, "Size")) == (room > 0)
    assert evaluated(model) == before


def test_a_machine_that_says_nothing_is_tried(model: OpenModel, tmp_path: Path) -> None:
    memory = ModelMemory(model, SystemView(root=tmp_path), force=False)
    assert memory.resident() is None
    memory.give_back()
    memory.take_again(never)
    assert evaluated(model)


@pytest.mark.parametrize("pieces", [0, 1])
def test_a_stop_leaves_nothing(model: OpenModel, pieces: int) -> None:
    memory = ModelMemory(model, SystemView(), force=False)
    memory.give_back()
    answers = iter([False] * pieces)
    with pytest.raises(Cancelled):
        memory.take_again(lambda: next(answers, True))
    assert resident(model) == 0
    with pytest.raises(InternalError, match="closed"):
        model.session.reset()
    memory.take_again(never)
    assert evaluated(model)


@pytest.mark.parametrize("error", [MemoryError(), PackageError("package-unreadable", "the disk fails")])
def test_what_cannot_be_loaded_leaves_nothing(
    model: OpenModel, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = ModelMemory(model, SystemView(), force=False)
    memory.give_back()
    preload = Engine.preload

    def fail(engine: Engine, progress: object = None) -> None:
        preload(engine)
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Engine, "preload", fail)
        with pytest.raises(RequestError if isinstance(error, MemoryError) else PackageError):
            memory.take_again(never)
    assert resident(model) == 0
    memory.take_again(never)
    assert evaluated(model)
