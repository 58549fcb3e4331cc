"""A changed release that passes for the published one, by accident or on purpose, or an intact one that does not."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from launcher.errors import PackageError
from launcher.integrity.manifest import read_manifest
from launcher.payload.file import Payload
from release import cli
from release.folder.verify_result import CHECKS
from tests.release.conftest import Convert
from tests.support.checkpoints import make_checkpoint
from tests.support.demo import require_demo
from tests.support.release_folders import edit, faults, files_of, look, make_release, reseal, stand_in_program
from tests.support.verification import flip

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "release" / "folder" / "schemas" / "verify.json").read_text(encoding="utf-8"))
REVISION, OTHER = "0123456789abcdef0123456789abcdef01234567", "f" * 40
PROGRAM, PACKAGE = "mindnano-infer", "mindnano-demo.l3r"
TOP = (
    *("LICENSE", "LICENSE-WEIGHTS", "MANIFEST.json", "MODEL.json", "NOTICE", "NOTICES.txt", "README.md"),
    *("SHA256SUMS", "SHA256SUMS.PUBLIC", "bom.cdx.json", PACKAGE, PROGRAM, "provenance.intoto.json"),
    "notices/openssl.txt",
)


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of the built-in model; not to be changed."""
    folder = tmp_path_factory.mktemp("release")
    return make_release(folder / "demo", stand_in_program(folder / "program", runtime=True), require_demo())


@pytest.fixture
def folder(released: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(released, tmp_path / "release"))


@pytest.fixture
def converted(convert: Convert, tmp_path: Path) -> Path:
    """A release of a model that was made from another one, which a test may damage."""
    names = {"name": "small", "license": "MIT", "repository": "org/base", "revision": REVISION}
    package = convert(make_checkpoint(tmp_path / "base"), "w8a8", **names)
    return make_release(tmp_path / "converted", stand_in_program(tmp_path / "program"), package)


def command(capsys: pytest.CaptureFixture[str], folder: Path, *words: str) -> tuple[int, str, str]:
    """Exit code, stdout and stderr of `mindnano verify`."""
    code = cli.main(["verify", str(folder), *words])
    streams = capsys.readouterr()
    return code, streams.out, streams.err


def report(capsys: pytest.CaptureFixture[str], folder: Path) -> Any:
    code, out, _ = command(capsys, folder, "--json")
    document = json.loads(out)
    jsonschema.validate(document, SCHEMA)
    assert document["exit_code"] == code
    return document


def test_an_intact_release_passes_and_stays_as_it_is(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = files_of(folder)
    document = report(capsys, folder)
    assert document["ok"] is True
    assert [check["name"] for check in document["checks"]] == list(CHECKS)
    states = {check["name"]: check["state"] for check in document["checks"]}
    assert states.pop("signature") == "warn"  # it is not signed
    assert set(states.values()) == {"ok"}
    assert document["release"] == {"model": "mindnano-demo", "version": "1.2.3"}
    code, out, _ = command(capsys, folder)
    assert (code, out.splitlines()[-1]) == (0, "complete and as released; warned of: signature")
    assert files_of(folder) == before


@pytest.mark.parametrize("name", TOP)
@pytest.mark.parametrize("where", ["begin", "middle", "end"])
def test_a_flipped_bit_in_any_file_is_found(
    folder: Path, capsys: pytest.CaptureFixture[str], name: str, where: str
) -> None:
    size = (folder / name).stat().st_size
    flip(folder / name, {"begin": 0, "middle": size // 2, "end": size - 1}[where])
    code, out, errors = command(capsys, folder)
    assert code == 4
    assert name in (out or errors.splitlines()[-2])
    assert out or name.startswith("SHA256SUMS"), "only a list that cannot be read ends the check"


@pytest.mark.parametrize("name", TOP)
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    result = look(folder)
    assert result.exit_code == 4
    if name.startswith("SHA256SUMS"):
        assert faults(result)["sums"] == (f"{name} is missing",)
    else:
        assert f"missing: {name}" in faults(result)["files"]


@pytest.mark.parametrize("name", [PROGRAM, PACKAGE, "NOTICE", "notices/openssl.txt"])
def test_a_renamed_file_is_named_with_its_old_name(folder: Path, name: str) -> None:
    (folder / name).rename(folder / "other")
    assert f"renamed: {name} is here as other" in faults(look(folder))["files"]


def test_extra_files_are_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "notices" / "more").mkdir()
    (folder / "notices" / "more" / "x").write_text("x")
    (folder / "README.md.orig").write_text("x")
    code, out, _ = command(capsys, folder)
    assert code == 4
    assert "- extra: README.md.orig" in out
    assert "- extra: notices/more/x" in out
    assert "2 found" in out.splitlines()[-1]


def test_a_link_out_of_the_folder_is_no_file_of_it(folder: Path, tmp_path: Path) -> None:
    (folder / "NOTICE").rename(tmp_path / "NOTICE")
    (folder / "NOTICE").symlink_to(tmp_path / "NOTICE")
    assert "unreadable: NOTICE (link-leaves-folder)" in faults(look(folder))["files"]


@pytest.mark.parametrize("name", ["SHA256SUMS", "SHA256SUMS.PUBLIC"])
@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda data: data.replace(b"\n", b"\r\n"), "crlf"),
        (lambda data: b"\xef\xbb\xbf" + data, "bom"),
        (lambda data: data + b"\n", "blank-lines"),
        (lambda data: data.replace(b"  ", b" "), "single-space"),
        (lambda data: b"".join(sorted(data.splitlines(keepends=True))), "not sorted"),
    ],
)
def test_lists_that_others_may_not_read_are_named(
    folder: Path, name: str, change: Callable[[bytes], bytes], word: str
) -> None:
    path = folder / name
    path.write_bytes(change(path.read_bytes()))
    result = look(folder)
    assert result.exit_code == 4
    found = [fault for fault in faults(result)["sums"] if word in fault]
    assert found
    assert all(fault.startswith(f"{name} ") for fault in found)


@pytest.mark.parametrize(
    "data", [b"", b"\0" * 100, b"da39a3ee5e6b4b0d3255bfef95601890afd80709  NOTICE\n", b"  NOTICE\n"]
)
def test_a_list_that_is_none_ends_with_an_error(folder: Path, capsys: pytest.CaptureFixture[str], data: bytes) -> None:
    (folder / "SHA256SUMS").write_bytes(data)
    document = report(capsys, folder)
    assert (document["ok"], document["exit_code"], document["error"]["slug"]) == (False, 4, "sums-invalid")


def test_what_is_no_release_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for place in (tmp_path, tmp_path / "none"):
        document = report(capsys, place)
        assert document["exit_code"] == 4
        assert document["error"]["hint"]


def test_the_flat_set_passes_alone(folder: Path) -> None:
    """As somebody has it who downloaded what Hugging Face shows."""
    shutil.rmtree(folder / "notices")
    (folder / "SHA256SUMS").unlink()
    result = look(folder)
    assert faults(result) == {}
    assert not result.complete
    assert "the flat set" in result.to_text()


# From here on sums and sizes hold: somebody changed the release on purpose, or a publisher made it wrongly.


@pytest.mark.parametrize(
    ("name", "check"), [("MODEL.json", "base-model"), ("README.md", "card"), ("provenance.intoto.json", "provenance")]
)
def test_a_wrong_base_revision_is_found_wherever_it_stands(
    converted: Path, capsys: pytest.CaptureFixture[str], name: str, check: str
) -> None:
    assert faults(look(converted)) == {}
    edit(converted / name, REVISION, OTHER)
    reseal(converted)
    found = faults(look(converted))
    assert any(OTHER in fault for fault in found[check])
    assert command(capsys, converted)[0] == 4
    assert "files" not in found


def test_a_wrong_base_model_is_found(converted: Path) -> None:
    edit(converted / "README.md", "base_model: org/base", "base_model: org/other")
    reseal(converted)
    assert faults(look(converted))["card"] == ("its base_model is org/other, expected org/base",)


@pytest.mark.parametrize(
    ("old", "new", "part"),
    [
        ("license: apache-2.0", "license: mit", "license is mit, expected apache-2.0"),
        ("license: apache-2.0\n", "", "has no license"),
        ("pipeline_tag: text-generation", "pipeline_tag: chat", "pipeline_tag is chat"),
        ("- en\n", "", "language is zh, expected en, zh"),
        ("- w8a8\n", "- w4a8\n", "tags lack w8a8"),
        ("---\nlicense", "--\nlicense", "does not begin with metadata"),
        ("license: apache-2.0", "license: {a: b}", "is no plain value"),
        ("license: apache-2.0", "license: yes", "is no plain value"),
        ("license: apache-2.0", "license: mit\nlicense: apache-2.0", "stands twice"),
        ("library_name: mindnano-infer", "library_name: mindnano-infer\nbase_model: org/x", "has a base_model"),
    ],
)
def test_wrong_metadata_of_the_card_is_found(folder: Path, old: str, new: str, part: str) -> None:
    edit(folder / "README.md", old, new)
    reseal(folder)
    found = faults(look(folder))
    assert list(found) == ["card", "provenance"]
    assert any(part in fault for fault in found["card"])


@pytest.mark.parametrize(
    ("name", "check"),
    [
        ("LICENSE", "licences"),
        ("LICENSE-WEIGHTS", "licences"),
        ("NOTICE", "licences"),
        ("NOTICES.txt", "program"),
        ("notices/openssl.txt", "program"),
        ("notices/index.json", "program"),
    ],
)
def test_a_text_that_is_replaced_is_found(folder: Path, name: str, check: str) -> None:
    (folder / name).write_text("All rights reserved.\n")
    reseal(folder)
    found = faults(look(folder))
    assert any(name in fault for fault in found[check])


@pytest.mark.parametrize("name", ["LICENSE", "LICENSE-WEIGHTS", "NOTICE", "NOTICES.txt", "bom.cdx.json", "README.md"])
def test_a_file_that_no_list_asks_for_any_more_is_missed(folder: Path, name: str) -> None:
    (folder / name).unlink()
    described = read_manifest(folder)
    assert described is not None
    reseal(folder)
    assert f"it does not list {name}" in faults(look(folder))["manifest"]


def test_other_terms_for_rockchips_library_are_found(folder: Path) -> None:
    reseal(folder, redistribution={"rknn-runtime": "not carried"})
    assert any("'not carried' of rknn-runtime" in fault for fault in faults(look(folder))["program"])
    reseal(folder, redistribution={})
    assert "manifest" in faults(look(folder))


def test_another_program_is_found(folder: Path, tmp_path: Path) -> None:
    """A sound program, but not the one that bill, notices and card are about."""
    shutil.copy(stand_in_program(tmp_path / "program", runtime=False), folder / PROGRAM)
    reseal(folder)
    found = faults(look(folder))
    assert {"program", "sbom"} <= found.keys()


def test_a_program_with_a_broken_payload_is_found(folder: Path) -> None:
    with Payload(str(folder / PROGRAM)) as payload:
        place = payload.member("sbom.cdx.json").offset
    flip(folder / PROGRAM, place)
    reseal(folder)
    assert any("seal" in fault for fault in faults(look(folder))["program"])


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda bill: bill.update(specVersion="1.4"), "specVersion"),
        (lambda bill: bill.update(serialNumber="1"), "serialNumber"),
        (lambda bill: bill["metadata"].update(timestamp="today"), "timestamp"),
        (lambda bill: bill["components"].pop(2), "does not list"),
        (lambda bill: bill["components"][-1]["hashes"][0].update(content="0" * 64), "gives package another SHA-256"),
        (lambda bill: bill["components"][-1].update(licenses=[{"expression": "MIT"}]), "another licence"),
        (lambda bill: bill["components"][3].update(version="0"), "another version or licence"),
        (lambda bill: bill["components"][3].pop("name"), "lacks a known type, a name or a version"),
        (lambda bill: bill["components"].append(dict(bill["components"][3])), "stands twice"),
        (lambda bill: bill["dependencies"].append({"ref": "nowhere"}), "nowhere"),
        (lambda bill: bill.pop("components"), "does not list"),
        (lambda bill: bill.pop("metadata"), "not what the format asks for"),
    ],
)
def test_a_wrong_bill_of_materials_is_found(folder: Path, change: Callable[[Any], object], part: str) -> None:
    path = folder / "bom.cdx.json"
    bill = json.loads(path.read_text(encoding="utf-8"))
    change(bill)
    path.write_text(json.dumps(bill))
    reseal(folder)
    found = faults(look(folder))
    assert "sbom" in found
    assert any(part in fault for fault in found["sbom"])


@pytest.mark.parametrize(
    ("name", "check", "value"),
    [
        ("bom.cdx.json", "sbom", "[]"),
        ("bom.cdx.json", "sbom", "{"),
        ("bom.cdx.json", "sbom", '{"components": 5, "metadata": 7}'),
        ("provenance.intoto.json", "provenance", "[]"),
        ("provenance.intoto.json", "provenance", "{}"),
        ("provenance.intoto.json", "provenance", "\x00"),
        ("README.md", "card", ""),
        ("README.md", "card", "---\n---\n"),
    ],
)
def test_documents_of_any_content_never_crash_it(folder: Path, name: str, check: str, value: str) -> None:
    (folder / name).write_text(value)
    reseal(folder)
    assert check in faults(look(folder))


@pytest.mark.parametrize(("key", "word"), [("source_sha256", "source"), ("commit", "commit")])
@pytest.mark.parametrize("value", [None, "f"])
def test_another_source_than_that_of_the_program_shows(folder: Path, key: str, word: str, value: str | None) -> None:
    reseal(folder, **{key: None if value is None else value * (40 if key == "commit" else 64)})
    found = faults(look(folder))
    assert [fault for fault in found["provenance"] if f"{word} as" in fault] == list(found["provenance"])
    assert list(found) == (["provenance"] if key == "commit" else ["program", "provenance"])


def test_provenance_must_be_about_these_files(folder: Path) -> None:
    path = folder / "provenance.intoto.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document["subject"] = [*document["subject"][1:], {"name": "x", "digest": {"sha256": "0" * 64}}]
    document["subject"][0]["digest"]["sha256"] = "0" * 64
    path.write_text(json.dumps(document))
    reseal(folder)
    found = " ".join(faults(look(folder))["provenance"])
    assert "it is not about LICENSE" in found
    assert "about x, which" in found
    assert "the SHA-256 000" in found


@pytest.mark.parametrize(
    ("key", "value", "check"),
    [
        ("known_answer", {"prompt": [16, 11], "continuation": [1, 2, 3]}, "known-answer"),
        ("known_answer", None, "known-answer"),
        ("tokenizer_sha256", "0" * 64, "package"),
        ("template_sha256", "0" * 64, "package"),
        ("maximum_context", 4, "package"),
        ("mtp", False, "package"),
        ("shapes", {"layers": 24}, "package"),
        ("licence", "MIT", "licences"),
        ("base", {"repository": "org/base", "revision": REVISION}, "base-model"),
    ],
)
def test_a_wrong_description_of_the_weights_is_found(folder: Path, key: str, value: object, check: str) -> None:
    path = folder / "MODEL.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    document[key] = value
    path.write_text(json.dumps(document))
    reseal(folder)
    assert check in faults(look(folder))


def test_other_weights_under_the_same_description_are_found(folder: Path, convert: Convert, micro: Path) -> None:
    old = (folder / PACKAGE).read_bytes()
    other = convert(micro, "w8a8", name="mindnano-demo", license="Apache-2.0")
    shutil.copy(other, folder / PACKAGE)
    reseal(folder)
    with pytest.raises(PackageError) as caught:
        look(folder)
    assert caught.value.slug == "release-contradiction"
    edit(folder / "MODEL.json", json.loads((folder / "MODEL.json").read_text())["package"]["sha256"], sha256_of(other))
    edit(folder / "MODEL.json", f'"size": {len(old)}', f'"size": {other.stat().st_size}')
    reseal(folder)
    assert {"package", "known-answer", "card", "sbom"} <= faults(look(folder)).keys()


def sha256_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_a_program_that_is_too_old_for_its_release_is_found(folder: Path, tmp_path: Path) -> None:
    with Payload(str(folder / PROGRAM)) as payload:
        bill = json.loads(payload.read("sbom.cdx.json"))
    bill["metadata"]["component"]["version"] = "0.0.9"
    changed = {"sbom.cdx.json": json.dumps(bill).encode()}
    shutil.copy(stand_in_program(tmp_path / "program", runtime=True, **changed), folder / PROGRAM)
    reseal(folder)
    assert "it is 0.0.9, the release asks for 0.1.0 or newer" in faults(look(folder))["program"]
