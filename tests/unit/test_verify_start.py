"""A changed package that is used all the same; an unchanged one that is hashed at every start."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import PackageError, TrustError
from launcher.integrity import stamps
from launcher.integrity import verify as verify_module
from launcher.integrity.claims import SignatureState
from launcher.integrity.publisher import Publisher
from launcher.integrity.verify import Known, VerificationState, require_verified, verification_state
from launcher.messages import Catalogue, Language
from tests.support.releases import TOY_FILES, sha256
from tests.support.verification import (
    TRUSTED,
    flip,
    look,
)


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets every file look as if it had been as it is for a long time."""
    real = stamps.hash_steady_file
    far = 1 << 62

    def hashing(file: int, name: str, **settings: Any) -> stamps.HashedFile:
        return real(file, name, now_ns=lambda: far, **settings)

    monkeypatch.setattr(verify_module, "hash_steady_file", hashing)


def start(package: Path, home: dict[str, str], by: Publisher = TRUSTED) -> Any:
    return require_verified(package, home, texts=Catalogue(Language.ENGLISH), publisher=by)


@pytest.mark.usefixtures("later")
def test_second_start_hashes_nothing(release: Path, home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    package = release / "toy.l3r"
    assert verification_state(package, home, publisher=TRUSTED) is VerificationState.UNVERIFIED
    first = start(package, home)
    assert first.known is Known.HASHED
    assert first.sha256 == sha256(TOY_FILES["toy.l3r"])
    assert first.sources == ("SHA256SUMS", "MANIFEST.json")
    assert first.signature is SignatureState.VALID
    monkeypatch.setattr(verify_module, "hash_steady_file", lambda *_, **__: pytest.fail("hashed again"))
    assert start(package, home).known is Known.STAMP
    assert verification_state(package, home, publisher=TRUSTED) is VerificationState.VERIFIED


@pytest.mark.usefixtures("later")
def test_verify_makes_the_next_start_instant(
    release: Path, home: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    look(release, home)
    monkeypatch.setattr(verify_module, "hash_steady_file", lambda *_, **__: pytest.fail("hashed again"))
    assert start(release / "toy.l3r", home).known is Known.STAMP


@pytest.mark.usefixtures("later")
def test_changed_package_is_refused_with_both_digests_each_time(release: Path, home: dict[str, str]) -> None:
    package = release / "toy.l3r"
    start(package, home)
    flip(package, 9)
    for _ in range(2):  # hashed, then by its stamp
        with pytest.raises(PackageError) as caught:
            start(package, home)
        assert (caught.value.slug, caught.value.exit_code) == ("package-changed", 4)
        assert sha256(TOY_FILES["toy.l3r"]) in caught.value.message
        assert sha256(package.read_bytes()) in caught.value.message
    assert verification_state(package, home, publisher=TRUSTED) is VerificationState.CHANGED


def test_partial_download_is_refused(release: Path, home: dict[str, str]) -> None:
    os.truncate(release / "toy.l3r", 1000)
    with pytest.raises(PackageError):
        start(release / "toy.l3r", home)


def test_young_package_is_hashed_again(release: Path, home: dict[str, str]) -> None:
    for _ in range(2):
        assert start(release / "toy.l3r", home).known is Known.HASHED


def test_package_that_nothing_lists_is_not_claimed(release: Path, home: dict[str, str], tmp_path: Path) -> None:
    other = release / "other.l3r"
    other.write_bytes(b"x")
    alone = tmp_path / "alone.l3r"
    alone.write_bytes(b"x")
    (tmp_path / "MANIFEST.json").write_text('{"schema": "of another program"}')
    for package in (other, alone, tmp_path / "none.l3r"):
        assert start(package, home) is None
        assert verification_state(package, home, publisher=TRUSTED) is VerificationState.UNLISTED


def test_listed_package_that_is_missing_is_left_to_the_engine(release: Path, home: dict[str, str]) -> None:
    (release / "toy.l3r").unlink()
    assert start(release / "toy.l3r", home) is None
    assert verification_state(release / "toy.l3r", home, publisher=TRUSTED) is VerificationState.UNVERIFIED


def test_bad_signature_stops_the_start(release: Path, home: dict[str, str]) -> None:
    flip(release / "SHA256SUMS")
    with pytest.raises(TrustError):
        start(release / "toy.l3r", home)
    with pytest.raises(TrustError):
        verification_state(release / "toy.l3r", home, publisher=TRUSTED)


def test_damage_elsewhere_does_not_stop_the_start(release: Path, home: dict[str, str]) -> None:
    (release / "NOTICE").unlink()
    flip(release / "MANIFEST.json", 40)
    assert start(release / "toy.l3r", home) is not None


def test_package_by_a_relative_name(release: Path, home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(release)
    assert start(Path("toy.l3r"), home) is not None


def test_start_without_a_home(release: Path) -> None:
    assert start(release / "toy.l3r", {}).known is Known.HASHED
