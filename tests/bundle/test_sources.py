"""A pin that pins nothing, a source taken from the wrong place, an archive or a correction that does not fit."""

from __future__ import annotations

import hashlib
import io
import re
import subprocess
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from bundle.errors import BundleError
from bundle.sources import Source, fetch, load_sources
from bundle.unpack import unpack
from engine import fetch as engine_fetch
from engine.errors import UnreachableError
from engine.fetch import Archive, obtain
from launcher.errors import NetworkError, TrustError
from tests.support.availability import unavailable

SOURCES = load_sources()
ARCHIVES = [(name, archive) for name, source in SOURCES.items() for archive in source.archives]


@pytest.mark.parametrize(("name", "archive"), ARCHIVES, ids=[archive.names[0] for _, archive in ARCHIVES])
def test_every_archive_is_pinned(name: str, archive: Archive) -> None:
    assert re.fullmatch(r"[0-9a-f]{64}", archive.sha256)
    assert archive.size > 0
    assert archive.url.startswith("https://")
    assert archive.pool.startswith("pool/main/")
    assert archive.names
    assert archive.pool.rpartition("/")[2] in archive.names


def test_no_two_archives_have_one_pin_and_no_correction_comes_twice() -> None:
    pins = [archive.sha256 for _, archive in ARCHIVES]
    assert len(pins) == len(set(pins))
    for source in SOURCES.values():
        assert len(source.patches) == len(set(source.patches))
        assert (source.patch_archive is None) == (source.patches == ())


@pytest.mark.slow
@pytest.mark.parametrize("archive", [archive for _, archive in ARCHIVES], ids=lambda archive: archive.names[0])
def test_every_archive_can_be_had(archive: Archive) -> None:
    try:
        path = obtain(archive, lambda line: None)
    except UnreachableError as error:
        unavailable(error.message)
    assert path.stat().st_size == archive.size


@pytest.mark.parametrize("text", ["[zlib", "[zlib]\nversion = '1'\n", "[zlib]\n[zlib.archive]\nsurprise = 1\n"])
def test_a_damaged_table_is_an_error(tmp_path: Path, text: str) -> None:
    table = tmp_path / "sources.toml"
    table.write_text(text)
    with pytest.raises(BundleError, match="is not valid"):
        load_sources(table)


def pack(path: Path, members: dict[str, str], *, links: dict[str, str] | None = None) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
        for name, target in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type = tarfile.SYMTYPE
            info.linkname = target
            tar.addfile(info)
    return path


def pinned(path: Path) -> Archive:
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    return Archive(names=(path.name,), sha256=digest, size=len(content), url=path.as_uri(), pool="pool/x")


def source(archive: Path, corrections: Path | None = None, *, patches: tuple[str, ...] = ()) -> Source:
    return Source(
        name="toy",
        version="1",
        licence="MIT",
        homepage="https://example.org/",
        archive=pinned(archive),
        folder="toy-1",
        patch_archive=None if corrections is None else pinned(corrections),
        patch_folder="patches",
        patches=patches,
    )


def run(words: Sequence[Any], *, folder: Path, what: str) -> None:
    if subprocess.run(words, cwd=folder, stdout=subprocess.DEVNULL).returncode != 0:
        raise BundleError("stage-failed", what)


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No cache, no apt; the folder that the user may name."""
    named = tmp_path / "named"
    named.mkdir()
    monkeypatch.setenv("MINDNANO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("MINDNANO_SOURCES", str(named))
    monkeypatch.setattr(engine_fetch, "_APT_HELPER", tmp_path / "no-apt-helper")
    return named


def test_the_error_names_every_place_that_was_asked(tmp_path: Path, offline: Path) -> None:
    wanted = source(pack(tmp_path / "toy.tgz", {"toy-1/a": "a"}))
    (tmp_path / "toy.tgz").unlink()
    with pytest.raises(NetworkError) as caught:
        fetch(wanted, lambda line: None)
    assert caught.value.slug == "source-unreachable"
    assert (tmp_path / "toy.tgz").as_uri() in caught.value.message
    assert "MINDNANO_SOURCES" in caught.value.hint
    assert caught.value.exit_code == 6


def test_a_further_address_is_asked_where_the_first_fails(tmp_path: Path, offline: Path) -> None:
    path = pack(tmp_path / "toy.tgz", {"toy-1/a": "a"})
    content = path.read_bytes()
    archive = Archive(
        names=("toy.tgz",),
        sha256=hashlib.sha256(content).hexdigest(),
        size=len(content),
        url=(tmp_path / "nowhere.tgz").as_uri(),
        other_urls=(path.as_uri(),),
        pool="pool/x",
    )
    assert obtain(archive, lambda line: None).read_bytes() == content


def test_a_file_of_the_user_with_other_content_is_refused(tmp_path: Path, offline: Path) -> None:
    wanted = source(pack(tmp_path / "toy.tgz", {"toy-1/a": "a"}))
    (offline / "toy.tgz").write_bytes(b"other")
    with pytest.raises(TrustError, match=wanted.archive.sha256):
        fetch(wanted, lambda line: None)


PATCH = "--- a/text\n+++ b/text\n@@ -1 +1 @@\n-old\n+new\n"


def test_corrections_are_applied(tmp_path: Path) -> None:
    archive = pack(tmp_path / "toy.tgz", {"toy-1/text": "old\n"})
    corrections = pack(tmp_path / "fix.tgz", {"patches/a.patch": PATCH})
    unpack(source(archive, corrections, patches=("a.patch",)), (archive, corrections), tmp_path / "toy", run)
    assert (tmp_path / "toy" / "text").read_text() == "new\n"


def test_a_correction_is_not_applied_by_guessing(tmp_path: Path) -> None:
    patch = "--- a/text\n+++ b/text\n@@ -1,3 +1,3 @@\n one\n-old\n+new\n three\n"
    archive = pack(tmp_path / "toy.tgz", {"toy-1/text": "another\nold\nthree\n"})
    corrections = pack(tmp_path / "fix.tgz", {"patches/a.patch": patch})
    with pytest.raises(BundleError, match=r"applying a\.patch"):
        unpack(source(archive, corrections, patches=("a.patch",)), (archive, corrections), tmp_path / "toy", run)


@pytest.mark.parametrize(("text", "name"), [("other\n", "a.patch"), ("new\n", "a.patch"), ("old\n", "b.patch")])
def test_a_correction_that_does_not_fit_is_an_error(tmp_path: Path, text: str, name: str) -> None:
    archive = pack(tmp_path / "toy.tgz", {"toy-1/text": text})
    corrections = pack(tmp_path / "fix.tgz", {"patches/a.patch": PATCH})
    with pytest.raises(BundleError):
        unpack(source(archive, corrections, patches=(name,)), (archive, corrections), tmp_path / "toy", run)


@pytest.mark.parametrize(
    ("members", "links"),
    [
        ({"toy-2/a": "a"}, {}),
        ({"toy-1/a": "a", "../b": "b"}, {}),
        ({"toy-1/a": "a", "/tmp/b": "b"}, {}),
        ({"toy-1/a": "a"}, {"toy-1/b": "/etc/passwd"}),
    ],
)
def test_an_archive_with_another_layout_is_refused(
    tmp_path: Path, members: dict[str, str], links: dict[str, str]
) -> None:
    archive = pack(tmp_path / "toy.tgz", members, links=links)
    with pytest.raises(BundleError) as caught:
        unpack(source(archive), (archive,), tmp_path / "toy", run)
    assert caught.value.slug == "source-layout"


def test_a_digest_follows_archives_and_corrections(tmp_path: Path) -> None:
    archive = pack(tmp_path / "toy.tgz", {"toy-1/text": "old\n"})
    corrections = pack(tmp_path / "fix.tgz", {"patches/a.patch": PATCH})
    digests = {
        source(archive).digest,
        source(archive, corrections, patches=("a.patch",)).digest,
        source(archive, corrections, patches=("b.patch",)).digest,
        source(corrections).digest,
    }
    assert len(digests) == 4
