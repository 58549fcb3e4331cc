"""A repository that, after one release has followed another, does not give back what was released.

Releases, client and verification are the real ones; the hub is a fake on loopback.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest

from launcher.errors import MindnanoError, PackageError, TrustError
from launcher.integrity.signature import KeyUse, parse_public_key
from release.folder.signing import read_secret_key
from release.upload.publish import PublishOptions, publish
from tests.support.demo import require_demo
from tests.support.fake_hub import TOKEN, FakeHub, Repository, Stored
from tests.support.minisign_keys import PLAIN, PLAIN_PUBLIC
from tests.support.release_folders import faults, look, make_release, stand_in_program

REPO = "org/tiny"
KEY = parse_public_key(PLAIN_PUBLIC, KeyUse.RELEASE)


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Releases that follow each other, by what they are; not to be changed."""
    folder = tmp_path_factory.mktemp("releases")
    (folder / "key").write_text(PLAIN)
    program = stand_in_program(folder / "program")
    signed = {"key": read_secret_key(folder / "key", str)}
    variants: dict[str, dict[str, Any]] = {
        "unsigned": {},
        "signed": signed,
        "newer": {"version": "1.3.0"},
        "newer-signed": {"version": "1.3.0", **signed},
        "renamed": {"version": "1.4.0", "name": "tiny-w8", **signed},
        "other-terms": {"weights_licence": "CC-BY-NC-4.0"},
    }
    for name, options in variants.items():
        make_release(folder / name, program, require_demo(), **options)
    return folder


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with FakeHub() as fake:
        fake.part_bytes = 1 << 20
        monkeypatch.setenv("HF_ENDPOINT", fake.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
        fake.make(REPO)
        yield fake


def put(folder: Path, **options: Any) -> None:
    publish(PublishOptions(folder=folder, repository=REPO, confirmed=True, **options))


def download(hub: FakeHub, **options: Any) -> Path:
    """What the hub's own client makes of the repository."""
    return Path(huggingface_hub.snapshot_download(REPO, endpoint=hub.url, token=False, max_workers=2, **options))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("unsigned", "newer"),
        ("signed", "unsigned"),
        ("unsigned", "signed"),
        ("signed", "newer-signed"),
        ("newer-signed", "renamed"),
        ("renamed", "unsigned"),
        ("other-terms", "unsigned"),
        ("unsigned", "other-terms"),
    ],
)
def test_a_release_that_follows_another_is_downloaded_whole(
    hub: FakeHub, releases: Path, tmp_path: Path, before: str, after: str
) -> None:
    for number, name in enumerate((before, after)):
        put(releases / name, delete=number > 0 and "renamed" in (before, after))  # a package goes where that is said
        folder = download(hub, local_dir=tmp_path / str(number))
        is_signed = (releases / name / "SHA256SUMS.minisig").exists()
        result = look(folder, keys=[KEY], signed=is_signed)
        assert faults(result) == {}
        assert not result.complete
    assert len(hub.repositories[REPO].commits) == 3


def test_a_folder_that_somebody_uploaded_whole_becomes_the_flat_set(
    hub: FakeHub, releases: Path, tmp_path: Path
) -> None:
    repository = hub.repositories[REPO]
    folder = releases / "signed"
    files = {str(path.relative_to(folder)): path for path in folder.rglob("*") if path.is_file()}
    repository.add("by hand", {**repository.files, **{name: _stored(path) for name, path in files.items()}})
    put(releases / "newer")
    assert faults(look(download(hub, local_dir=tmp_path / "all"))) == {}
    assert not [name for name in repository.files if name.startswith("notices/")]


def _stored(path: Path) -> Stored:
    return Stored(path.read_bytes(), path.suffix == ".l3r")


def test_a_file_of_somebody_else_is_refused_since_the_download_would_fail(
    hub: FakeHub, releases: Path, tmp_path: Path
) -> None:
    repository: Repository = hub.repositories[REPO]
    repository.add("theirs", {**repository.files, "plot.png": Stored(b"x", True)})
    with pytest.raises(MindnanoError, match=r"plot\.png"):
        put(releases / "unsigned")
    assert len(repository.commits) == 2
    put(releases / "unsigned", leave=True)
    assert faults(look(download(hub, local_dir=tmp_path / "left"))) == {"files": ("extra: plot.png",)}
    put(releases / "unsigned", delete=True)
    assert faults(look(download(hub, local_dir=tmp_path / "deleted"))) == {}


def test_a_download_into_the_clients_cache_is_told_how_to_be_fetched(
    hub: FakeHub, releases: Path, tmp_path: Path
) -> None:
    put(releases / "unsigned")
    folder = download(hub, cache_dir=tmp_path / "cache")
    assert (folder / "MODEL.json").is_symlink()
    with pytest.raises(PackageError) as caught:
        look(folder)
    assert "hf download org/tiny --local-dir DIR" in caught.value.hint


def test_half_of_the_signatures_are_not_published(hub: FakeHub, releases: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(releases / "signed", tmp_path / "release"))
    (folder / "SHA256SUMS.PUBLIC.minisig").unlink()
    with pytest.raises(TrustError):
        put(folder)
    assert len(hub.repositories[REPO].commits) == 1
