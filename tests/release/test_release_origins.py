"""A release that hides where a part of its weights comes from, or that puts a part under terms that are not its own."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from huggingface_hub import ModelCard

from launcher.errors import InternalError, PackageError
from launcher.integrity.manifest import read_manifest
from launcher.integrity.model_info import Donor, read_model_info
from launcher.payload.file import Payload
from release.demo.train import Plan
from release.folder.checkout import Checkout
from release.folder.fidelity import DEMO_REPORTS
from release.folder.weights_licences import LICENCES, WeightsLicence, is_text_of, licence_text, may_hold
from release.mtp.append import AppendOptions, append
from release.mtp.extract import ExtractOptions, extract
from release.package.facts import read_package_facts
from release.package.stated import read_stated
from tests.release.conftest import Convert
from tests.support.checkpoints import write_safetensors
from tests.support.demo import require_demo
from tests.support.release_folders import SOURCES, edit, faults, files_of, look, make_release, reseal, stand_in_program

REVISION, OTHER = "0123456789abcdef0123456789abcdef01234567", "f" * 40
BASE = {"name": "Ling-3.0-tiny", "license": "mit", "repository": "inclusionAI/Ling-3.0-tiny", "revision": REVISION}
Join = Callable[..., Path]


@pytest.fixture
def join(micro: Path, convert: Convert, tmp_path: Path) -> Join:
    """A package under MIT with an MTP layer that was appended; says of its donor what it is told."""

    def run(repository: str | None, revision: str | None, licence: str | None, **base: Any) -> Path:
        count = len(list(tmp_path.glob("joined-*")))
        head, joined = tmp_path / f"head-{count}.mtp.l3r", tmp_path / f"joined-{count}.l3r"
        with redirect_stderr(io.StringIO()):
            trunk = convert(micro, "w8a8", drop_mtp=True, **{**BASE, **base})
            options = {"repository": repository, "revision": revision, "license": licence}
            extract(ExtractOptions(source=micro, output=head, trunk=trunk, **options))
            append(AppendOptions(trunk=trunk, donor=head, output=joined))
        return joined

    return run


def gaps(program: Path, package: Path, folder: Path, **options: Any) -> str:
    """What is missing or wrong, one a line; nothing may be written."""
    with pytest.raises(PackageError) as caught:
        make_release(folder, program, package, **options)
    assert (caught.value.slug, caught.value.exit_code) == ("release-incomplete", 4)
    assert not folder.exists()
    return caught.value.message


def text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def test_a_donor_is_named_nowhere(program: Path, join: Join, tmp_path: Path) -> None:
    folder = make_release(tmp_path / "out", program, join("other-org/donor", OTHER, "apache-2.0", license="apache-2.0"))
    assert faults(look(folder)) == {}
    info = read_model_info(folder)
    assert info is not None
    assert info.mtp_donor == Donor(repository="other-org/donor", revision=OTHER, licence="Apache-2.0")
    for name in ("MODEL.json", "README.md", "NOTICE", "bom.cdx.json", "provenance.intoto.json"):
        for part in ("other-org/donor", OTHER, "Apache-2.0"):
            assert part in text(folder / name), (name, part)
    bill = text(folder / "bom.cdx.json")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    (package,) = (entry for entry in json.loads(bill)["components"] if entry["bom-ref"] == "package")
    ancestors = {entry["name"]: entry["licenses"] for entry in package["pedigree"]["ancestors"]}
    assert ancestors == {
        "inclusionAI/Ling-3.0-tiny": [{"expression": "Apache-2.0"}],
        "other-org/donor": [{"expression": "Apache-2.0"}],
    }
    statement = json.loads(text(folder / "provenance.intoto.json"))
    inputs = {entry.get("name"): entry for entry in statement["predicate"]["buildDefinition"]["resolvedDependencies"]}
    assert inputs["mtp-donor"]["uri"] == "https://huggingface.co/other-org/donor"
    assert inputs["mtp-donor"]["digest"] == {"gitCommit": OTHER}
    assert inputs["mtp-donor"]["annotations"] == {"license": "Apache-2.0"}
    assert inputs["base-model"]["digest"] == {"gitCommit": REVISION}
    licences = {file.path: file.licence for file in read_manifest(folder).files}  # type: ignore[union-attr]
    assert licences["LICENSE-MTP-DONOR"] == "Apache-2.0"
    ModelCard(text(folder / "README.md"), ignore_metadata_errors=False)


def test_the_same_inputs_with_a_donor_give_other_bytes(program: Path, join: Join, tmp_path: Path) -> None:
    package = join("other-org/donor", OTHER, "MIT")
    first, second = (make_release(tmp_path / name, program, package) for name in ("a", "b"))
    assert files_of(first) == files_of(second)
    assert text(first / "LICENSE-MTP-DONOR").startswith("MIT License\n\nCopyright (c) other-org\n")


def test_a_donor_under_terms_that_ask_for_more_goes_out_under_the_trunks(
    program: Path, join: Join, tmp_path: Path
) -> None:
    package = join("evil/donor", OTHER, "CC-BY-NC-4.0")
    said = gaps(program, package, tmp_path / "out")
    assert "evil/donor under CC-BY-NC-4.0, which asks for more than MIT" in said
    assert "--weights-license CC-BY-NC-4.0" in said
    assert "asks for more than Apache-2.0" in gaps(program, package, tmp_path / "out", weights_licence="Apache-2.0")
    folder = make_release(tmp_path / "out", program, package, weights_licence="CC-BY-NC-4.0")
    assert faults(look(folder)) == {}
    assert ModelCard(text(folder / "README.md"), ignore_metadata_errors=False).data.license == "cc-by-nc-4.0"
    assert "The base model is under MIT" in text(folder / "README.md")


def test_weights_that_ask_for_more_go_out_under_less(program: Path, join: Join, tmp_path: Path) -> None:
    package = join("org/free", OTHER, "MIT", license="CC-BY-NC-4.0")
    said = gaps(program, package, tmp_path / "out", weights_licence="MIT")
    assert "the weights came under CC-BY-NC-4.0, which asks for more than MIT" in said


def test_the_order_of_licences_lets_a_part_out_under_less() -> None:
    allowed = {(whole.spdx, part.spdx) for whole in LICENCES for part in LICENCES if may_hold(whole, part)}
    same = {(licence.spdx, licence.spdx) for licence in LICENCES}
    assert allowed - same == {("Apache-2.0", "MIT"), ("CC-BY-NC-4.0", "MIT"), ("CC-BY-NC-4.0", "Apache-2.0")}


@pytest.mark.parametrize("licence", LICENCES, ids=lambda licence: licence.spdx)
def test_a_part_of_a_licence_is_its_text(licence: WeightsLicence) -> None:
    whole = licence_text(licence, None)
    assert is_text_of(whole, licence)
    assert is_text_of(whole.replace(b"\n", b"\r\n"), licence)
    for share in (0.5, 0.7, 0.85):
        assert not is_text_of(whole[: int(share * len(whole))], licence)
    assert not any(is_text_of(whole, other) for other in LICENCES if other is not licence)


@pytest.mark.parametrize(
    ("donor", "part"),
    [
        ((None, None, None), "the donor's repository is not named"),
        (("evil/donor", None, "CC-BY-NC-4.0"), "the donor's revision is not named"),
        (("evil/donor", OTHER, None), "the donor's license is not named"),
        (("no repository", OTHER, "MIT"), "the donor's repository 'no repository'"),
        (("evil/donor", "main", "MIT"), "the donor's revision 'main', expected all 40 digits"),
        (("evil/donor", OTHER, "GPL-3.0-only"), "no text for 'GPL-3.0-only'"),
    ],
)
def test_half_a_donor_is_enough(
    program: Path, join: Join, tmp_path: Path, donor: tuple[str | None, str | None, str | None], part: str
) -> None:
    assert part in gaps(program, join(*donor), tmp_path / "out", weights_licence="CC-BY-NC-4.0")


def test_all_of_a_donor_that_is_missing_is_said_at_once(program: Path, join: Join, tmp_path: Path) -> None:
    said = gaps(program, join(None, None, None), tmp_path / "out")
    assert [said.count(f"donor's {name} is not named") for name in ("repository", "revision", "license")] == [1, 1, 1]
    assert "extract the layer again with --repository, --revision and --license" in said


def test_a_layer_out_of_the_base_model_is_shown_as_a_strangers(program: Path, join: Join, tmp_path: Path) -> None:
    folder = make_release(tmp_path / "out", program, join(BASE["repository"], REVISION, "MIT"))
    assert faults(look(folder)) == {}
    assert "appended; from the same repository and revision" in text(folder / "README.md")
    assert "it is from the same repository and revision" in text(folder / "NOTICE")
    assert not (folder / "LICENSE-MTP-DONOR").exists()
    said = gaps(program, join(BASE["repository"], REVISION, "Apache-2.0"), tmp_path / "no")
    assert "name another licence for the same revision" in said


def test_one_revision_has_two_licences(
    program: Path, join: Join, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = join(BASE["repository"], REVISION, "MIT", license="apache-2.0")
    assert "another licence for the same revision" in gaps(program, package, tmp_path / "out")
    monkeypatch.setattr("release.folder.terms.same_origin", lambda _donor, _base: False)
    with pytest.raises(InternalError, match=r"puts one revision under apache-2\.0, and its MTP layer under MIT"):
        make_release(tmp_path / "out", program, package)  # its verification finds the same by itself


def test_a_layer_of_no_stated_origin_counts_as_the_trunks() -> None:
    source = {"source": {"repository": "org/base", "revision": REVISION}, "license": "MIT"}
    for metadata in ({**source, "quantization": {"mtp": "appended"}}, source, {**source, "mtp": 5}):
        stated = read_stated(metadata, has_mtp=True)
        assert stated.donor is None
        assert "extract the layer again" in stated.faults[0]
    assert read_stated({**source, "quantization": {"mtp": "kept"}}, has_mtp=True).faults == ()
    assert read_stated(source, has_mtp=False).faults == ()


@pytest.mark.parametrize("name", ["MODEL.json", "bom.cdx.json", "provenance.intoto.json", "README.md", "NOTICE"])
def test_another_donor_in_one_file_passes(program: Path, join: Join, tmp_path: Path, name: str) -> None:
    folder = make_release(tmp_path / "out", program, join("other-org/donor", OTHER, "MIT"))
    edit(folder / name, OTHER, "e" * 40)
    reseal(folder)
    assert look(folder).exit_code == 4


def test_a_missing_text_of_the_donors_licence_passes(program: Path, join: Join, tmp_path: Path) -> None:
    folder = make_release(tmp_path / "out", program, join("other-org/donor", OTHER, "MIT"))
    (folder / "LICENSE-MTP-DONOR").write_text("All rights reserved.\n")
    reseal(folder)
    assert any("LICENSE-MTP-DONOR" in fault for fault in faults(look(folder))["licences"])


def test_a_package_without_a_base_model_is_the_built_in_one(
    program: Path, convert: Convert, micro: Path, tmp_path: Path
) -> None:
    package = convert(micro, "w8a8", name="mindnano-demo", license="Apache-2.0")
    said = gaps(program, package, tmp_path / "out")
    assert "the base model: the package names none, and it is not the built-in model" in said
    assert "quantize --repository ORGANISATION/NAME --revision" in said


def test_the_built_in_model_needs_a_base_model(program: Path, tmp_path: Path) -> None:
    folder = make_release(tmp_path / "out", program, require_demo())
    assert "trained from random weights for this project" in text(folder / "README.md")


def test_the_built_in_model_under_other_terms_has_a_base_model(program: Path, tmp_path: Path) -> None:
    folder = make_release(tmp_path / "out", program, require_demo(), weights_licence="CC-BY-NC-4.0")
    assert faults(look(folder)) == {}
    assert read_model_info(folder).base is None  # type: ignore[union-attr]
    assert not (folder / "LICENSE-BASE-MODEL").exists()
    for name in ("NOTICE", "README.md"):
        assert "base model" not in text(folder / name).lower()
        assert "came under Apache-2.0, text in" in text(folder / name).replace(";", ",").replace("`", "")
    assert "asks for more than MIT" in gaps(program, require_demo(), tmp_path / "no", weights_licence="MIT")


def test_everything_that_can_be_known_is_listed_although_both_files_are_bad(tmp_path: Path) -> None:
    no_report = tmp_path / "hostname"
    no_report.write_text("board\n")
    said = gaps(
        tmp_path / "no-program",
        tmp_path / "no-package",
        tmp_path / "out",
        weights_licence="GPL",
        fidelity=(no_report, tmp_path / "none.json"),
        base_licence_file=tmp_path / "LICENSE.none",
        checkout=Checkout(commit=None, epoch=None, sources=SOURCES),
    )
    for part in (
        "there is no file " + str(tmp_path / "no-program"),
        "there is no file " + str(tmp_path / "no-package"),
        "no text for 'GPL'",
        f"{no_report} is not JSON",
        "none.json does not exist",
        "there is no file " + str(tmp_path / "LICENSE.none"),
        "SOURCE_DATE_EPOCH",
    ):
        assert part in said
    assert "7 missing or wrong" in said


def test_half_a_base_and_no_licence_are_told_one_after_the_other(
    program: Path, convert: Convert, micro: Path, tmp_path: Path
) -> None:
    said = gaps(program, convert(micro, repository="org/base"), tmp_path / "out", fidelity=(tmp_path / "none.json",))
    assert "the base model org/base and no revision of it; convert it again with --revision" in said
    assert "the package names none; convert it again with --license" in said
    assert "none.json does not exist" in said
    assert "None" not in said


def with_target(program: Path, folder: Path, target: str, **changes: bytes) -> Path:
    """The stand-in, built for another processor."""
    with Payload(str(program)) as payload:
        bill = json.loads(payload.read("sbom.cdx.json"))
    (entry,) = (each for each in bill["metadata"]["component"]["properties"] if each["name"] == "mindnano-infer:target")
    entry["value"] = target
    return stand_in_program(folder, **{"sbom.cdx.json": json.dumps(bill).encode(), **changes})


@pytest.mark.parametrize(("target", "other"), [("x86_64", "aarch64"), ("aarch64", "x86-64")])
def test_a_card_promises_machines_that_the_program_is_not_for(
    program: Path, convert: Convert, micro: Path, tmp_path: Path, target: str, other: str
) -> None:
    package = convert(micro, "w8a8", **BASE)
    folder = make_release(tmp_path / "out", with_target(program, tmp_path / "program", target), package)
    assert faults(look(folder)) == {}
    card = ModelCard(text(folder / "README.md"), ignore_metadata_errors=False)
    assert ("rk3588" in card.data.tags) == (target == "aarch64")
    assert other not in card.text
    assert ("RK3588" in card.text) == (target == "aarch64")
    assert "Everything is computed on the CPU" in card.text


def test_positions_are_called_trained(program: Path, tmp_path: Path) -> None:
    card = text(make_release(tmp_path / "out", program, require_demo()) / "README.md")
    assert "tokens as trained" not in card
    assert "positions up to 4,096 by the model's configuration" in card
    assert f"trained on conversations of up to {Plan().time} tokens" in card


def test_a_calibration_is_not_mentioned(program: Path, convert: Convert, micro: Path, tmp_path: Path) -> None:
    scales = tmp_path / "scales.safetensors"
    write_safetensors(scales, {"model.norm.weight": np.ones(64, np.float32)})
    package = convert(micro, "w8a8", drop_mtp=True, calibration_scales=scales, **BASE)
    facts, _ = read_package_facts(package)
    assert facts is not None
    digest = facts.quantization.calibration_sha256
    assert digest is not None
    folder = make_release(tmp_path / "out", program, package)
    assert f"| calibration | by activations, SHA-256 `{digest}` |" in text(folder / "README.md")
    path = folder / "provenance.intoto.json"
    statement = json.loads(text(path))
    inputs = statement["predicate"]["buildDefinition"]["resolvedDependencies"]
    assert {"name": "calibration", "digest": {"sha256": digest}} in inputs
    inputs.remove({"name": "calibration", "digest": {"sha256": digest}})
    path.write_text(json.dumps(statement))
    reseal(folder)
    assert any("calibration" in fault for fault in faults(look(folder))["provenance"])


def test_the_built_in_model_stands_twice_in_the_bill(tmp_path: Path) -> None:
    program = stand_in_program(tmp_path / "program", **{"models/demo.l3r": require_demo().read_bytes()})
    folder = make_release(tmp_path / "out", program, require_demo(), fidelity=DEMO_REPORTS)
    assert faults(look(folder)) == {}
    bill = text(folder / "bom.cdx.json")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(bill) is None
    document = json.loads(bill)
    models = [entry["bom-ref"] for entry in document["components"] if entry["type"] == "machine-learning-model"]
    assert models == ["package"]
    (inside,) = (entry["dependsOn"] for entry in document["dependencies"] if entry["ref"] == "mindnano-infer")
    assert "package" in inside
    assert document["metadata"]["tools"]["components"][0]["name"] == "mindnano"
    assert document["metadata"]["component"]["licenses"] == [{"expression": "Apache-2.0"}]
    other = make_release(tmp_path / "nc", program, require_demo(), weights_licence="CC-BY-NC-4.0")
    assert faults(look(other)) == {}
    document = json.loads(text(other / "bom.cdx.json"))
    models = [entry["bom-ref"] for entry in document["components"] if entry["type"] == "machine-learning-model"]
    assert sorted(models) == ["demo-model", "package"]
    assert document["metadata"]["component"]["licenses"] == [{"expression": "Apache-2.0 AND CC-BY-NC-4.0"}]
