"""A compiled module asks for a function of Python that the program does not have, and only its users find out."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from bundle import python_api
from bundle.errors import BundleError
from engine.toolchain import TARGETS, find_zig

ZIG = str(find_zig()[0])


@pytest.fixture(params=TARGETS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Path, Path]:
    """A program that exports two functions, and a library that wants these and one of the C library."""
    target = TARGETS[str(request.param)].shared_triple

    def link(name: str, code: str, *words: str) -> Path:
        (tmp_path / f"{name}.c").write_text(code, encoding="utf-8")
        command = [ZIG, "cc", "-target", target, "-g0", f"{name}.c", "-o", name, *words]
        subprocess.run(command, cwd=tmp_path, check=True, capture_output=True)
        return tmp_path / name

    program = link(
        "program",
        "int PyA(void) { return 1; }\nint _PyB(void) { return 2; }\nint main(void) { return 0; }\n",
        "-rdynamic",
    )
    library = link(
        "library.so",
        "#include <stdlib.h>\nint PyA(void);\nint _PyB(void);\nint sum(void) { return PyA() + _PyB() + abs(-1); }\n",
        *("-shared", "-fPIC", "-Wl,--allow-shlib-undefined"),
    )
    return program, library


def test_what_is_wanted_and_exported_is_read(files: tuple[Path, Path]) -> None:
    program, library = files
    assert python_api.wanted(library) == {"PyA", "_PyB"}
    assert python_api.exported(program) >= {"PyA", "_PyB"}
    python_api.require(program, library)


def test_all_that_is_missing_is_named(files: tuple[Path, Path]) -> None:
    _, library = files
    with pytest.raises(BundleError, match=r"wants PyA, _PyB, which the program does not export"):
        python_api.require(library, library)


def test_a_library_that_is_no_module_is_refused(files: tuple[Path, Path]) -> None:
    program, _ = files
    with pytest.raises(BundleError, match="no module of Python"):
        python_api.require(program, program)


def test_what_is_no_elf_file_is_named(files: tuple[Path, Path], tmp_path: Path) -> None:
    (tmp_path / "text.so").write_text("text", encoding="utf-8")
    with pytest.raises(BundleError, match=r"text\.so cannot be read"):
        python_api.require(files[0], tmp_path / "text.so")
