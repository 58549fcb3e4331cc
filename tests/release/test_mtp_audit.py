"""Catches an audit that overlooks a difference, or sees one where there is none; and what the commands print."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.errors import UsageError
from release import cli
from release.mtp.append import AppendOptions, append
from release.mtp.audit import AuditOptions, AuditReport, audit
from release.mtp.extract import ExtractOptions, extract
from release.package.reader import read_package
from tests.support.packages import INTEGER, sections, tensor_parts, write_package, write_parts

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def trunk(tmp_path: Path) -> Path:
    return write_package(tmp_path / "trunk.l3r", INTEGER, mtp=False)


@pytest.fixture
def sidecar(tmp_path: Path) -> Path:
    full = write_package(tmp_path / "full.l3r", INTEGER)
    return extract(ExtractOptions(source=full, output=tmp_path / "head.mtp.l3r"))


@pytest.fixture
def joined(trunk: Path, sidecar: Path, tmp_path: Path) -> Path:
    return append(AppendOptions(trunk=trunk, donor=sidecar, output=tmp_path / "joined.l3r"))


def states(report: AuditReport) -> dict[str, str]:
    return {row.name: row.state for row in report.rows if row.state != "same"}


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 1]))


def test_a_sound_package_agrees_with_trunk_donor_and_itself(trunk: Path, sidecar: Path, joined: Path) -> None:
    report = audit(AuditOptions(package=joined, trunk=trunk, donor=sidecar))
    assert states(report) == {}
    package = read_package(joined)
    assert {row.name for row in report.rows if row.group == "trunk"} == {tensor.name for tensor in package.trunk}
    assert {row.name for row in report.rows if row.group == "mtp"} == {tensor.name for tensor in package.mtp}
    assert {row.name for row in report.rows if row.group == "section"} == {
        "config",
        "features",
        "tokenizer",
        "chat_template",
        "metadata",
    }
    assert states(audit(AuditOptions(package=joined))) == {}
    assert states(audit(AuditOptions(package=joined, other=joined))) == {}


@pytest.mark.parametrize("which", ["joined", "trunk"])
@pytest.mark.parametrize("where", ["first", "last"])
def test_one_flipped_bit_in_either_file_is_seen(
    trunk: Path, sidecar: Path, joined: Path, which: str, where: str
) -> None:
    path = joined if which == "joined" else trunk
    tensor = read_package(path).trunk[0 if where == "first" else -1]
    flip(path, tensor.offset + (0 if where == "first" else tensor.length - 1))
    assert states(audit(AuditOptions(package=joined, trunk=trunk, donor=sidecar))) == {tensor.name: "damaged"}
    assert audit(AuditOptions(package=path)).differs


def test_one_flipped_bit_in_the_layer_is_seen(trunk: Path, sidecar: Path, joined: Path) -> None:
    tensor = read_package(joined).mtp[-1]
    flip(joined, tensor.offset)
    for options in (
        AuditOptions(package=joined),
        AuditOptions(package=joined, trunk=trunk, donor=sidecar),
        AuditOptions(package=joined, other=joined),
    ):
        assert states(audit(options)) == {tensor.name: "damaged"}


def test_another_trunk_and_another_donor_are_seen(sidecar: Path, joined: Path, tmp_path: Path) -> None:
    other = write_package(tmp_path / "other.l3r", INTEGER, seed=2)
    found = states(audit(AuditOptions(package=joined, trunk=other)))
    assert found["lm_head.weight"] == "differs"
    assert not any(name.startswith("model.layers.2.") for name in found), "the layer was not asked about"
    found = states(audit(AuditOptions(package=joined, donor=other)))
    assert found["model.layers.2.eh_proj.weight"] == "differs"
    assert "lm_head.weight" not in found


def test_missing_and_additional_tensors_are_told_apart(trunk: Path, joined: Path) -> None:
    added = states(audit(AuditOptions(package=joined, other=trunk)))
    assert added["model.layers.2.eh_proj.weight"] == "added"
    missing = states(audit(AuditOptions(package=trunk, other=joined)))
    assert missing["model.layers.2.eh_proj.weight"] == "missing"
    assert "lm_head.weight" not in missing | added


def test_another_template_is_seen(trunk: Path, sidecar: Path, joined: Path, tmp_path: Path) -> None:
    contents = {kind: b"other" if kind.name == "CHAT_TEMPLATE" else data for kind, data in sections(INTEGER).items()}
    other = write_parts(tmp_path / "other.l3r", contents, tensor_parts(INTEGER, mtp=False))
    assert states(audit(AuditOptions(package=joined, trunk=other))) == {"chat_template": "differs"}


def test_two_references_of_one_kind_contradict(trunk: Path, joined: Path) -> None:
    with pytest.raises(UsageError):
        audit(AuditOptions(package=joined, other=trunk, trunk=trunk))


def test_the_commands_end_with_documented_codes(
    trunk: Path, sidecar: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    both = str(tmp_path / "both.l3r")
    assert cli.main(["mtp", "append", str(trunk), str(sidecar), both]) == 0
    assert capsys.readouterr().out == f"{both}\n"
    assert cli.main(["mtp", "append", str(trunk), str(sidecar), both]) == 2
    assert "[output-exists]" in capsys.readouterr().err
    assert cli.main(["mtp", "audit", both, "--trunk", str(trunk), "--donor", str(sidecar), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["schema"], document["differs"], set(document["counts"])) == ("mindnano-mtp-audit", False, {"same"})
    assert cli.main(["mtp", "audit", both, str(trunk)]) == 1
    text = capsys.readouterr().out
    assert "added    mtp      model.layers.2.eh_proj.weight" in text
    assert cli.main(["mtp", "audit", both, str(tmp_path / "nothing.l3r")]) == 4
    capsys.readouterr()
    assert cli.main(["mtp", "inspect", both, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["state"], document["present"]) == ("package", "appended", True)
    assert cli.main(["mtp", "inspect", str(sidecar)]) == 0
    assert "side-car" in capsys.readouterr().out
    assert cli.main(["mtp", "inspect", str(trunk), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["present"], document["record"]) == (False, None)
    assert cli.main(["mtp", "strip", both, str(tmp_path / "back.l3r")]) == 0
    assert (tmp_path / "back.l3r").read_bytes() == trunk.read_bytes()


@pytest.mark.parametrize(
    ("options", "mtp", "state"), [([], True, "kept"), (["--drop-mtp"], True, "dropped"), ([], False, "absent")]
)
def test_every_conversion_says_what_became_of_the_layer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], mtp: bool, state: str
) -> None:
    from tests.support.checkpoints import make_checkpoint

    source = make_checkpoint(tmp_path / "checkpoint", mtp=mtp)
    out = tmp_path / "assets"
    assert cli.main(["quantize", "--source", str(source), "--output", str(out), "--recipe", "bf16", *options]) == 0
    streams = capsys.readouterr()
    assert f"MTP layer: {state}" in streams.err
    assert streams.out == f"{out / 'manifest.json'}\n"


def test_the_script_is_a_door_to_append(trunk: Path, sidecar: Path, tmp_path: Path) -> None:
    if not (ROOT / ".venv" / "bin" / "mindnano").is_file():
        pytest.skip("the checkout is not set up")
    script = ROOT / "scripts" / "append_mtp_package.py"
    assert os.access(script, os.X_OK)
    both = tmp_path / "both.l3r"
    command = [sys.executable, str(script), str(trunk), str(sidecar), str(both)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stdout) == (0, f"{both}\n"), result.stderr
