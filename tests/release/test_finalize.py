"""A release that lacks something, that other tools reject, or that differs between two runs."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from huggingface_hub import ModelCard

from launcher.engine import Engine, Package, Session
from launcher.engine_types import EngineOptions, KvType, SessionOptions
from launcher.errors import MindnanoError, PackageError
from launcher.integrity.manifest import read_manifest
from launcher.integrity.model_info import read_model_info
from launcher.payload.file import Payload
from release.folder.checkout import Checkout, read_checkout
from release.folder.provenance import PREDICATE, STATEMENT
from release.package.facts import ask, read_package_facts
from tests.release.conftest import Convert
from tests.support.checkpoints import make_checkpoint
from tests.support.demo import require_demo
from tests.support.release_folders import (
    CHECKOUT,
    SOURCES,
    faults,
    files_of,
    look,
    make_release,
    publisher_json,
    stand_in_program,
)

ROOT = Path(__file__).resolve().parents[2]
REVISION = "0123456789abcdef0123456789abcdef01234567"
BASE = {"name": "Ling-3.0-tiny", "license": "mit", "repository": "inclusionAI/Ling-3.0-tiny", "revision": REVISION}


@pytest.fixture(scope="module")
def released(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of the built-in model; not to be changed."""
    return make_release(tmp_path_factory.mktemp("release") / "demo", program, require_demo())


@pytest.fixture
def converted(convert: Convert, tmp_path: Path) -> Path:
    """A package that says that it was made from the released base model."""
    return convert(make_checkpoint(tmp_path / "base"), "w4a8", **BASE)


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def document(path: Path) -> Any:
    return json.loads(text(path))


def test_a_release_is_complete_and_passes_its_check(released: Path) -> None:
    result = look(released)
    assert faults(result) == {}
    assert result.exit_code == 0
    assert all(check.state == "ok" for check in result.checks if check.name != "signature")  # it is not signed
    names = {name for name in files_of(released) if "/" not in name}
    assert names == {
        "LICENSE",
        "LICENSE-WEIGHTS",
        "MANIFEST.json",
        "MODEL.json",
        "NOTICE",
        "NOTICES.txt",
        "README.md",
        "SHA256SUMS",
        "SHA256SUMS.PUBLIC",
        "bom.cdx.json",
        "mindnano-demo.l3r",
        "mindnano-infer",
        "provenance.intoto.json",
    }
    modes = {name: (released / name).stat().st_mode & 0o777 for name in names}
    assert modes == {name: 0o755 if name == "mindnano-infer" else 0o644 for name in names}
    assert not list(released.parent.glob("*.partial"))


def test_coreutils_accept_both_lists(released: Path) -> None:
    for name, count in (("SHA256SUMS", len(files_of(released)) - 1), ("SHA256SUMS.PUBLIC", 11)):
        command = ["sha256sum", "--check", "--strict", name]
        result = subprocess.run(command, cwd=released, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stdout + result.stderr
        assert result.stdout.count(": OK\n") == count
        assert result.stderr == ""


def test_two_runs_give_the_same_bytes(released: Path, program: Path, tmp_path: Path) -> None:
    """Another folder, other times of the inputs, other rights for new files."""
    package = tmp_path / "renamed.l3r"
    package.write_bytes(require_demo().read_bytes())
    os.utime(package, (1_000_000_000, 1_000_000_000))
    before = os.umask(0o077)
    try:
        again = make_release(tmp_path / "again", program, package)
    finally:
        os.umask(before)
    assert files_of(again) == files_of(released)
    assert (again / "MANIFEST.json").stat().st_mode & 0o777 == 0o644
    assert [(again / name).stat().st_mode & 0o777 for name in (".", "notices")] == [0o755, 0o755]


def test_documents_fit_their_schemas(released: Path) -> None:
    for name, schema in (("MANIFEST.json", "manifest.json"), ("MODEL.json", "model.json")):
        jsonschema.validate(document(released / name), document(ROOT / "launcher" / "schemas" / schema))


def test_an_independent_validator_accepts_the_bill(released: Path) -> None:
    bill = text(released / "bom.cdx.json")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    components = {entry["bom-ref"]: entry for entry in json.loads(bill)["components"]}
    sums = dict(line.split("  ")[::-1] for line in text(released / "SHA256SUMS").splitlines())
    assert components["package"]["hashes"][0]["content"] == sums["mindnano-demo.l3r"]
    assert components["mindnano-infer"]["hashes"][0]["content"] == sums["mindnano-infer"]
    assert {"openssl", "cpython", "demo-model"} <= components.keys()


def test_hugging_face_reads_the_card(released: Path) -> None:
    card = ModelCard(text(released / "README.md"), ignore_metadata_errors=False)
    assert card.data.to_dict() == {
        "license": "apache-2.0",
        "language": ["en", "zh"],
        "pipeline_tag": "text-generation",
        "library_name": "mindnano-infer",
        "tags": ["mindnano-infer", "l3r", "bailing_hybrid", "mixture-of-experts", "moe", "w8a8", "demo", "rk3588"],
    }


def test_provenance_names_every_file_and_input(released: Path) -> None:
    statement = document(released / "provenance.intoto.json")
    assert (statement["_type"], statement["predicateType"]) == (STATEMENT, PREDICATE)
    later = {"MANIFEST.json", "SHA256SUMS", "SHA256SUMS.PUBLIC", "provenance.intoto.json"}
    assert {entry["name"] for entry in statement["subject"]} == files_of(released).keys() - later
    definition = statement["predicate"]["buildDefinition"]
    inputs = {entry.get("name", entry.get("uri")): entry["digest"] for entry in definition["resolvedDependencies"]}
    weights = (ROOT / "release" / "demo" / "checkpoint" / "model.safetensors").read_bytes()
    assert inputs["urn:mindnano-infer:source"] == {"gitCommit": CHECKOUT.commit}
    assert inputs["urn:mindnano-infer:program-sources"] == {"sha256": SOURCES}
    assert inputs["checkpoint/model.safetensors"] == {"sha256": hashlib.sha256(weights).hexdigest()}
    assert definition["externalParameters"]["version"] == "1.2.3"


def test_a_program_of_another_source_is_not_released(program: Path, tmp_path: Path) -> None:
    """The commit in manifest and provenance would not be what it was built from."""
    with pytest.raises(PackageError) as caught:
        make_release(tmp_path / "out", program, require_demo(), checkout=replace(CHECKOUT, sources="7" * 64))
    assert caught.value.slug == "release-incomplete"
    for part in ("another source", SOURCES, "7" * 64, "mindnano bundle --target"):
        assert part in caught.value.message
    with Payload(str(program)) as payload:
        older = json.loads(payload.read("sbom.cdx.json"))
    root = older["metadata"]["component"]
    root["properties"] = [entry for entry in root["properties"] if entry["value"] != SOURCES]
    old = stand_in_program(tmp_path / "old", **{"sbom.cdx.json": json.dumps(older).encode()})
    with pytest.raises(PackageError, match=r"does not say what source it was built from; .*mindnano bundle") as caught:
        make_release(tmp_path / "out", old, require_demo())
    assert caught.value.slug == "release-incomplete"
    assert not (tmp_path / "out").exists()


def test_the_known_answer_does_not_depend_on_the_kernels(released: Path) -> None:
    known = read_model_info(released).known_answer  # type: ignore[union-attr]
    assert known is not None
    with Package(require_demo()) as package:
        options = SessionOptions(context=64, kv_type=KvType.F32)
        with Engine(package, EngineOptions(threads=1, simd="scalar")) as engine, Session(engine, options) as session:
            found = []
            step: tuple[int, ...] = known.prompt
            for _ in known.continuation:
                session.eval(step)
                logits = session.logits()
                found.append(max(range(package.config.token_count), key=lambda token: logits[token]))
                step = (found[-1],)
    assert tuple(found) == known.continuation == ask(require_demo()).continuation


def test_figures_are_those_of_the_package(released: Path) -> None:
    info = read_model_info(released)
    assert info is not None
    assert info.shapes["parameters"] == 4_812_504
    assert info.shapes["layers"] == 8
    assert (info.native_context, info.maximum_context, info.mtp) == (4096, 8192, True)
    assert "4,812,504" in text(released / "README.md")


def test_a_converted_model_names_its_base_everywhere(program: Path, converted: Path, tmp_path: Path) -> None:
    folder = make_release(tmp_path / "out", program, converted)
    assert faults(look(folder)) == {}
    assert (folder / "ling3-tiny-w4.l3r").is_file()
    card = ModelCard(text(folder / "README.md"), ignore_metadata_errors=False)
    assert card.data.license == "mit"
    assert card.data.base_model == "inclusionAI/Ling-3.0-tiny"
    assert card.data.to_dict()["base_model_relation"] == "quantized"
    assert f"revision `{REVISION}`" in card.text
    assert REVISION in text(folder / "NOTICE")
    assert text(folder / "LICENSE-WEIGHTS").startswith("MIT License\n\nCopyright (c) inclusionAI\n")
    ancestors = [entry for entry in document(folder / "bom.cdx.json")["components"] if "pedigree" in entry]
    assert REVISION in ancestors[-1]["pedigree"]["ancestors"][0]["purl"]
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text(folder / "bom.cdx.json")) is None


def test_other_terms_bring_the_base_models_along(program: Path, converted: Path, tmp_path: Path) -> None:
    given = tmp_path / "LICENSE.base"
    given.write_bytes(text(ROOT / "release/folder/licences/MIT.txt").format(copyright="Copyright (c) 2026 X").encode())
    options = {"weights_licence": "cc-by-nc-4.0", "base_licence_file": given}
    folder = make_release(tmp_path / "out", program, converted, **options)
    assert faults(look(folder)) == {}
    assert ModelCard(text(folder / "README.md"), ignore_metadata_errors=False).data.license == "cc-by-nc-4.0"
    assert text(folder / "LICENSE-WEIGHTS").startswith("Creative Commons Attribution-NonCommercial 4.0")
    assert (folder / "LICENSE-BASE-MODEL").read_bytes() == given.read_bytes()
    licences = {file.path: file.licence for file in read_manifest(folder).files}  # type: ignore[union-attr]
    assert (licences["ling3-tiny-w4.l3r"], licences["LICENSE-BASE-MODEL"]) == ("CC-BY-NC-4.0", "MIT")
    assert licences["mindnano-infer"] == "Apache-2.0"


def test_rockchips_library_is_under_its_own_terms(tmp_path: Path) -> None:
    program = stand_in_program(tmp_path / "program", runtime=True)
    folder = make_release(tmp_path / "out", program, require_demo())
    assert faults(look(folder)) == {}
    described = read_manifest(folder)
    assert described is not None
    terms = described.redistribution["rknn-runtime"]
    assert terms.startswith("vendor-license; SHA-256 ")
    assert terms.split()[2].rstrip(";") in text(folder / "NOTICE")
    licences = {file.path: file.licence for file in described.files}
    assert licences["mindnano-infer"] == "Apache-2.0 AND LicenseRef-Rockchip"


def test_the_card_names_publisher_and_runtime(converted: Path, tmp_path: Path) -> None:
    publisher = json.dumps({**json.loads(publisher_json()), "repository": "some-org/model"}).encode()
    program = stand_in_program(tmp_path / "program", runtime=True, publisher=publisher)
    folder = make_release(tmp_path / "out", program, converted)
    assert faults(look(folder)) == {}
    found = ModelCard(text(folder / "README.md"), ignore_metadata_errors=False).data.to_dict()
    assert found["quantized_by"] == "some-org"
    assert found["tags"][-2:] == ["rk3588", "rknn"]


def test_without_rockchips_library_the_release_says_so(released: Path) -> None:
    assert read_manifest(released).redistribution == {"rknn-runtime": "not carried"}  # type: ignore[union-attr]
    assert "librknnrt.so, by Rockchip, is not part of this release" in text(released / "NOTICE")


def test_everything_that_is_missing_is_listed_at_once(micro: Path, convert: Convert, tmp_path: Path) -> None:
    """No version of the base model, no licence, no texts in the program, no commit and no date."""
    package = convert(micro, repository="org/base")
    program = stand_in_program(tmp_path / "program", **{"NOTICES.txt": None, "sbom.cdx.json": None})
    with pytest.raises(PackageError) as caught:
        make_release(
            tmp_path / "out",
            program,
            package,
            checkout=Checkout(commit=None, epoch=None, sources=SOURCES),
            fidelity=(tmp_path / "none.json",),
        )
    message = caught.value.message
    assert caught.value.slug == "release-incomplete"
    for part in (
        "carries no NOTICES.txt",
        "carries no sbom.cdx.json",
        "the base model org/base and no revision of it",
        "SOURCE_DATE_EPOCH",
    ):
        assert part in message
    with pytest.raises(PackageError) as caught:
        make_release(tmp_path / "out", tmp_path / "none", convert(micro, **{**BASE, "license": None}))
    assert "there is no file" in caught.value.message
    assert "convert it again with --license" in caught.value.message
    assert not (tmp_path / "out").exists()


def broken(program: Path, place: int) -> bytes:
    data = bytearray(program.read_bytes())
    data[place] ^= 1
    return bytes(data)


@pytest.mark.parametrize("place", [10, -1, -70, -30_000])
def test_a_damaged_program_is_refused(program: Path, tmp_path: Path, place: int) -> None:
    damaged = tmp_path / "mindnano-infer"
    damaged.write_bytes(broken(program, place))
    with pytest.raises(PackageError) as caught:
        make_release(tmp_path / "out", damaged, require_demo())
    assert "the program" in caught.value.message
    assert list(tmp_path.iterdir()) == [damaged]


@pytest.mark.parametrize(
    ("member", "content"),
    [
        ("sbom.cdx.json", b"[]"),
        ("sbom.cdx.json", b"{}"),
        ("sbom.cdx.json", b"\xff"),
        ("sbom.cdx.json", b'{"metadata": {"component": {"bom-ref": "x", "licenses": []}}}'),
        ("sbom.cdx.json", b"[" * 100_000),
        ("notices/index.json", b"{}"),
        ("notices/index.json", b'{"components": [{"file": "notices/none.txt"}]}'),
        ("publisher.json", b"{}"),
    ],
)
def test_a_program_of_any_content_never_crashes_it(tmp_path: Path, member: str, content: bytes) -> None:
    program = stand_in_program(tmp_path / "program", **{member: content})
    with pytest.raises(PackageError) as caught:
        make_release(tmp_path / "out", program, require_demo())
    assert caught.value.slug == "release-incomplete"


@pytest.mark.parametrize(
    ("options", "slug", "code"),
    [
        ({"version": "one"}, "version-invalid", 2),
        ({"version": "1"}, "version-invalid", 2),
        ({"name": "../up"}, "name-invalid", 2),
        ({"name": ""}, "name-invalid", 2),
        ({"weights_licence": "GPL-3.0-only"}, "release-incomplete", 4),
        ({"base_licence_file": ROOT / "NOTICE"}, "release-incomplete", 4),
        ({"fidelity": (ROOT / "NOTICE",)}, "release-incomplete", 4),
    ],
)
def test_what_cannot_be_is_refused(program: Path, tmp_path: Path, options: Any, slug: str, code: int) -> None:
    with pytest.raises(MindnanoError) as caught:
        make_release(tmp_path / "out", program, require_demo(), **options)
    assert (caught.value.slug, caught.value.exit_code) == (slug, code)
    assert list(tmp_path.iterdir()) == []


def test_the_last_second_can_be_written(program: Path, tmp_path: Path) -> None:
    checkout = replace(read_checkout({"SOURCE_DATE_EPOCH": "253402300799"}, tmp_path), sources=SOURCES)
    folder = make_release(tmp_path / "out", program, require_demo(), checkout=checkout)
    assert "9999-12-31T23:59:59Z" in text(folder / "bom.cdx.json")


def test_a_package_by_another_name_keeps_the_models_name(program: Path, tmp_path: Path) -> None:
    folder = make_release(tmp_path / "out", program, require_demo(), name="small_1.0")
    assert (folder / "small_1.0.l3r").is_file()
    assert faults(look(folder)) == {}


def test_half_a_base_model_is_said(convert: Convert, micro: Path) -> None:
    for source in ({"repository": "org/base"}, {"revision": REVISION}, {"repository": "base", "revision": REVISION}):
        facts, gaps = read_package_facts(convert(micro, **source))
        assert facts is None
        assert len(gaps) == 1
