"""Parts of a build that no licence covers, licences of what is not inside, and texts that are not their authors'."""

from __future__ import annotations

import dataclasses
import io
import random
import re
import shutil
import subprocess
import tarfile
import tomllib
from collections.abc import Iterator
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path

import pytest

from bundle import python_packages
from bundle.origins import archive_origins, distribution_origins
from bundle.sources import load_sources
from bundle.stages import plan
from bundle.store import Store
from engine import icu
from engine.fetch import Archive as SourceArchive
from engine.fetch import cache_root, file_sha256
from engine.toolchain import TARGETS, find_zig
from launcher.errors import PackageError, UsageError
from launcher.payload import notices as shown
from launcher.payload.file import is_safe_name
from notices.collect import Inventory, Kind, Ownership, PayloadFile, assign_owners
from notices.compilation import normalised_name, parse_report
from notices.components import Component, Text, license_fault, load_components, read_texts
from notices.errors import NoticeError
from notices.linked import Archive, ObjectFile, linked_files, linker_command, read_archive
from notices.render import DOCUMENT, INDEX, SCHEMA, VERSION, render_notices
from tests.bundle.inventories import (
    ARCHIVES,
    OBJECTS,
    PACKAGES,
    PAYLOAD,
    REPORT,
    ROCKCHIP_TEXT,
    SUPPLIED,
    inventory,
    module,
    with_known_terms,
)
from tests.support.availability import unavailable

ROOT = Path(__file__).resolve().parents[2]
COMPONENTS = load_components()
TEXTS = [
    pytest.param(component, text, id=f"{component.key}-{text.file}")
    for component in COMPONENTS
    for text in component.texts
    if not text.supplied_sha256
]
COMMON_LICENCES = Path("/usr/share/common-licenses")


def component(key: str) -> Component:
    return next(one for one in COMPONENTS if one.key == key)


@pytest.fixture(scope="module")
def ownership() -> Ownership:
    return assign_owners(inventory(), with_known_terms(COMPONENTS))


def faults(build: Inventory) -> list[str]:
    with pytest.raises(NoticeError) as caught:
        assign_owners(build, COMPONENTS)
    assert caught.value.slug == "notices-ownership"
    assert caught.value.exit_code == 1
    return [line.strip() for line in caught.value.message.splitlines()[1:]]


# Texts


def source_texts(component: Component, text: Text) -> Iterator[str]:
    """The text where it comes from, as far as that is on this machine."""
    if text.archive:
        path = COMMON_LICENCES / text.file
        if path.is_file():
            yield path.read_text(encoding="utf-8")
    elif component.source == "project":
        yield (ROOT / text.origin).read_text(encoding="utf-8")
    elif component.source == "pypi:nuitka":  # not installed here, but among what the build fetched
        fetched = Store.of_user().find(plan([python_packages.nuitka()])[-1])
        for path in () if fetched is None else (fetched / python_packages.FILES).iterdir():
            yield from texts_in(path, text.origin)
    elif component.source.startswith("pypi:"):
        yield from installed_texts(component.source.removeprefix("pypi:"), text.origin)
    else:
        name = component.source.removeprefix("archive:")
        archive = load_sources()[name].archive if component.source.startswith("archive:") else icu.ARCHIVE
        yield from archived_texts(archive, text.origin)


def installed_texts(name: str, pattern: str) -> Iterator[str]:
    try:
        files = metadata.files(name) or []
    except metadata.PackageNotFoundError:
        return
    for file in files:
        if fnmatchcase(str(file), pattern) or fnmatchcase(f"./{file}", pattern):
            yield Path(str(file.locate())).read_text(encoding="utf-8")


def archived_texts(archive: SourceArchive, pattern: str) -> Iterator[str]:
    path = cache_root() / "sources" / f"{archive.sha256[:16]}-{archive.names[0]}"
    if path.is_file() and file_sha256(path) == archive.sha256:
        yield from texts_in(path, pattern)


def texts_in(path: Path, pattern: str) -> Iterator[str]:
    with tarfile.open(path) as tar:
        for member in tar:
            # `*` is the folder at the top and does not reach further down.
            if member.name.count("/") == pattern.count("/") and fnmatchcase(member.name, pattern):
                stream = tar.extractfile(member)
                assert stream is not None
                yield stream.read().decode()
                return


@pytest.mark.parametrize(("component", "text"), TEXTS)
def test_text_is_word_for_word_that_of_the_source(component: Component, text: Text) -> None:
    found = next(source_texts(component, text), None)
    if found is None:
        unavailable(f"{component.source} is not on this machine")
    if text.lines is not None:
        first, last = text.lines
        found = "".join(found.splitlines(keepends=True)[first - 1 : last])
    assert component.path(text).read_text(encoding="utf-8") == found


def test_every_run_time_dependency_is_described() -> None:
    described = {one.source.removeprefix("pypi:") for one in COMPONENTS if one.source.startswith("pypi:")}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed, waiting = set[str](), list(project["dependencies"])
    while waiting:
        requirement = waiting.pop()
        name = normalised_name(re.split(r"[^A-Za-z0-9._-]", requirement)[0])
        if "extra ==" not in requirement and name not in needed:
            needed.add(name)
            waiting += metadata.requires(name) or []
    assert needed >= {"jinja2", "requests", "prompt-toolkit", "certifi"}
    assert needed <= described


def test_python_packages_are_locked() -> None:
    lock = (ROOT / "requirements" / "run.txt").read_text(encoding="utf-8")
    locked = dict(re.findall(r"^([a-z0-9-]+)==(\S+)", lock, flags=re.MULTILINE))
    assert {name: locked.get(name) for name in PACKAGES} == {name: metadata.version(name) for name in PACKAGES}


def test_source_archives_are_the_pinned_ones() -> None:
    sources = load_sources()
    for one in COMPONENTS:
        kind, _, name = one.source.rpartition(":")
        if kind == "archive":
            assert name in sources
    for name, source in sources.items():
        assert component(name).license.split(" AND ")[0] == source.licence
        assert archive_origins(sources)[f"archive:{name}"].patches == source.patches


@pytest.mark.parametrize(
    "expression", ["", "BSD", "GPL-2.0+ OR", "Apache-2.0 WITH nothing", "MIT and BSD-3-Clause", "LicenseRef_x"]
)
def test_wrong_licence_expression_is_refused(expression: str) -> None:
    assert license_fault(expression)


def test_licence_that_spdx_does_not_know_needs_a_reference() -> None:
    assert license_fault("LicenseRef-Rockchip AND MIT") == ""
    assert component("librknnrt").references == ("LicenseRef-Rockchip",)


def described(folder: Path, description: str) -> Path:
    """A folder of components with zlib alone, described anew."""
    shutil.copytree(component("zlib").folder, folder / "zlib")
    (folder / "zlib" / "component.toml").write_text(description, encoding="utf-8")
    return folder


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('license = "Zlib"', 'license = "zlib licence"', "no SPDX expression"),
        ('license = "Zlib"', 'licence = "Zlib"', "lacks license"),
        ('license = "Zlib"', 'license = "LicenseRef-Z"', "refers to"),
        ('file = "LICENSE"', 'file = "COPYING"', "COPYING is missing"),
        ('archives = ["libz.a"]', "", "own something"),
        ('archives = ["libz.a"]', 'archives = "libz.a"', "not a list"),
        ('source = "archive:zlib"', 'source = "https://zlib.net/"', "neither a pin"),
        ("[owns]", "[owned]", "unknown owned"),
        ("[[texts]]", 'source_version = "1"\n[[texts]]', "version of its own"),
        ("[[texts]]", 'within = "nothing"\n[[texts]]', "within"),
        ('name = "zlib"', "name = ", "Invalid value"),
    ],
)
def test_wrong_description_is_refused(tmp_path: Path, old: str, new: str, fault: str) -> None:
    description = (component("zlib").folder / "component.toml").read_text(encoding="utf-8")
    assert old in description
    with pytest.raises(NoticeError, match=fault):
        load_components(described(tmp_path, description.replace(old, new, 1)))


def test_text_that_no_description_mentions_is_refused(tmp_path: Path) -> None:
    described(tmp_path, (component("zlib").folder / "component.toml").read_text(encoding="utf-8"))
    assert [one.key for one in load_components(tmp_path)] == ["zlib"]
    (tmp_path / "zlib" / "COPYING").write_text("other terms\n", encoding="utf-8")
    with pytest.raises(NoticeError, match="COPYING is no text of it"):
        load_components(tmp_path)


# Owners


def test_whole_build_has_an_owner_for_every_part(ownership: Ownership) -> None:
    owned = {part.name for one in ownership.owned for part in one.parts}
    assert owned >= {*OBJECTS, *PAYLOAD, *(name for name in ARCHIVES)}
    assert {"libpython3.13.a:Hacl_Hash_MD5.o"} == {
        part.name for part in ownership["hacl-star"].parts if part.kind is Kind.MEMBER
    }
    assert "json.decoder" in {part.name for part in ownership["cpython"].parts}
    assert ownership["icu"].parts == ownership["mimalloc"].parts == ()
    assert ownership["requests"].version == "2.34.2"
    assert {one.component.key for one in ownership.owned} == {one.key for one in COMPONENTS} - {"llvm-cxx"}


@pytest.mark.parametrize(
    ("gone", "unused"),
    [
        ("libz.a", "zlib"),
        ("libmpdec.a", "libmpdec"),
        ("libcompiler_rt.a", "compiler-rt"),
        ("certifi", "certifi"),
        ("wcwidth", "wcwidth"),
    ],
)
def test_component_of_which_nothing_is_inside_is_named(gone: str, unused: str) -> None:
    without = (gone, "certs/cacert.pem") if gone == "certifi" else (gone,)
    (fault,) = faults(inventory(without=without))
    assert fault.startswith(f"unused: {unused} ")


@pytest.mark.parametrize(("gone", "left_out"), [("lib/librknnrt.so", "librknnrt"), ("models/demo.l3r", "demo-model")])
def test_what_a_build_may_leave_out_is_not_in_its_notices(gone: str, left_out: str) -> None:
    left = assign_owners(inventory(without=(gone,)), COMPONENTS)
    assert left_out not in {one.component.key for one in left.owned}


def test_every_orphan_is_named_at_once() -> None:
    build = inventory()
    compiled = dataclasses.replace(
        build.compilation,
        modules=(*build.compilation.modules, module("pygments.lexer", "pygments"), module("stray")),
        metadata=(*build.compilation.metadata, "pygments"),
    )
    build = dataclasses.replace(
        build,
        archives=(*build.archives, Archive(name="libgmp.a", sha256="0" * 64, members=("a.o",))),
        objects=(*build.objects, ObjectFile(name="crtbeginS.o", sha256="0" * 64)),
        payload=(*build.payload, PayloadFile(name="lib/libmystery.so", sha256="0" * 64)),
        compilation=compiled,
    )
    found = faults(build)
    assert len(found) == 6
    for kind, name in (
        (Kind.ARCHIVE, "libgmp.a"),
        (Kind.OBJECT, "crtbeginS.o"),
        (Kind.MODULE, "pygments.lexer"),
        (Kind.MODULE, "stray"),
        (Kind.METADATA, "pygments"),
        (Kind.PAYLOAD, "lib/libmystery.so"),
    ):
        assert f"orphan: the {kind.value} {name} belongs to no component" in found


def test_package_with_a_similar_name_is_an_orphan() -> None:
    build = inventory()
    modules = (*build.compilation.modules, module("requests_toolbelt", "requests-toolbelt"))
    build = dataclasses.replace(build, compilation=dataclasses.replace(build.compilation, modules=modules))
    assert faults(build) == ["orphan: the Python module requests_toolbelt belongs to no component"]


def test_module_that_another_distribution_installed_is_named() -> None:
    build = inventory()
    modules = (*build.compilation.modules, module("requests.sneaky", "unrelated"))
    build = dataclasses.replace(build, compilation=dataclasses.replace(build.compilation, modules=modules))
    assert faults(build) == ["foreign: unrelated installed the module requests.sneaky, which belongs to requests"]


def test_part_that_two_claim_is_disputed() -> None:
    twice = (*COMPONENTS, dataclasses.replace(component("zlib"), key="zlib-again"))
    with pytest.raises(NoticeError, match=r"disputed: the static library libz.a belongs to zlib and zlib-again"):
        assign_owners(inventory(), twice)


def test_version_that_was_not_compiled_is_named() -> None:
    build = inventory()
    compiled = dataclasses.replace(build.compilation, distributions={"idna": "3.19"}, version="4.3.2")
    found = faults(dataclasses.replace(build, compilation=compiled))
    assert found == [
        "outdated: the build took idna 3.20; the compilation used 3.19",
        "outdated: the build took nuitka 4.3.3; the compilation used 4.3.2",
    ]


def test_copy_in_another_version_of_its_source_is_named() -> None:
    build = inventory()
    newer = dataclasses.replace(build.origins["archive:cpython"], version="3.13.6")
    found = faults(dataclasses.replace(build, origins={**build.origins, "archive:cpython": newer}))
    copies = ("blake2", "expat", "hacl-star", "libmpdec", "mimalloc")
    assert found == [f"outdated: {key} describes archive:cpython 3.13.5; the build has 3.13.6" for key in copies]


def test_pin_that_the_build_says_nothing_about_is_named() -> None:
    build = inventory()
    origins = {name: origin for name, origin in build.origins.items() if name != "archive:zlib"}
    (fault,) = faults(dataclasses.replace(build, origins=origins))
    assert fault == "unknown: the build does not say what it took for archive:zlib (zlib)"


def test_distributions_on_disk_become_origins(tmp_path: Path) -> None:
    wheel, sdist = tmp_path / "charset_normalizer-3.5.3-py3-none-any.whl", tmp_path / "nuitka-4.3.3.tar.gz"
    wheel.write_bytes(b"wheel")
    sdist.write_bytes(b"sdist")
    found = distribution_origins([wheel, sdist])
    assert {name: origin.version for name, origin in found.items()} == {
        "pypi:charset-normalizer": "3.5.3",
        "pypi:nuitka": "4.3.3",
    }
    assert found["pypi:nuitka"].sha256 == file_sha256(sdist)


# What Nuitka and the linker say


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


# What the program carries


@pytest.fixture(scope="module")
def files(ownership: Ownership) -> dict[str, bytes]:
    return dict(render_notices(ownership, SUPPLIED))


def test_notices_hold_every_text_once(ownership: Ownership, files: dict[str, bytes]) -> None:
    document = files[DOCUMENT].decode()
    for one in ownership.owned:
        assert f"\n{one.component.name} {one.version}\n" in document
        for text, content in read_texts(one.component, SUPPLIED):
            assert content.replace("\r\n", "\n").strip("\n") in document, (one.component.key, text.file)
    distinct = {content for one in ownership.owned for _, content in read_texts(one.component, SUPPLIED)}
    assert len(re.findall(r"^\[\d+\] of ", document, flags=re.MULTILINE)) == len(distinct)
    assert document.count((ROOT / "LICENSE").read_text(encoding="utf-8").strip("\n")) == 1


def test_notices_depend_on_the_build_alone(files: dict[str, bytes]) -> None:
    build, shuffle = inventory(), random.Random(3).sample
    shuffled = dataclasses.replace(
        build,
        archives=tuple(shuffle(build.archives, len(build.archives))),
        objects=tuple(shuffle(build.objects, len(build.objects))),
        payload=tuple(shuffle(build.payload, len(build.payload))),
    )
    assert render_notices(assign_owners(shuffled, with_known_terms(COMPONENTS)), SUPPLIED) == files
    everything = b"".join(files.values())
    assert str(ROOT).encode() not in everything
    assert str(Path.home()).encode() + b"/" not in everything


def test_names_of_notices_can_be_carried(files: dict[str, bytes]) -> None:
    assert all(is_safe_name(name) for name in files)
    assert len(files) == len(COMPONENTS) - 1 + 2


def test_reader_and_writer_agree_on_names() -> None:
    assert (shown.DOCUMENT, shown.INDEX, shown.SCHEMA, shown.VERSION) == (DOCUMENT, INDEX, SCHEMA, VERSION)


@pytest.mark.parametrize("supplied", [{}, {("librknnrt", "LICENSE"): b"other terms\n"}])
def test_terms_of_the_rockchip_runtime_are_neither_left_out_nor_replaced(
    supplied: dict[tuple[str, str], bytes],
) -> None:
    with pytest.raises(NoticeError, match="librknnrt/LICENSE") as caught:
        render_notices(assign_owners(inventory(), COMPONENTS), supplied)
    assert "airockchip/rknn-llm" in caught.value.hint


def test_line_ends_of_terms_that_are_handed_over_do_not_matter(ownership: Ownership, files: dict[str, bytes]) -> None:
    supplied = {("librknnrt", "LICENSE"): ROCKCHIP_TEXT.replace(b"\n", b" \r\n")}
    assert b"stand-in for librknnrt" in render_notices(ownership, supplied)["notices/librknnrt.txt"]


# What the program prints of it


class Carried:
    """A payload in memory."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.members = files

    def read(self, name: str) -> bytes:
        return self.members[name]


def test_program_prints_all_notices_or_those_of_one_component(files: dict[str, bytes]) -> None:
    out = io.StringIO()
    assert shown.run_notices(None, out, Carried(files)) == 0
    assert out.getvalue().encode() == files[DOCUMENT]
    for word in ("openssl", "OpenSSL"):
        out = io.StringIO()
        shown.run_notices(word, out, Carried(files))
        assert out.getvalue().encode() == files["notices/openssl.txt"]


def test_program_prints_the_bill_of_materials() -> None:
    out = io.StringIO()
    assert shown.run_sbom(out, Carried({"sbom.cdx.json": b"{}\n"})) == 0
    assert out.getvalue() == "{}\n"


def test_unknown_component_is_answered_with_the_known_ones(files: dict[str, bytes]) -> None:
    with pytest.raises(UsageError) as caught:
        shown.run_notices("gmp", io.StringIO(), Carried(files))
    assert "openssl" in caught.value.hint


def test_source_checkout_says_where_its_licences_are() -> None:
    for run in (lambda: shown.run_notices(None, io.StringIO(), None), lambda: shown.run_sbom(io.StringIO(), None)):
        with pytest.raises(UsageError) as caught:
            run()
        assert caught.value.slug == "notices-none"
        assert "LICENSES.md" in caught.value.hint


@pytest.mark.parametrize("index", [b"{}", b"[]", b'{"schema": "other", "version": 1, "components": []}', b"\xff"])
def test_damaged_notices_are_no_crash(index: bytes) -> None:
    for files in ({INDEX: index}, {}):
        with pytest.raises(PackageError):
            shown.run_notices("zlib", io.StringIO(), Carried(files))
