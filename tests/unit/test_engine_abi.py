"""A binding that disagrees with the header: a struct's layout, a missing function, another interface version."""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import engine_abi as abi
from launcher.engine_types import Dtype, KvType, Logits, Section
from launcher.errors import EngineError

ROOT = Path(__file__).resolve().parents[2]
HEADER = (ROOT / "engine" / "include" / "ling3.h").read_text(encoding="utf-8")
STRUCTS: dict[str, type[ctypes.Structure]] = {
    "l3_error": abi.CError,
    "l3_config": abi.CConfig,
    "l3_tensor_info": abi.CTensorInfo,
    "l3_utf8_stream": abi.CUtf8Stream,
    "l3_engine_options": abi.CEngineOptions,
    "l3_session_options": abi.CSessionOptions,
    "l3_plan_term": abi.CPlanTerm,
    "l3_memory_plan": abi.CMemoryPlan,
    "l3_export_info": abi.CExportInfo,
    "l3_sampling": abi.CSampling,
    "l3_choice": abi.CChoice,
}
CONSTANTS = {
    "L3_ABI_VERSION": abi.ABI_VERSION,
    "L3_MAX_STOP_IDS": abi.MAX_STOP_IDS,
    "L3_PLAN_MAX_TERMS": abi.PLAN_MAX_TERMS,
    "L3_NO_TOKEN": abi.NO_TOKEN,
    "L3_TOKENIZE_SPECIAL": abi.TOKENIZE_SPECIAL,
    **{f"L3_KV_{kind.name}": int(kind) for kind in KvType},
    **{f"L3_LOGITS_{mode.name}": int(mode) for mode in Logits},
    **{f"L3_SECTION_{section.name}": int(section) for section in Section},
    **{f"L3_{dtype.name}": int(dtype) for dtype in Dtype},
}


def c_facts(tmp_path: Path) -> dict[str, int]:
    """What a C compiler says about the header: sizes, offsets, constants."""
    lines = []
    for name, struct in STRUCTS.items():
        lines.append(f'printf("{name} %zu\\n", sizeof({name}));')
        for field, *_ in struct._fields_:
            lines.append(f'printf("{name}.{field} %zu\\n", offsetof({name}, {field}));')
    lines += [f'printf("{name} %lld\\n", (long long){name});' for name in CONSTANTS]
    source = tmp_path / "facts.c"
    source.write_text(
        '#include "ling3.h"\n#include <stdio.h>\nint main(void) {\n' + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    program = tmp_path / "facts"
    compiler = [sys.executable, "-m", "ziglang", "cc"]
    subprocess.run([*compiler, "-I", str(ROOT / "engine" / "include"), str(source), "-o", str(program)], check=True)
    said = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split() for line in said.splitlines())}


def test_structs_and_constants_are_those_of_the_header(tmp_path: Path) -> None:
    ours: dict[str, int] = dict(CONSTANTS)
    for name, struct in STRUCTS.items():
        ours[name] = ctypes.sizeof(struct)
        for field, *_ in struct._fields_:
            ours[f"{name}.{field}"] = getattr(struct, field).offset
    assert c_facts(tmp_path) == ours


def test_every_function_of_the_header_is_bound_with_its_number_of_arguments() -> None:
    declared = {}
    for name, arguments in re.findall(r"L3_API\s[^;]*?\b(l3_\w+)\(([^;]*?)\);", HEADER):
        declared[name] = 0 if arguments.strip() == "void" else len(arguments.split(","))
    assert {name: len(arguments) for name, (_, arguments) in abi._PROTOTYPES.items()} == declared


def build(tmp_path: Path, source: str) -> Path:
    (tmp_path / "x.c").write_text(source)
    library = tmp_path / "x.so"
    subprocess.run(
        [sys.executable, "-m", "ziglang", "cc", "-shared", "-fPIC", str(tmp_path / "x.c"), "-o", str(library)],
        check=True,
    )
    return library


@pytest.mark.parametrize(
    ("source", "slug"),
    [
        ("unsigned l3_abi_version(void) { return 999; }", "engine-abi"),
        (f"unsigned l3_abi_version(void) {{ return {abi.ABI_VERSION}; }}", "engine-symbol"),
        ("int other(void) { return 0; }", "engine-symbol"),
    ],
)
def test_foreign_library_is_refused(tmp_path: Path, source: str, slug: str) -> None:
    with pytest.raises(EngineError) as caught:
        abi.load(build(tmp_path, source))
    assert caught.value.slug == slug


def test_missing_and_broken_libraries_are_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError) as caught:
        abi.load(tmp_path / "none.so")
    assert caught.value.slug == "engine-missing"
    (tmp_path / "text.so").write_text("no library")
    with pytest.raises(EngineError) as caught:
        abi.load(tmp_path / "text.so")
    assert caught.value.slug == "engine-load"


def test_library_is_looked_up_in_order() -> None:
    assert abi.library_path(Path("/a"), {"MINDNANO_ENGINE": "/b"}) == Path("/a")
    assert abi.library_path(None, {"MINDNANO_ENGINE": "/b"}) == Path("/b")
    assert abi.library_path(None, {}) == ROOT / "build" / abi.native_target() / "libling3.so"
