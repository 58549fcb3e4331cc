"""The engine's build: where sources come from, what is rebuilt, and what the libraries demand of a system."""

from __future__ import annotations

import hashlib
import re
import tarfile
import time
import tomllib
from pathlib import Path

import pytest

from engine import build, fetch, icu
from engine.errors import BuildError
from engine.fetch import Archive, apt_mirrors, obtain
from engine.toolchain import TARGETS, resolve_target

CONTENT = b"source code\n" * 1000


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MINDNANO_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MINDNANO_SOURCES", raising=False)
    monkeypatch.setattr(fetch, "_APT_HELPER", tmp_path / "no-apt-helper")
    return tmp_path / "cache"


def archive(folder: Path, *, content: bytes = CONTENT, expected: bytes = CONTENT) -> Archive:
    folder.mkdir(exist_ok=True)
    (folder / "a.tgz").write_bytes(content)
    return Archive(
        names=("a.tgz", "b.tgz"),
        sha256=hashlib.sha256(expected).hexdigest(),
        size=len(expected),
        url=(folder / "a.tgz").as_uri(),
        pool="pool/a.tgz",
    )


def test_a_download_is_kept_and_a_damaged_one_replaced(cache: Path, tmp_path: Path) -> None:
    said: list[str] = []
    wanted = archive(tmp_path / "server")
    kept = obtain(wanted, said.append)
    assert kept.read_bytes() == CONTENT
    assert kept.is_relative_to(cache)
    assert len(said) == 1
    assert obtain(wanted, said.append) == kept
    assert len(said) == 1
    kept.write_bytes(b"damaged")
    assert obtain(wanted, said.append).read_bytes() == CONTENT
    assert any("does not have its expected content" in line for line in said)


@pytest.mark.parametrize("served", [b"", b"other", CONTENT + b"more", CONTENT[:-1]])
def test_what_is_not_the_pinned_file_is_never_kept(served: bytes, cache: Path, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=r"cannot be downloaded") as caught:
        obtain(archive(tmp_path / "server", content=served), lambda line: None)
    assert "MINDNANO_SOURCES" in caught.value.hint
    assert list((cache / "sources").iterdir()) == []


def test_a_named_folder_comes_first_and_is_checked(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = archive(tmp_path / "server")
    named = tmp_path / "named"
    named.mkdir()
    monkeypatch.setenv("MINDNANO_SOURCES", str(named))
    assert obtain(wanted, lambda line: None).is_relative_to(cache)
    (named / "b.tgz").write_bytes(CONTENT)
    assert obtain(wanted, lambda line: None) == named / "b.tgz"
    (named / "b.tgz").write_bytes(b"other")
    with pytest.raises(BuildError, match="SHA-256"):
        obtain(wanted, lambda line: None)


def test_mirrors_are_those_of_the_distribution(tmp_path: Path) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "mirrors.list").write_text("https://mirror.example/debian\n# http://not.example/debian\n")
    (tmp_path / "sources.list").write_text(
        "deb [signed-by=/k.gpg] http://one.example/debian/ bookworm main\n"
        "# deb http://comment.example/debian bookworm main\n"
        "deb https://other.example/node nodistro main\n"
        f"deb mirror+file:{tmp_path}/mirrors.list bookworm main\n"
    )
    (tmp_path / "sources.list.d" / "ubuntu.sources").write_text(
        "Types: deb\n# http://comment.example/ubuntu\nURIs: http://two.example/ubuntu-ports http://one.example/debian\n"
    )
    (tmp_path / "sources.list.d" / "off.sources.disabled").write_text("URIs: http://off.example/debian\n")
    assert apt_mirrors(tmp_path) == [
        "http://one.example/debian",
        "https://mirror.example/debian",
        "http://two.example/ubuntu-ports",
    ]


def test_without_the_source_a_host_build_uses_the_system_and_says_so(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempts: list[str] = []

    def unreachable(archive: Archive, report: object) -> Path:
        attempts.append(archive.names[0])
        raise BuildError("the network is down", hint="plug it in")

    system = icu.Icu(
        identity="ICU 1.2", include=cache, flags=(), sources=(), source_flags=(), link=("libx.so",), licence=None
    )
    said: list[str] = []
    monkeypatch.setattr(icu, "obtain", unreachable)
    monkeypatch.setattr(icu, "_system_icu", lambda: system)
    assert icu.prepare(said.append, host=True) == system
    assert any("ICU 1.2" in line for line in said)
    assert icu.prepare(said.append, host=True) == system
    assert len(attempts) == 1  # the next build does not wait for the network again
    with pytest.raises(BuildError, match="network is down"):
        icu.prepare(said.append, host=False)
    monkeypatch.setattr(icu, "_system_icu", lambda: None)
    with pytest.raises(BuildError, match="network is down"):
        icu.prepare(said.append, host=True)


def test_members_that_leave_the_folder_are_not_unpacked(cache: Path, tmp_path: Path) -> None:
    evil = tmp_path / "evil.tgz"
    with tarfile.open(evil, "w:gz") as tar:
        for name in ("icu/source/common/../../../../out.h", "/icu/source/common/abs.h", "icu/source/common/uchar.cpp"):
            tar.addfile(tarfile.TarInfo(name))
    with pytest.raises(BuildError, match="holds no LICENSE"):
        icu._unpack(evil, cache / "icu")
    assert not (tmp_path / "out.h").exists()
    assert list(cache.iterdir()) == []


def test_unknown_targets_and_sanitizers_are_named() -> None:
    with pytest.raises(BuildError, match="riscv64"):
        resolve_target("riscv64")
    with pytest.raises(BuildError, match="thread"):
        build.plan_build(sanitize=["thread"])
    with pytest.raises(BuildError, match="AddressSanitizer"):
        build.plan_build(sanitize=["address"], static=True)


def test_kernels_of_other_processors_are_left_out() -> None:
    names = {target.name: {path.name for path in build.engine_sources(target)} for target in TARGETS.values()}
    assert any(name.endswith("_avx2.c") for name in names["x86_64"])
    assert any(name.endswith("_neon.c") for name in names["aarch64"])
    assert not any(name.endswith("_neon.c") for name in names["x86_64"])
    assert not any(name.endswith("_avx2.c") for name in names["aarch64"])


def test_an_unchanged_tree_builds_nothing(tmp_path: Path) -> None:
    first = build.build_library(out=tmp_path)
    stamp = first.stat().st_mtime_ns
    said: list[str] = []
    assert build.build_library(out=tmp_path, report=said.append) == first
    assert said == []
    assert first.stat().st_mtime_ns == stamp


def test_a_changed_header_rebuilds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tmp_path / "engine"
    (engine / "include").mkdir(parents=True)
    (engine / "src").mkdir()
    (engine / "src" / "a.c").write_text('#include "a.h"\nint l3_a(void) { return VALUE; }\n')
    (engine / "src" / "a.h").write_text("#define VALUE 1\n")
    monkeypatch.setattr(build, "ENGINE", engine)
    said: list[str] = []
    build.build_library(out=tmp_path / "out", report=said.append)
    (engine / "src" / "a.h").write_text(f"#define VALUE 2 /* {time.time_ns()}: never built before */\n")
    said.clear()
    build.build_library(out=tmp_path / "out", report=said.append)
    assert any("a.c" in line for line in said)
    assert any("linking" in line for line in said)


def test_what_does_not_compile_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = tmp_path / "engine"
    (engine / "src").mkdir(parents=True)
    (engine / "src" / "broken.c").write_text("int l3_broken(long x) { return x; }\n")
    monkeypatch.setattr(build, "ENGINE", engine)
    with pytest.raises(BuildError, match=r"(?s)broken\.c.*conversion"):
        build.build_library(out=tmp_path / "out", report=lambda line: None)


@pytest.mark.slow
@pytest.mark.parametrize("target", sorted(TARGETS))
def test_libraries_run_on_every_system_from_glibc_2_28_on(target: str, tmp_path: Path) -> None:
    content = build.build_library(target, out=tmp_path).read_bytes()
    versions = {tuple(map(int, found)) for found in re.findall(rb"GLIBC_(\d+)\.(\d+)", content)}
    assert versions
    assert max(versions) <= (2, 28)
    needed = set(re.findall(rb"lib[a-z0-9+_-]+\.so\.\d+", content))
    assert needed <= {b"libc.so.6", b"libm.so.6", b"libpthread.so.0"}
    assert str(build.ROOT).encode() not in content
    assert str(Path.home()).encode() + b"/" not in content


def test_notice_of_icu_is_that_of_the_pinned_release() -> None:
    folder = build.ROOT / "notices" / "icu"
    component = tomllib.loads((folder / "component.toml").read_text(encoding="utf-8"))
    assert component["version"] == icu.VERSION
    assert component["source"] == icu.ARCHIVE.url
    assert component["source_sha256"] == icu.ARCHIVE.sha256
    prepared = icu.prepare(lambda line: None, host=False)
    assert prepared.licence is not None
    assert (folder / "LICENSE").read_bytes() == prepared.licence.read_bytes()
