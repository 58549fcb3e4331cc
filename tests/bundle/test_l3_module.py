"""A program that does not find the engine, the model or the libraries inside itself, or takes others in their place.

The program is the interpreter of this machine linked as the product is: start-up check, `_l3`, the whole engine,
exported functions, a sealed payload. The launcher runs from source in it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from bundle.payload import Packed, pack
from bundle.program_parts import program_parts
from engine.build import build_objects, plan_build
from tests.bundle.support import NATIVE_TARGET, PROGRAMS, ROOT, stand_in_library
from tests.support.availability import unavailable
from tests.support.packages import write_package

PRELUDE = f"import json, sys\nsys.path.insert(0, {str(ROOT)!r})\nfrom pathlib import Path\n"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Packed:
    folder = tmp_path_factory.mktemp("python")
    library = Path(str(sysconfig.get_config_var("LIBDIR"))) / str(sysconfig.get_config_var("LDLIBRARY"))
    include = sysconfig.get_path("include")
    if not library.is_file() or not (Path(include) / "Python.h").is_file():
        unavailable(f"this Python has no library ({library}) or no headers to link a program with")
    parts = program_parts(NATIVE_TARGET, Path(include), out=folder)
    main = build_objects([PROGRAMS / "python_main.c"], extra_flags=("-isystem", include))
    elf = folder / "python.elf"
    words = [*map(str, main), *parts.link_words()]
    words += [str(library), f"-Wl,-rpath,{library.parent}", "-Wl,--allow-shlib-undefined"]
    toolchain = plan_build("native").toolchain
    toolchain.run([*toolchain.ld, *words, "-o", str(elf)], "link the interpreter")
    model = write_package(folder / "model.l3r")
    members = {"models/demo.l3r": model, "lib/librknnrt.so": stand_in_library(folder), "sbom.cdx.json": b"{}"}
    return pack(elf, folder / "python", members)


def answer(program: Packed, code: str, **environ: str) -> dict[str, object]:
    done = subprocess.run(
        [program.path, "-c", PRELUDE + code], env=environ, capture_output=True, text=True, cwd=program.path.parent
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_module_says_what_the_check_found(program: Packed) -> None:
    found = answer(
        program,
        "from launcher.payload.built_in import start\ns = start()\n"
        "print(json.dumps({'file': s.file_bytes, 'elf': s.elf_bytes, 'ns': s.nanoseconds, 'sha256': s.sha256}))",
    )
    assert (found["file"], found["elf"]) == (program.size, program.elf_bytes)
    assert len(str(found["sha256"])) == 64
    assert int(str(found["ns"])) > 0


def test_engine_inside_is_used_whatever_the_environment_says(program: Packed) -> None:
    found = answer(
        program,
        "from launcher.engine_library import Library\nlibrary = Library()\n"
        "print(json.dumps({'path': str(library.path), 'version': library.version, 'simd': library.simd_available}))",
        MINDNANO_ENGINE="/nonexistent/libling3.so",
        LD_LIBRARY_PATH="/nonexistent",
    )
    assert found["path"] == "/proc/self/exe"
    assert "scalar" in list(found["simd"])  # type: ignore[call-overload]


def test_model_inside_is_opened_in_place(program: Packed) -> None:
    found = answer(
        program,
        "from launcher.engine import Package\nfrom launcher.payload.carried import demo_package\n"
        "path, window = demo_package()\n"
        "Path(sys.executable).exists()\n"
        "with Package(Path(path), window=window) as package:\n"
        "    package.verify()\n"
        "    print(json.dumps({'tensors': len(package.tensors()), 'offset': window[0]}))",
    )
    assert int(str(found["tensors"])) > 10
    assert int(str(found["offset"])) % 65536 == 0


def test_demo_means_the_model_inside(program: Packed) -> None:
    found = answer(
        program,
        "from launcher.model import open_package\nfrom launcher.options.parse import parse\n"
        "with open_package(parse(['--demo'], {}), {}) as package:\n"
        "    print(json.dumps({'path': str(package.path), 'vocabulary': package.config.vocab_size}))",
    )
    assert str(found["path"]).startswith("/proc/self/fd/")
    assert found["vocabulary"] == 328


def test_library_inside_is_loaded_from_memory_here_and_in_a_child(program: Packed) -> None:
    found = answer(
        program,
        "import ctypes, os, subprocess\nfrom launcher.payload.carried import rknn_runtime\n"
        "path = rknn_runtime({})\n"
        "library = ctypes.CDLL(path)\n"
        "library.stand_in_version.restype = ctypes.c_char_p\n"
        "code = 'import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).stand_in_sum(40, 2))'\n"
        "child = subprocess.run(['/proc/self/exe', '-c', code, path], capture_output=True, text=True)\n"
        "maps = Path('/proc/self/maps').read_text()\n"
        "print(json.dumps({'path': path, 'again': rknn_runtime({}) == path, 'child': child.stdout + child.stderr,\n"
        "  'version': library.stand_in_version().decode(), 'memfd': '/memfd:librknnrt.so' in maps}))",
    )
    assert found["child"] == "42\n"
    assert found["again"] is True
    assert found["memfd"] is True
    assert str(found["version"]).startswith("librknnrt version: 2.3.2")


def test_payload_is_read_after_the_file_was_replaced(program: Packed, tmp_path: Path) -> None:
    copy = tmp_path / "python"
    copy.write_bytes(program.path.read_bytes())
    copy.chmod(0o755)
    done = subprocess.run(
        [copy, "-c", PRELUDE + f"Path({str(copy)!r}).unlink()\nPath({str(copy)!r}).write_text('new')\n"
         "from launcher.payload.carried import carried\nprint(carried().read('sbom.cdx.json').decode())"],
        env={},
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "{}\n"), done.stderr


def test_verifying_itself_again_takes_other_code(program: Packed) -> None:
    found = answer(
        program,
        "from launcher.payload.carried import carried\nfrom launcher.payload.commands import verify\n"
        "print(json.dumps({part.name: part.sound for part in verify(carried())}))",
    )
    assert set(found.values()) == {True}
    assert {"ELF", "directory", "models/demo.l3r"} <= set(found)


def test_checkout_is_not_taken_for_the_product(tmp_path: Path) -> None:
    (tmp_path / "_l3.py").write_text("def start():\n    return 1, 1, 1, 1, b''\n", encoding="utf-8")
    code = PRELUDE + "sys.path.insert(0, '.')\nfrom launcher.payload.built_in import start\nprint(start())"
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
