"""A damaged, foreign or older release that passes; an intact one that does not; a report that lies about it."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from launcher.errors import Cancelled, MindnanoError, PackageError, TrustError
from launcher.integrity import stamps
from launcher.integrity import verify as verify_module
from launcher.integrity.claims import SignatureState
from launcher.integrity.hashing import FileDigest, sha256_file
from launcher.integrity.model_info import ModelInfo, PackageFile, Quantization
from launcher.integrity.publisher import Publisher
from launcher.integrity.signature import KeyUse
from launcher.integrity.verify import Known, VerificationState, require_verified, run_verify, verification_state, verify
from launcher.integrity.verify_report import Reason, VerifyReport
from launcher.messages import Catalogue, Language
from tests.support.releases import TOY_FILES, Signer, publisher, sha256, write_release

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "launcher" / "schemas" / "verify.json").read_text())
ENGLISH, CHINESE = Catalogue(Language.ENGLISH), Catalogue(Language.CHINESE)
SIGNER, RECOVERY, STRANGER = (Signer.from_seed(number) for number in (1, 2, 3))
TRUSTED = publisher(SIGNER.public(), RECOVERY.public(KeyUse.RECOVERY))
NOBODY = publisher()


@dataclass(frozen=True)
class Words:
    """What the command needs of the command line."""

    operand: str | None = None
    model: Path | None = None
    json: bool = False
    strict: bool = False


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return write_release(tmp_path / "release", signer=SIGNER)


def look(folder: Path, home: dict[str, str], by: Publisher = TRUSTED, *, strict: bool = False) -> VerifyReport:
    report = verify(folder, home, ENGLISH, strict=strict, publisher=by, stream=io.StringIO())
    jsonschema.validate(report.document(), SCHEMA)
    assert report.text(CHINESE)
    return report


def failure(folder: Path, home: dict[str, str], by: Publisher = TRUSTED) -> MindnanoError:
    with pytest.raises(MindnanoError) as caught:
        look(folder, home, by)
    return caught.value


def flip(path: Path, place: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


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


def test_release_without_a_signature_warns(tmp_path: Path, home: dict[str, str]) -> None:
    folder = write_release(tmp_path / "r")
    report = look(folder, home)
    assert (report.exit_code, report.claims.state) == (0, SignatureState.NONE)
    assert "has no signature" in report.text(ENGLISH)
    assert look(folder, home, strict=True).exit_code == 4


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


def run_command(words: Words, home: dict[str, str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    code = run_verify(words, home, ENGLISH)
    found = capsys.readouterr()
    return code, found.out, found.err


def test_json_is_the_only_thing_on_stdout(
    release: Path, home: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = run_command(Words(operand=str(release), json=True), home, capsys)
    document = json.loads(out)
    jsonschema.validate(document, SCHEMA)
    assert code == document["exit_code"] == 0
    assert document["ok"] is True
    assert [entry["slug"] for entry in document["warnings"]] == ["verify-warning-no-key"]
    assert "Hashing release" in err
    assert "\r" not in err
    assert "\x1b" not in err


def test_json_of_an_error_is_a_document_too(
    tmp_path: Path, home: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(PackageError):
        run_verify(Words(operand=str(tmp_path), json=True), home, ENGLISH)
    document = json.loads(capsys.readouterr().out)
    jsonschema.validate(document, SCHEMA)
    assert document["error"]["slug"] == "nothing-to-verify"
    assert document["exit_code"] == 4


def test_folder_is_that_of_the_model_or_the_current_one(
    release: Path, home: dict[str, str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["/nonexistent/mindnano-infer"])
    assert run_command(Words(model=release / "toy.l3r"), home, capsys)[0] == 0
    with pytest.raises(PackageError):
        run_verify(Words(), home, ENGLISH)
    monkeypatch.chdir(release)
    assert run_command(Words(), home, capsys)[0] == 0
    monkeypatch.chdir("/")
    monkeypatch.setattr(sys, "argv", [str(release / "mindnano-infer")])
    assert run_command(Words(), home, capsys)[0] == 0


def test_name_that_is_no_unicode_is_shown(
    release: Path, home: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    (release / os.fsdecode(b"\xff")).write_text("x")
    assert json.loads(run_command(Words(operand=str(release), json=True), home, capsys)[1])["extra"] == ["\udcff"]
    assert "\\udcff" in run_command(Words(operand=str(release)), home, capsys)[1]


INTERRUPTED = """
import sys
from pathlib import Path
from launcher.messages import Catalogue, Language
from launcher.integrity.verify import verify
try:
    verify(Path(sys.argv[1]), {}, Catalogue(Language.ENGLISH))
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_interrupt_stops_the_hashing(tmp_path: Path) -> None:
    """Three files of 64 GiB each (holes), which would take minutes."""
    lines = ""
    for name in "abc":
        with (tmp_path / name).open("wb") as file:
            file.truncate(64 << 30)
        lines += f"{'0' * 64}  {name}\n"
    (tmp_path / "SHA256SUMS").write_text(lines)
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED, str(tmp_path)],
        cwd=ROOT,
        stderr=subprocess.PIPE,
    )
    try:
        wait_until_reading(process.pid, tmp_path)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert b"stopped at" in err


def wait_until_reading(process: int, folder: Path) -> None:
    """Returns once the process has a file of the folder open."""
    for _ in range(3000):
        for link in Path(f"/proc/{process}/fd").glob("*"):
            try:
                if link.readlink().parent == folder and link.readlink().name != "SHA256SUMS":
                    return
            except OSError:
                continue
        time.sleep(0.01)
    raise AssertionError("nothing was read")


class ClosedPipe(io.StringIO):
    """A stream whose reader has gone."""

    def write(self, text: str) -> int:
        raise BrokenPipeError


def test_reader_of_the_progress_that_goes_away_is_no_success(release: Path, home: dict[str, str]) -> None:
    with pytest.raises(Cancelled):
        verify(release, home, ENGLISH, publisher=TRUSTED, stream=ClosedPipe())


def test_many_files_are_hashed_each_once(tmp_path: Path, home: dict[str, str]) -> None:
    files = {f"f/{number:04}": b"%d" % number for number in range(2000)}
    report = look(write_release(tmp_path / "r", files), home)
    assert report.intact == 2001


# Before a package is used.


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
