"""A release of a stranger, an older one, or one whose lists contradict each other, that passes."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from launcher.integrity import verify as verify_module
from launcher.integrity.claims import SignatureState
from launcher.integrity.model_info import ModelInfo, PackageFile, Quantization
from tests.support.releases import TOY_FILES, sha256, write_release
from tests.support.verification import (
    ENGLISH,
    NOBODY,
    RECOVERY,
    SIGNER,
    STRANGER,
    failure,
    flip,
    look,
)


def test_release_without_a_signature_warns(tmp_path: Path, home: dict[str, str]) -> None:
    folder = write_release(tmp_path / "r")
    report = look(folder, home)
    assert (report.exit_code, report.claims.state) == (0, SignatureState.NONE)
    assert "has no signature" in report.text(ENGLISH)
    assert look(folder, home, strict=True).exit_code == 4


def test_release_whose_lists_were_taken_away_warns(tmp_path: Path, home: dict[str, str]) -> None:
    folder = write_release(tmp_path / "r", lists=("MANIFEST.json",))
    report = look(folder, home)
    assert report.claims.sources == ("MANIFEST.json",)
    assert report.warnings[0] == "verify-warning-no-list"
    assert "there is no SHA256SUMS" in report.text(ENGLISH)
    assert look(folder, home, strict=True).exit_code == 4


def test_links_out_of_the_folder_are_told_how_to_be_fetched(release: Path, home: dict[str, str]) -> None:
    (release / "NOTICE").rename(release.parent / "blob")
    (release / "NOTICE").symlink_to("../blob")
    lines = look(release, home).text(ENGLISH).splitlines()
    assert "hf download ORG/NAME --local-dir DIR" in lines[-1]


def test_build_without_a_key_warns(release: Path, home: dict[str, str]) -> None:
    report = look(release, home, NOBODY)
    assert (report.exit_code, report.claims.state) == (0, SignatureState.NO_KEY)
    assert "no key to check" in report.text(ENGLISH)


def test_recovery_key_is_named(tmp_path: Path, home: dict[str, str]) -> None:
    report = look(write_release(tmp_path / "r", signer=RECOVERY), home)
    assert report.document()["signature"] == {
        "state": "valid",
        "key": RECOVERY.public().name,
        "use": "recovery",
        "comment": "timestamp:1\\tfile:SHA256SUMS",
    }


def test_stranger_is_refused(tmp_path: Path, home: dict[str, str]) -> None:
    error = failure(write_release(tmp_path / "r", signer=STRANGER), home)
    assert (error.slug, error.exit_code) == ("signature-key-unknown", 8)


@pytest.mark.parametrize("name", ["SHA256SUMS", "SHA256SUMS.minisig"])
def test_changed_list_or_signature_is_a_matter_of_trust(release: Path, home: dict[str, str], name: str) -> None:
    path = release / name
    path.write_text(re.sub("[Aa]", "b", path.read_text(), count=60))
    error = failure(release, home)
    assert (error.slug, error.exit_code) == ("signature-invalid", 8)


def test_list_made_anew_for_changed_files_is_refused(release: Path, home: dict[str, str]) -> None:
    flip(release / "toy.l3r")
    path = release / "SHA256SUMS"
    path.write_text(path.read_text().replace(sha256(TOY_FILES["toy.l3r"]), sha256((release / "toy.l3r").read_bytes())))
    assert failure(release, home).exit_code == 8


def test_converted_line_ends_break_the_signature(release: Path, home: dict[str, str]) -> None:
    path = release / "SHA256SUMS"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert failure(release, home).exit_code == 8


def test_signature_alone_is_refused(release: Path, home: dict[str, str]) -> None:
    (release / "SHA256SUMS").unlink()
    error = failure(release, home)
    assert (error.slug, error.exit_code) == ("signature-orphan", 8)


def test_nothing_is_hashed_before_the_signature_holds(
    release: Path, home: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_module, "_Hashing", lambda *_: pytest.fail("hashed"))
    flip(release / "SHA256SUMS")
    assert failure(release, home).exit_code == 8


def test_huge_signature_is_refused(release: Path, home: dict[str, str]) -> None:
    os.truncate(release / "SHA256SUMS.minisig", 1 << 40)
    assert failure(release, home).slug == "metadata-too-large"


# An older release in place of a newer one.


def test_older_signed_release_is_refused_until_the_memory_is_deleted(tmp_path: Path, home: dict[str, str]) -> None:
    new = write_release(tmp_path / "new", signer=SIGNER, release="1.10.0")
    old = write_release(tmp_path / "old", signer=SIGNER, release="1.9.0")
    assert look(old, home).exit_code == 0
    assert look(new, home).exit_code == 0
    assert look(new, home).exit_code == 0
    error = failure(old, home)
    assert (error.slug, error.exit_code) == ("release-rollback", 8)
    memory = tmp_path / "cache" / "mindnano" / "releases.json"
    assert f"delete {memory}" in error.hint
    memory.unlink()
    assert look(old, home).exit_code == 0


def test_other_model_and_unsigned_release_may_be_older(tmp_path: Path, home: dict[str, str]) -> None:
    look(write_release(tmp_path / "new", signer=SIGNER, release="2.0.0"), home)
    look(write_release(tmp_path / "other", signer=SIGNER, release="1.0.0", model="other"), home)
    look(write_release(tmp_path / "unsigned", release="1.0.0"), home)


def test_damaged_or_unsigned_release_is_not_remembered(tmp_path: Path, home: dict[str, str]) -> None:
    damaged = write_release(tmp_path / "damaged", signer=SIGNER, release="9.0.0")
    (damaged / "NOTICE").unlink()
    look(damaged, home)
    look(write_release(tmp_path / "unsigned", release="9.0.0"), home)
    look(write_release(tmp_path / "old", signer=SIGNER), home)


@pytest.mark.parametrize("data", [b"", b"[" * 9999, b'{"releases": {"toy": "9.0"}}', b"\xff"])
def test_damaged_memory_is_no_error(release: Path, home: dict[str, str], tmp_path: Path, data: bytes) -> None:
    look(release, home)
    (tmp_path / "cache" / "mindnano" / "releases.json").write_bytes(data)
    look(release, home)


# Lists that are tolerated, broken or contradict each other.


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        (lambda data: data.replace(b"\n", b"\r\n"), "crlf"),
        (lambda data: b"\xef\xbb\xbf" + data, "bom"),
        (lambda data: data.replace(b"  ", b" *"), "binary-marker"),
        (lambda data: data + b"\n\n", "blank-lines"),
        (lambda data: data[:-1], "no-final-newline"),
        (lambda data: data.replace(b"  ", b" "), "single-space"),
    ],
)
def test_harmless_differences_warn(tmp_path: Path, home: dict[str, str], change: Any, kind: str) -> None:
    folder = write_release(tmp_path / "r")
    (folder / "SHA256SUMS").write_bytes(change((folder / "SHA256SUMS").read_bytes()))
    report = look(folder, home)
    assert not report.damaged
    assert report.exit_code == 0
    assert f"({kind})" in report.text(ENGLISH)


def test_absent_file_is_missing_where_coreutils_can_be_told_to_ignore_it(release: Path, home: dict[str, str]) -> None:
    (release / "toy.l3r").unlink()
    command = ["sha256sum", "--ignore-missing", "-c", "SHA256SUMS"]
    assert subprocess.run(command, cwd=release, capture_output=True, check=False).returncode == 0
    assert look(release, home).exit_code == 4


def test_list_with_an_empty_digest_verifies_nothing(tmp_path: Path, home: dict[str, str]) -> None:
    folder = write_release(tmp_path / "r")
    path = folder / "SHA256SUMS"
    path.write_text(path.read_text().replace(sha256(TOY_FILES["toy.l3r"]), ""))
    assert failure(folder, home).slug == "sums-invalid"


@pytest.mark.parametrize("name", ["SHA256SUMS", "MANIFEST.json"])
def test_lists_that_contradict_each_other_are_refused(tmp_path: Path, home: dict[str, str], name: str) -> None:
    folder = write_release(tmp_path / "r")
    sums, described = folder / "SHA256SUMS", folder / "MANIFEST.json"
    if name == "SHA256SUMS":
        lines = [line for line in sums.read_text().splitlines(keepends=True) if "NOTICE" not in line]
        sums.write_text("".join(lines))
    else:
        old = sha256(described.read_bytes())
        described.write_text(described.read_text().replace(sha256(TOY_FILES["NOTICE"]), "0" * 64))
        sums.write_text(sums.read_text().replace(old, sha256(described.read_bytes())))
    error = failure(folder, home)
    assert (error.slug, error.exit_code) == ("release-contradiction", 4)
    assert "NOTICE" in error.message


def test_file_that_only_the_list_of_checksums_knows_is_a_contradiction(tmp_path: Path, home: dict[str, str]) -> None:
    folder = write_release(tmp_path / "r")
    with (folder / "SHA256SUMS").open("a") as file:
        file.write(f"{'0' * 64}  added\n")
    assert failure(folder, home).slug == "release-contradiction"


def test_manifest_that_the_list_does_not_mention_is_not_used(tmp_path: Path, home: dict[str, str]) -> None:
    folder = write_release(tmp_path / "r", lists=("SHA256SUMS",))
    (folder / "MANIFEST.json").write_text("not even JSON")
    report = look(folder, home)
    assert report.claims.unlisted_manifest
    assert "was not used" in report.text(ENGLISH)
    assert look(folder, home, strict=True).exit_code == 4


def test_public_set_needs_only_the_public_files(tmp_path: Path, home: dict[str, str]) -> None:
    folder = write_release(tmp_path / "r", signer=SIGNER, lists=("MANIFEST.json", "SHA256SUMS", "SHA256SUMS.PUBLIC"))
    assert look(folder, home, strict=True).exit_code == 0
    for name in ("SHA256SUMS", "SHA256SUMS.minisig", "private.txt"):
        (folder / name).unlink()
    report = look(folder, home, strict=True)
    assert report.exit_code == 0
    assert report.claims.sources == ("SHA256SUMS.PUBLIC", "MANIFEST.json")
    (folder / "NOTICE").unlink()
    assert look(folder, home).missing == ("NOTICE",)


def test_public_list_that_drifted_is_a_contradiction(tmp_path: Path, home: dict[str, str]) -> None:
    folder = write_release(tmp_path / "r")
    (folder / "SHA256SUMS.PUBLIC").write_text(f"{'0' * 64}  NOTICE\n")
    assert failure(folder, home).slug == "release-contradiction"


def model_info(**changes: Any) -> bytes:
    data = TOY_FILES["toy.l3r"]
    facts: dict[str, Any] = {
        "name": "toy",
        "base": None,
        "package": PackageFile(path="toy.l3r", size=len(data), sha256=sha256(data)),
        "quantization": Quantization(recipe="f32", recipe_sha256="0" * 64, calibration_sha256=None),
        "architecture": "x",
        "shapes": {},
        "native_context": 1,
        "maximum_context": 1,
        "mtp": False,
        "tokenizer_sha256": "0" * 64,
        "template_sha256": "0" * 64,
        "licence": "MIT",
    }
    return ModelInfo(**{**facts, **changes}).to_json()


@pytest.mark.parametrize(
    ("info", "slug"),
    [
        (model_info(), None),
        (model_info(name="other"), "release-contradiction"),
        (model_info(package=PackageFile(path="toy.l3r", size=1, sha256="0" * 64)), "release-contradiction"),
        (model_info(package=PackageFile(path="none.l3r", size=1, sha256="0" * 64)), "release-contradiction"),
        (b"{}", "metadata-invalid"),
    ],
)
def test_model_info_must_be_about_this_release(
    tmp_path: Path, home: dict[str, str], info: bytes, slug: str | None
) -> None:
    folder = write_release(tmp_path / "r", {**TOY_FILES, "MODEL.json": info})
    if slug is None:
        assert look(folder, home).exit_code == 0
    else:
        assert failure(folder, home).slug == slug


@pytest.mark.parametrize("name", ["", "none", "file"])
def test_nothing_to_verify_is_an_error(tmp_path: Path, home: dict[str, str], name: str) -> None:
    (tmp_path / "file").write_text("x")
    error = failure(tmp_path / name, home)
    assert error.exit_code == 4
    assert error.slug == ("verify-folder" if name else "nothing-to-verify")
    assert error.hint


def test_manifest_of_another_program_is_nothing_to_verify(tmp_path: Path, home: dict[str, str]) -> None:
    (tmp_path / "MANIFEST.json").write_text('{"schema": "other"}')
    assert failure(tmp_path, home).slug == "nothing-to-verify"


def test_release_for_a_newer_launcher_says_so(tmp_path: Path, home: dict[str, str]) -> None:
    folder = write_release(tmp_path / "r", min_launcher_version="99.0")
    assert failure(folder, home).slug == "launcher-too-old"


# The command.
