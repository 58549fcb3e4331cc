"""A module gets out of the compression changed, with a name more, or with other bytes than in the next build."""

from __future__ import annotations

import builtins
import importlib
import marshal
import sys
import traceback
from collections.abc import Iterator
from types import CodeType, ModuleType
from typing import Any

import pytest

FILE = "package/large.py"
SOURCE = "".join(f"def function_{number}(value):\n    return value + {number}\n" for number in range(60))
EARLY = ("enum", "encodings.aliases", "encodings.big5")


@pytest.fixture
def plugin(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The plugin beside as much of Nuitka as it imports, which is not installed where the tests run."""
    names = (
        "nuitka",
        "nuitka.freezer",
        "nuitka.freezer.ImportDetection",
        "nuitka.plugins",
        "nuitka.plugins.PluginBase",
    )
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setattr(sys.modules[names[2]], "detectEarlyImports", lambda: EARLY, raising=False)
    monkeypatch.setattr(sys.modules[names[4]], "NuitkaPluginBase", object, raising=False)
    monkeypatch.delitem(sys.modules, "bundle.nuitka_plugin", raising=False)
    yield importlib.import_module("bundle.nuitka_plugin")
    sys.modules.pop("bundle.nuitka_plugin", None)


def code(source: str = SOURCE) -> CodeType:
    return compile(source, FILE, "exec", dont_inherit=True)


def names_after(program: CodeType) -> dict[str, Any]:
    space: dict[str, Any] = {"__name__": "package.large", "__builtins__": builtins}
    exec(program, space)
    return space


def test_a_compressed_module_is_the_same_module(plugin: ModuleType) -> None:
    small = plugin.compressed(code())
    assert len(marshal.dumps(small)) < len(marshal.dumps(code())) / 3
    space = names_after(small)
    assert space.keys() == names_after(code()).keys()
    assert space["function_7"](1) == 8
    assert space["function_7"].__globals__ is space
    assert space["function_7"].__module__ == "package.large"
    assert space["function_7"].__code__.co_filename == small.co_filename == FILE


def test_small_modules_stay(plugin: ModuleType) -> None:
    tiny = code("answer = 42\n")
    assert plugin.compressed(tiny) is tiny


def test_an_error_keeps_its_line(plugin: ModuleType) -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        names_after(plugin.compressed(code(SOURCE + "1 / 0\n")))
    place = traceback.extract_tb(caught.value.__traceback__)[-1]
    assert (place.filename, place.lineno) == (FILE, 121)


@pytest.mark.parametrize(
    ("name", "stays"),
    [("enum", True), ("encodings.aliases", True), ("encodings.big5", False), ("package.large", False)],
)
def test_what_every_start_imports_stays(plugin: ModuleType, name: str, stays: bool) -> None:
    given = code()
    made = plugin.MindnanoBytecode().onFrozenModuleBytecode(name, False, given)
    assert (made is given) is stays


def test_equal_code_gives_equal_bytes(plugin: ModuleType) -> None:
    one, two = (plugin.MindnanoBytecode().onFrozenModuleBytecode("package.large", False, code()) for _ in range(2))
    assert marshal.dumps(one) == marshal.dumps(two)
