"""Nuitka's calls of the compiler reach it for the wrong processor, the wrong Python, or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bundle import nuitka_cc

ADDED = " ".join(nuitka_cc.ADDED)
PATHS = [["/host/python", "/target/python"]]


@pytest.fixture
def door(tmp_path: Path) -> Path:
    """The stand-in with a compiler and a zig that print what they are asked."""
    for name in ("cc", "real-zig"):
        script = tmp_path / name
        script.write_text(f'#!/bin/sh\necho {name} "$@"\n')
        script.chmod(0o755)
    settings = {"cc": str(tmp_path / "cc"), "zig": str(tmp_path / "real-zig"), "paths": PATHS}
    (tmp_path / "zig.json").write_text(json.dumps(settings))
    path = tmp_path / "zig"
    path.write_text(f"#!{sys.executable} -IS\n" + Path(nuitka_cc.__file__).read_text())
    path.chmod(0o755)
    return path


def said(door: Path, *words: str) -> str:
    return subprocess.run([door, *words], capture_output=True, text=True, check=True, cwd=door.parent).stdout


def test_a_compilation_is_for_the_target(door: Path) -> None:
    words = ("cc", "-march=x86_64", "-I/host/python/include", "-DHACL_CAN_COMPILE_VEC256", "-c", "a b.c")
    assert said(door, *words) == f"cc {ADDED} -I/target/python/include -c a b.c\n"


def test_words_in_a_file_are_changed_too(door: Path) -> None:
    words = door.parent / "words.txt"
    words.write_text('"one.o"\n-Wl,-rpath=/host/python/lib\n/host/python/lib/libpython3.13.a\n')
    assert said(door, "cc", "@words.txt") == f"cc {ADDED} @words.txt\n"
    assert words.read_text() == '"one.o"\n/target/python/lib/libpython3.13.a\n'


@pytest.mark.parametrize(
    ("source", "level"),
    [
        ("module.launcher.cli.c", "-Os -Xclang -Oz"),
        ("build/module.launcher.cli.c", "-Os -Xclang -Oz"),
        ("static_src/CompiledFunctionType.c", "-O2"),
        ("__loader.c", "-O2"),
    ],
)
def test_modules_are_compiled_small_and_the_run_time_library_fast(door: Path, source: str, level: str) -> None:
    assert said(door, "cc", "-O2", "-c", source) == f"cc {ADDED} {level} -c {source}\n"


@pytest.mark.parametrize("words", [("version",), ("--version",), ("ar", "-march=x")])
def test_what_compiles_nothing_goes_to_zig(door: Path, words: tuple[str, ...]) -> None:
    assert said(door, *words) == f"real-zig {' '.join(words)}\n"
