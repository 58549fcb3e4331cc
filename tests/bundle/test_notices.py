"""Parts of a build that no licence covers, licences of what is not inside, and texts that are not their authors'."""

from __future__ import annotations

import dataclasses
import re
import shutil
import tarfile
import tomllib
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from bundle import python_packages
from bundle.origins import archive_origins, distribution_origins
from bundle.sources import load_sources
from bundle.stages import Stage, plan
from bundle.store import Store
from engine import icu
from engine.fetch import Archive as SourceArchive
from engine.fetch import cache_root, file_sha256
from notices.collect import Inventory, Kind, Ownership, PayloadFile, assign_owners
from notices.compilation import normalised_name
from notices.components import Component, Text, license_fault, load_components
from notices.errors import NoticeError
from notices.linked import Archive, ObjectFile
from tests.bundle.inventories import (
    ARCHIVES,
    OBJECTS,
    PACKAGES,
    PAYLOAD,
    inventory,
    module,
)
from tests.support.availability import unavailable

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = {"extra": "", "python_version": "3.13", "python_full_version": "3.13.5", "sys_platform": "linux"}
COMPONENTS = load_components()
TEXTS = [
    pytest.param(component, text, id=f"{component.key}-{text.file}")
    for component in COMPONENTS
    for text in component.texts
    if not text.supplied_sha256
]
# Source archives that are not installed here, but among what the build fetched.
FETCHED: Mapping[str, Callable[[], Stage]] = {
    "pypi:nuitka": python_packages.nuitka,
    "pypi:msgspec": python_packages.packages,
}
COMMON_LICENCES = Path("/usr/share/common-licenses")


def component(key: str) -> Component:
    return next(one for one in COMPONENTS if one.key == key)


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
    elif component.source in FETCHED:
        fetched = Store.of_user().find(plan([FETCHED[component.source]()])[-1])
        for path in () if fetched is None else sorted((fetched / python_packages.FILES).glob("*.tar.gz")):
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
        # Those for other systems and older versions of Python are not in the program.
        condition = Requirement(requirement).marker
        if (condition is None or condition.evaluate(PROGRAM)) and name not in needed:
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
