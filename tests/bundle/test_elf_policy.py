"""A file that breaks a rule and passes, or the other way round. Each file is linked (or patched) to break one rule."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from bundle.elf_policy import ElfReport, check, load_rules, newest_versions, read_facts
from bundle.errors import BundleError
from bundle.payload import pack
from engine.toolchain import TARGETS, toolchain_for
from tests.support.rknn_wheel import real_librknnrt

BOTH = ("x86_64", "aarch64")
PROGRAM = '#include <stdio.h>\nint main(void) {\n    return puts("x") < 0;\n}\n'
LIBRARY = "int answer(void);\nint answer(void) {\n    return 42;\n}\n"
CALLER = "int answer(void);\nint main(void) {\n    return answer();\n}\n"
THREAD = """#include <pthread.h>
static void *body(void *p) {
    return p;
}
int main(void) {
    pthread_t thread;
    return pthread_create(&thread, 0, body, 0);
}
"""

Link = Callable[..., Path]


@pytest.fixture
def link(tmp_path: Path) -> Link:
    def run(target: str, *words: str, source: str = PROGRAM, triple: str | None = None) -> Path:
        (tmp_path / "source.c").write_text(source, encoding="utf-8")
        toolchain = toolchain_for(TARGETS[target])
        program = toolchain.cc[0]
        command = [program, "cc", "-target", triple or TARGETS[target].shared_triple, "-g0", "-s", *words]
        toolchain.run([*command, str(tmp_path / "source.c"), "-o", str(tmp_path / "linked")], "link a test program")
        return tmp_path / "linked"

    return run


def broken(report: ElfReport) -> list[str]:
    return [finding.rule for finding in report.findings]


def patched(path: Path, segment: int, change: Callable[[int], int]) -> Path:
    """The file with changed flags in its program headers of a type."""
    data = bytearray(path.read_bytes())
    start, size, count = struct.unpack_from("<Q", data, 32)[0], *struct.unpack_from("<HH", data, 54)
    for index in range(count):
        kind, flags = struct.unpack_from("<II", data, start + index * size)
        if kind == segment:
            struct.pack_into("<I", data, start + index * size + 4, change(flags))
    path.write_bytes(data)
    return path


@pytest.mark.parametrize("target", BOTH)
def test_linked_programs_pass(link: Link, target: str) -> None:
    for words in ((), ("-pie",), ("-lm", "-lpthread", "-ldl")):
        report = check(link(target, *words), "program", target, forbidden=[b"/nowhere"])
        assert report.passed, report.text()
        assert report.text().startswith(f"linked: passes policy program for {target}")


@pytest.mark.parametrize("target", BOTH)
@pytest.mark.parametrize(
    ("words", "rule", "found"),
    [
        (("-Wl,-z,norelro",), "relro", "no PT_GNU_RELRO"),
        (("-Wl,-z,lazy",), "bind-now", "lazy binding"),
        (("-Wl,-rpath,$ORIGIN",), "run-path", "$ORIGIN"),
        (("-Wl,--dynamic-linker=/opt/ld.so",), "interpreter", "/opt/ld.so"),
    ],
)
def test_link_options_that_break_one_rule(link: Link, target: str, words: Sequence[str], rule: str, found: str) -> None:
    report = check(link(target, *words), "program", target)
    assert broken(report) == [rule], report.text()
    assert found in report.findings[0].found


@pytest.mark.parametrize("target", BOTH)
def test_libraries_that_are_not_on_every_board_are_found(link: Link, target: str, tmp_path: Path) -> None:
    link(target, "-shared", "-Wl,-soname,libstdc++.so.6", source=LIBRARY).rename(tmp_path / "libother.so")
    path = link(target, str(tmp_path / "libother.so"), source=CALLER)
    report = check(path, "program", target)
    assert broken(report) == ["needed"]
    assert report.findings[0].found == "libstdc++.so.6"


@pytest.mark.parametrize("target", BOTH)
def test_newer_glibc_is_found(link: Link, target: str) -> None:
    path = link(target, source=THREAD, triple=f"{target}-linux-gnu.2.34")
    report = check(path, "program", target)
    assert set(broken(report)) == {"version"}
    assert "GLIBC_2.34" in [finding.found for finding in report.findings]
    assert check(link(target, source=THREAD), "program", target).passed


def test_small_pages_of_aarch64_are_found(link: Link) -> None:
    report = check(link("aarch64", "-Wl,-z,max-page-size=4096"), "program", "aarch64")
    assert broken(report) == ["page"]
    assert check(link("x86_64", "-Wl,-z,max-page-size=65536"), "program", "x86_64").passed


def test_other_machines_are_found(link: Link) -> None:
    report = check(link("x86_64"), "program", "aarch64")
    assert "machine" in broken(report)
    assert report.findings[0].found == "EM_X86_64"
    small = link("x86_64", "-shared", "-nostdlib", source=LIBRARY, triple="x86-linux-musl")
    assert {"machine", "class"} <= set(broken(check(small, "rknn", "x86_64")))


def test_libraries_and_objects_are_no_programs(link: Link) -> None:
    assert "interpreter" in broken(check(link("x86_64", "-shared", source=LIBRARY), "program", "x86_64"))
    assert "type" in broken(check(link("x86_64", "-c"), "program", "x86_64"))


@pytest.mark.parametrize("target", BOTH)
def test_dangerous_memory_is_found(link: Link, target: str) -> None:
    stack, load = 0x6474E551, 1
    assert broken(check(patched(link(target), stack, lambda flags: flags | 1), "program", target)) == ["stack"]
    report = check(patched(link(target), load, lambda flags: flags | (2 if flags & 1 else 0)), "program", target)
    assert broken(report) == ["writable-code"]
    data = bytearray(link(target).read_bytes())
    data = data.replace(struct.pack("<QQ", 30, 8), struct.pack("<QQ", 30, 8 | 4))  # DT_FLAGS: + DF_TEXTREL
    path = link(target)
    path.write_bytes(data)
    assert broken(check(path, "program", target)) == ["text-relocations"]


def test_missing_stack_segment_means_an_executable_stack(link: Link) -> None:
    path = link("x86_64")
    data = path.read_bytes().replace(struct.pack("<I", 0x6474E551), struct.pack("<I", 0x6474E5FF))
    path.write_bytes(data)
    assert broken(check(path, "program", "x86_64")) == ["stack"]


def test_paths_of_the_build_are_found_wherever_they_are(link: Link, tmp_path: Path) -> None:
    source = PROGRAM.replace('"x"', '"/home/somebody/build/x"')
    path = link("x86_64", source=source)
    report = check(path, "program", "x86_64", forbidden=[b"/home/nobody", b"/home/somebody"])
    assert broken(report) == ["string"]
    assert "/home/somebody/build/x" in report.findings[0].found
    carried = pack(link("x86_64"), tmp_path / "packed", {"note": b"made in /home/somebody/build"})
    assert broken(check(carried.path, "program", "x86_64", forbidden=[b"/home/somebody"])) == ["string"]
    assert check(carried.path, "program", "x86_64", forbidden=[b"/home/nobody"]).passed


def test_real_librknnrt_passes_its_own_policy_only() -> None:
    path = real_librknnrt()
    assert check(path, "rknn", "aarch64").passed
    assert {"interpreter", "needed", "version", "run-path"} == set(broken(check(path, "program", "aarch64")))


@pytest.mark.parametrize("data", [b"", b"\x7fELF", b"text" * 100, b"\x7fELF\x02\x01\x01" + b"\xff" * 200])
def test_what_is_no_elf_file_is_called_so(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "file").write_bytes(data)
    with pytest.raises(BundleError, match="cannot be read as an ELF file"):
        read_facts(tmp_path / "file")


def test_cut_files_are_called_unreadable_or_break_rules(link: Link) -> None:
    path = link("x86_64")
    data = path.read_bytes()
    for length in range(64, len(data), len(data) // 37):
        path.write_bytes(data[:length])
        try:
            passed = check(path, "program", "x86_64").passed
        except BundleError:
            continue
        assert not passed, f"cut to {length}"


def test_report_can_be_read_by_programs(link: Link) -> None:
    report = check(link("x86_64", "-Wl,-rpath,/x"), "program", "x86_64")
    document = json.loads(json.dumps(report.document()))
    assert (document["schema"], document["passed"]) == ("mindnano.elf-report", False)
    assert document["findings"] == [{"rule": "run-path", "found": "/x", "expected": "none"}]
    assert document["facts"]["needed"] == ["libc.so.6"]
    assert "run-path: found /x; expected none" in report.text()


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ((r"version = 1", "version = 2"), "version 1 is expected"),
        ((r"bind_now = true\n", ""), "bind_now"),
        ((r"bind_now = true\n", 'bind_now = true\nbind_later = "x"\n'), "bind_later"),
        ((r"\[budget\]", "[extra]\na = 1\n[budget]"), "nothing is called extra"),
        ((r"total = [0-9.]+", 'total = "much"'), "much"),
    ],
)
def test_rules_that_cannot_be_right_are_refused(tmp_path: Path, change: tuple[str, str], expected: str) -> None:
    from bundle.elf_policy import RULES_FILE

    text = re.sub(change[0], change[1], RULES_FILE.read_text(encoding="utf-8"), count=1)
    (tmp_path / "rules.toml").write_text(text, encoding="utf-8")
    with pytest.raises(BundleError, match=expected):
        load_rules(tmp_path / "rules.toml")


def test_unknown_policies_are_refused(link: Link) -> None:
    for policy, target in (("other", "x86_64"), ("program", "riscv64")):
        with pytest.raises(BundleError, match="no policy"):
            check(link("x86_64"), policy, target)


def test_versions_are_compared_by_number() -> None:
    assert newest_versions(["GLIBC_2.9", "GLIBC_2.28", "GLIBC_2.2.5", "CXXABI_1.3.11", "odd"]) == {
        "GLIBC": "2.28",
        "CXXABI": "1.3.11",
    }
