"""A report of the compiler or a line of the linker that is misread, so that a part is not seen."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from engine.toolchain import TARGETS, find_zig
from notices.collect import assign_owners
from notices.compilation import parse_report
from notices.components import load_components
from notices.errors import NoticeError
from notices.linked import linked_files, linker_command, read_archive
from tests.bundle.inventories import (
    REPORT,
    inventory,
)

ROOT = Path(__file__).resolve().parents[2]
COMPONENTS = load_components()


def test_report_of_nuitka_is_understood() -> None:
    report = parse_report(REPORT.read_bytes(), REPORT.name)
    assert report.version == "4.3.3"
    assert report.metadata == ("idna",)
    assert report.distributions == {"idna": "3.20"}
    modules = {entry.name: entry for entry in report.modules}
    assert len(modules) == 10
    assert modules["idna.core"].distributions == ("idna",)
    assert not modules["idna.core"].stdlib
    assert modules["json.scanner"].stdlib
    assert modules["__main__"].kind == "PythonMainModule"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('completion="yes"', 'completion="error exit (1)"', "did not complete"),
        ("nuitka-compilation-report", "report", "outermost element"),
        ('kind="PythonMainModule"', 'kind="NewKind"', "NewKind"),
        ('kind="PythonMainModule"', 'kind="CompiledPythonModule"', "no main module"),
        ('name="idna.core" kind', 'name="idna" kind', "more than once"),
        (' source_path="app.py"', "", "lacks source_path"),
        ("</nuitka-compilation-report>", "", "no XML"),
        ("<nuitka-compilation-report ", "<!DOCTYPE x><nuitka-compilation-report ", "entities"),
    ],
)
def test_report_that_is_not_whole_is_refused(old: str, new: str, fault: str) -> None:
    text = REPORT.read_text(encoding="utf-8")
    assert old in text
    with pytest.raises(NoticeError, match=fault):
        parse_report(text.replace(old, new).encode(), "report.xml")


ZIG = str(find_zig()[0])
NAMES = ["a.o", "sixteen_chars_.o", "a_name_that_is_longer_than_sixteen_bytes.o", "with space.o"]


@pytest.mark.parametrize("form", ["gnu", "bsd", "darwin"])
def test_members_of_a_library_are_those_that_ar_lists(tmp_path: Path, form: str) -> None:
    for number, name in enumerate(NAMES):
        (tmp_path / name).write_bytes(b"x" * (number + 1))
    command = [ZIG, "ar", f"--format={form}", "rcs", "lib.a", *NAMES]
    subprocess.run(command, cwd=tmp_path, check=True)
    listed = subprocess.run([ZIG, "ar", "t", "lib.a"], cwd=tmp_path, check=True, capture_output=True, text=True)
    assert list(read_archive(tmp_path / "lib.a").members) == listed.stdout.splitlines() == NAMES


@pytest.mark.parametrize("content", [b"", b"\x7fELF", b"!<thin>\n", b"!<arch>\n" + b"x" * 60, b"!<arch>\nshort"])
def test_file_that_is_no_library_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "lib.a").write_bytes(content)
    with pytest.raises(NoticeError, match="cannot be taken apart"):
        read_archive(tmp_path / "lib.a")


@pytest.mark.parametrize("target", ["aarch64", "x86_64"])
def test_what_zig_links_by_itself_is_described(tmp_path: Path, target: str) -> None:
    (tmp_path / "start.c").write_text("int main(void) { return 0; }\n", encoding="utf-8")
    words = [ZIG, "cc", "-target", TARGETS[target].shared_triple, "-O2", "-fno-sanitize=undefined", "-v"]
    done = subprocess.run([*words, "start.c", "-o", "start"], cwd=tmp_path, check=True, capture_output=True, text=True)
    archives, objects = linked_files(linker_command(done.stderr, "start"), tmp_path)
    assert {"libc_nonshared.a", "libcompiler_rt.a"} <= {archive.name for archive in archives}
    assert {"start.o"} < {entry.name for entry in objects}
    build = inventory(without=("libc_nonshared.a", "libcompiler_rt.a", "start.o", "Scrt1.o"))
    build = dataclasses.replace(build, archives=(*build.archives, *archives), objects=(*build.objects, *objects))
    owned = assign_owners(build, COMPONENTS)
    assert {part.name for part in owned["glibc"].parts} >= {"libc_nonshared.a"}


def test_parts_of_a_joined_library_stand_for_it(tmp_path: Path) -> None:
    for name in ("libz.a", "main.o"):
        (tmp_path / name).write_bytes(b"!<arch>\n")
    (tmp_path / "libpython3.13.a").write_bytes(b"!<arch>\n")
    parts = [read_archive(tmp_path / "libpython3.13.a"), read_archive(tmp_path / "libz.a")]
    words = ["ld.lld", "-o", "program.o", "main.o", "libpython3.13.a"]
    archives, objects = linked_files(words, tmp_path, joined={"libpython3.13.a": parts})
    assert [archive.name for archive in archives] == ["libpython3.13.a", "libz.a"]
    assert [entry.name for entry in objects] == ["main.o"]
    _, (named,) = linked_files(
        words, tmp_path, joined={"libpython3.13.a": parts}, names={tmp_path / "main.o": "start.o"}
    )
    assert named.name == "start.o"
    with pytest.raises(NoticeError, match=r"libother\.a should have been linked"):
        linked_files(words, tmp_path, joined={"libother.a": parts})
