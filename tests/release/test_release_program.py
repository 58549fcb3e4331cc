"""A release of the real program that it does not accept itself, or that does not run from its folder."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from bundle import smoke
from bundle.program_sources import source_digest
from tests.bundle import portable
from tests.support.demo import require_demo
from tests.support.release_folders import CHECKOUT, faults, look, make_release


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = portable.program()
    checkout = replace(CHECKOUT, sources=source_digest())
    return make_release(tmp_path_factory.mktemp("release") / "demo", program, require_demo(), checkout=checkout)


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}


def test_both_checks_pass(released: Path, home: dict[str, str]) -> None:
    assert faults(look(released)) == {}
    result = portable.run(released / "mindnano-infer", "--verify", "--json", environ=home, folder=released)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["release"] == {"model": "mindnano-demo", "version": "1.2.3"}
    assert document["missing"] == document["changed"] == document["extra"] == []
    assert document["intact"] == document["files"]


@pytest.mark.parametrize("words", [("--demo",), ("--model", "mindnano-demo.l3r"), ()])
def test_it_answers_from_its_folder(released: Path, home: dict[str, str], words: tuple[str, ...]) -> None:
    """The built-in model, the package by name, and the package beside the program without a name."""
    question = ("--think", "off", "--temperature", "0", smoke.QUESTION)
    result = portable.run(released / "mindnano-infer", *words, *question, environ=home, folder=released)
    assert result.returncode == 0, result.stderr
    assert "42" in result.stdout


def test_a_changed_package_is_not_started(released: Path, home: dict[str, str], tmp_path: Path) -> None:
    folder = Path(shutil.copytree(released, tmp_path / "copy"))
    with (folder / "mindnano-demo.l3r").open("r+b") as file:
        file.seek(5_000_000)
        file.write(b"\x55\x55\x55")
    words = ("--think", "off", "--temperature", "0", smoke.QUESTION)
    result = portable.run(folder / "mindnano-infer", *words, environ=home, folder=folder)
    assert result.returncode == 4
    assert faults(look(folder))
