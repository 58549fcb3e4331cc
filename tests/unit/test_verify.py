"""A damaged, foreign or older release that passes; an intact one that does not; a report that lies about it."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest

from launcher.integrity import stamps
from launcher.integrity import verify as verify_module
from launcher.integrity.hashing import FileDigest, sha256_file
from launcher.integrity.verify_report import Reason
from tests.support.releases import TOY_FILES, sha256, write_release
from tests.support.verification import (
    ENGLISH,
    SIGNER,
    flip,
    look,
)


def test_intact_signed_release_passes_without_a_warning(release: Path, home: dict[str, str]) -> None:
    report = look(release, home, strict=True)
    assert report.exit_code == 0
    assert report.warnings == ()
    assert report.intact == len(TOY_FILES) + 1
    assert report.hashed_bytes == sum(map(len, TOY_FILES.values())) + (release / "MANIFEST.json").stat().st_size
    text = report.text(ENGLISH)
    assert "toy 1.0.0" in text
    assert f"valid, key {SIGNER.public().name} (release key)" in text


@pytest.mark.parametrize("lists", [("MANIFEST.json",), ("SHA256SUMS",), ("SHA256SUMS.PUBLIC",)])
def test_one_list_is_enough(tmp_path: Path, home: dict[str, str], lists: tuple[str, ...]) -> None:
    folder = write_release(tmp_path / "r", lists=lists)
    report = look(folder, home)
    assert report.claims.sources == lists
    assert report.exit_code == 0
    flip(folder / "toy.l3r", 1000)
    assert [file.path for file in look(folder, home).changed] == ["toy.l3r"]


def test_missing_extra_changed_and_unreadable_are_told_apart(release: Path, home: dict[str, str]) -> None:
    (release / "NOTICE").unlink()
    flip(release / "toy.l3r", 77)
    (release / "private.txt").unlink()
    (release / "private.txt").symlink_to("/etc/hostname")
    (release / "new\x1b[2J").write_text("x")
    (release / "folder").mkdir()
    (release / "folder" / "extra").write_text("x")
    report = look(release, home)
    assert report.exit_code == 4
    assert report.missing == ("NOTICE",)
    (changed,) = report.changed
    assert changed.path == "toy.l3r"
    assert changed.expected_sha256 == sha256(TOY_FILES["toy.l3r"])
    assert changed.actual_sha256 == sha256((release / "toy.l3r").read_bytes())
    assert changed.expected_size == changed.actual_size == 2 << 20
    assert [(entry.path, entry.reason) for entry in report.unreadable] == [("private.txt", Reason.LINK_LEAVES_FOLDER)]
    assert report.extra == ("folder/extra", "new\x1b[2J")
    text = report.text(ENGLISH)
    assert "\x1b" not in text
    for digest in (changed.expected_sha256, changed.actual_sha256):
        assert digest in text


def test_every_listed_file_that_changes_is_found(tmp_path: Path, home: dict[str, str]) -> None:
    for path in ["toy.l3r", "NOTICE", "private.txt", "MANIFEST.json"]:
        folder = write_release(tmp_path / path.replace(".", "-"), signer=SIGNER)
        flip(folder / path, 5)
        report = look(folder, home)
        assert [file.path for file in report.changed] == [path]
        assert report.exit_code == 4


def test_changed_manifest_is_not_believed(release: Path, home: dict[str, str]) -> None:
    """Right size, right digest of the changed file inside, but SHA256SUMS does not vouch for it."""
    flip(release / "NOTICE")
    path = release / "MANIFEST.json"
    path.write_text(path.read_text().replace(sha256(TOY_FILES["NOTICE"]), sha256((release / "NOTICE").read_bytes())))
    report = look(release, home)
    assert [file.path for file in report.changed] == ["MANIFEST.json", "NOTICE"]
    assert report.claims.manifest is None


def test_same_size_and_wrong_bytes_are_found_though_a_stamp_was_fresh(release: Path, home: dict[str, str]) -> None:
    look(release, home)
    flip(release / "toy.l3r")
    assert look(release, home).exit_code == 4


def test_grown_and_cut_files_show_both_sizes(release: Path, home: dict[str, str]) -> None:
    (release / "NOTICE").write_bytes(TOY_FILES["NOTICE"] + b"more")
    os.truncate(release / "toy.l3r", 100)
    report = look(release, home)
    sizes = {file.path: (file.expected_size, file.actual_size) for file in report.changed}
    assert sizes == {"NOTICE": (18, 22), "toy.l3r": (2 << 20, 100)}


def test_manifest_with_the_right_digest_and_a_wrong_size_is_damage(tmp_path: Path, home: dict[str, str]) -> None:
    folder = write_release(tmp_path / "r", lists=("MANIFEST.json",))
    path = folder / "MANIFEST.json"
    path.write_text(path.read_text().replace('"size": 18', '"size": 19'))
    assert look(folder, home).changed[0].expected_size == 19


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda path: path.symlink_to("/etc/hostname"), Reason.LINK_LEAVES_FOLDER),
        (lambda path: path.symlink_to("../outside"), Reason.LINK_LEAVES_FOLDER),
        (lambda path: path.symlink_to(path.name), Reason.LINK_LOOP),
        (lambda path: os.mkfifo(path), Reason.NOT_A_REGULAR_FILE),
        (lambda path: path.mkdir(), Reason.NOT_A_REGULAR_FILE),
        (lambda path: path.symlink_to("/dev/zero"), Reason.LINK_LEAVES_FOLDER),
    ],
)
def test_links_out_and_special_files_are_refused(
    release: Path, home: dict[str, str], make: Any, reason: Reason
) -> None:
    (release.parent / "outside").write_bytes(TOY_FILES["NOTICE"])
    (release / "NOTICE").unlink()
    make(release / "NOTICE")
    report = look(release, home)
    assert [(entry.path, entry.reason) for entry in report.unreadable] == [("NOTICE", reason)]
    assert report.exit_code == 4


def test_socket_is_refused(release: Path, home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    (release / "NOTICE").unlink()
    monkeypatch.chdir(release)
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("NOTICE")
        assert [entry.reason for entry in look(release, home).unreadable] == [Reason.NOT_A_REGULAR_FILE]


def test_link_that_stays_inside_is_followed(release: Path, home: dict[str, str]) -> None:
    (release / "NOTICE").rename(release / "blob")
    (release / "NOTICE").symlink_to("blob")
    report = look(release, home)
    assert not report.damaged
    assert report.extra == ("blob",)


def test_dangling_link_and_file_in_place_of_a_folder_are_missing(release: Path, home: dict[str, str]) -> None:
    (release / "NOTICE").unlink()
    (release / "NOTICE").symlink_to("nowhere")
    (release / "licences" / "Größe 大.txt").unlink()
    (release / "licences").rmdir()
    (release / "licences").write_text("x")
    assert look(release, home).missing == ("NOTICE", "licences/Größe 大.txt")


def test_file_without_permission_is_unreadable(
    release: Path, home: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(folder: Path, path: str) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(verify_module, "open_member", denied)
    assert {entry.reason for entry in look(release, home).unreadable} == {Reason.NO_PERMISSION}


def test_file_that_changes_while_it_is_read_is_named(
    release: Path, home: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def hashing(file: int, **settings: Any) -> FileDigest:
        found = sha256_file(file, **settings)
        if found.length == len(TOY_FILES["NOTICE"]):
            (release / "NOTICE").write_bytes(b"x")
        return found

    monkeypatch.setattr(stamps, "sha256_file", hashing)
    report = look(release, home)
    assert [(entry.path, entry.reason) for entry in report.unreadable] == [("NOTICE", Reason.CHANGED_WHILE_READ)]


def test_extra_files_warn_and_fail_only_when_strict(release: Path, home: dict[str, str]) -> None:
    (release / "notes.txt").write_text("mine")
    report = look(release, home)
    assert (report.exit_code, report.warnings) == (0, ("verify-warning-extra",))
    assert look(release, home, strict=True).exit_code == 4


def test_program_that_was_not_fetched_is_a_warning(tmp_path: Path, home: dict[str, str]) -> None:
    folder = write_release(tmp_path / "downloaded", {**TOY_FILES, "mindnano-infer": b"program"})
    assert look(folder, home).absent == ()
    (folder / "mindnano-infer").unlink()
    report = look(folder, home)
    assert (report.exit_code, report.missing, report.absent) == (0, (), ("mindnano-infer",))
    assert "verify-warning-absent" in report.warnings
    assert "mindnano-infer" in report.text(ENGLISH)
    assert look(folder, home, strict=True).exit_code == 4


def test_what_clients_add_is_not_extra(release: Path, home: dict[str, str]) -> None:
    for name in (".cache/huggingface/download/x.metadata", ".git/config", ".gitattributes"):
        (release / name).parent.mkdir(parents=True, exist_ok=True)
        (release / name).write_text("x")
    assert look(release, home).extra == ()
    (release / ".cache" / "other").write_text("x")
    assert look(release, home).extra == (".cache/other",)


def test_search_for_extra_files_ends(release: Path, home: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(verify_module, "MAX_EXTRA", 30)
    for number in range(40):
        (release / f"extra-{number:03}").write_text("x")
    report = look(release, home)
    assert len(report.extra) == 30
    assert not report.all_extra
    assert "…" in report.text(ENGLISH)


# Signatures.
