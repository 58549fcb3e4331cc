"""Catches an MTP layer that changes the trunk, loses its origin, joins a wrong trunk, or cannot be taken out."""

from __future__ import annotations

import filecmp
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.engine import Package
from launcher.engine_types import Dtype, Section
from launcher.errors import MindnanoError, PackageError, UsageError
from release.fidelity.logits import LogitsOptions, dump_logits
from release.mtp.append import AppendOptions, StripOptions, append, strip
from release.mtp.audit import AuditOptions, audit
from release.mtp.extract import ExtractOptions, extract
from release.mtp.inspection import inspect_mtp
from release.mtp.record import trunk_identity
from release.package.reader import read_package
from tests.support.checkpoints import edit_json, make_checkpoint
from tests.support.l3r_file import L3rFile, read_l3r
from tests.support.packages import INTEGER, sections, tensor_parts, uniform, write_package, write_parts

Convert = Callable[..., Path]
CHAT = replace(INTEGER, mtp_layer_count=0)
"""A chat model: its config names no MTP layer."""


@pytest.fixture
def trunk(tmp_path: Path) -> Path:
    return write_package(tmp_path / "trunk.l3r", CHAT, mtp=False)


@pytest.fixture
def full(tmp_path: Path) -> Path:
    """The same trunk, written together with an MTP layer."""
    return write_package(tmp_path / "full.l3r", INTEGER)


@pytest.fixture
def sidecar(full: Path, tmp_path: Path) -> Path:
    return extract(ExtractOptions(source=full, output=tmp_path / "head.mtp.l3r"))


@pytest.fixture
def joined(trunk: Path, sidecar: Path, tmp_path: Path) -> Path:
    return append(AppendOptions(trunk=trunk, donor=sidecar, output=tmp_path / "joined.l3r"))


def extents(file: L3rFile, group: int) -> dict[str, bytes]:
    return {
        tensor.name: file.data[tensor.offset : tensor.offset + tensor.length]
        for tensor in file.tensors.values()
        if tensor.group == group
    }


def refused(run: Callable[[], object], folder: Path) -> MindnanoError:
    before = sorted(folder.iterdir())
    with pytest.raises(MindnanoError) as caught:
        run()
    assert sorted(folder.iterdir()) == before
    return caught.value


def test_strip_gives_back_the_file_bit_for_bit(trunk: Path, joined: Path, tmp_path: Path) -> None:
    assert not filecmp.cmp(trunk, joined, shallow=False)
    back = strip(StripOptions(package=joined, output=tmp_path / "back.l3r"))
    assert filecmp.cmp(trunk, back, shallow=False)


@pytest.mark.parametrize("tensors", [{}, {"seed": 3}])
def test_strip_restores_a_trunk_whose_config_names_a_layer_that_it_lacks(
    full: Path, tmp_path: Path, tensors: dict[str, int]
) -> None:
    trunk = write_package(tmp_path / "dropped.l3r", INTEGER, mtp=False, **tensors)
    donor = full if not tensors else write_package(tmp_path / "donor.l3r", INTEGER, **tensors)
    both = append(AppendOptions(trunk=trunk, donor=donor, output=tmp_path / "both.l3r"))
    back = strip(StripOptions(package=both, output=tmp_path / "back.l3r"))
    assert filecmp.cmp(trunk, back, shallow=False)


def test_strip_keeps_metadata_of_any_writing(full: Path, tmp_path: Path) -> None:
    odd = b'{"format":\t"l3r", "version": 1,\r\n "name": "\\u00e4", "big": 1e2, "name2": "\xc3\xa4"}\n\n'
    contents = {**sections(CHAT), Section.METADATA: odd}
    trunk = write_parts(tmp_path / "odd.l3r", contents, tensor_parts(CHAT, mtp=False))
    both = append(AppendOptions(trunk=trunk, donor=full, output=tmp_path / "both.l3r"))
    back = strip(StripOptions(package=both, output=tmp_path / "back.l3r"))
    assert filecmp.cmp(trunk, back, shallow=False)


def test_a_kept_layer_leaves_the_file_that_dropping_it_makes(micro: Path, convert: Convert, tmp_path: Path) -> None:
    kept, dropped = convert(micro, "w8a8", name="m"), convert(micro, "w8a8", name="m", drop_mtp=True)
    back = strip(StripOptions(package=kept, output=tmp_path / "back.l3r"))
    assert filecmp.cmp(dropped, back, shallow=False)


def test_the_trunk_keeps_its_bytes_and_the_layer_those_of_the_donor(trunk: Path, full: Path, joined: Path) -> None:
    before, donor, after = read_l3r(trunk), read_l3r(full), read_l3r(joined)
    assert extents(after, 0) == extents(before, 0)
    assert extents(after, 1) == extents(donor, 1)
    shifts = {after.tensors[name].offset - tensor.offset for name, tensor in before.tensors.items()}
    assert len(shifts) == 1, "the trunk's tensors keep their distances"
    for kind in (Section.FEATURES, Section.TOKENIZER, Section.CHAT_TEMPLATE):
        assert after.sections[kind] == before.sections[kind]


def test_the_joined_package_computes_what_the_same_model_in_one_piece_does(
    trunk: Path, full: Path, joined: Path, tmp_path: Path
) -> None:
    ids = tmp_path / "ids"
    ids.write_text("5 9 200 17 3 44")
    arrays = {}
    for path in (trunk, full, joined):
        out = path.with_suffix(".npz")
        dump_logits(LogitsOptions(package=path, ids=ids, output=out, mtp=path != trunk, threads=1))
        with np.load(out) as archive:
            arrays[path.stem] = {name: archive[name] for name in archive.files}
    assert np.array_equal(arrays["joined"]["logits"], arrays["trunk"]["logits"])
    assert np.array_equal(arrays["joined"]["mtp_logits"], arrays["full"]["mtp_logits"])
    assert np.isfinite(arrays["joined"]["mtp_logits"]).all()


def test_the_pin_of_a_trunk_is_the_identity_that_the_engine_computes(trunk: Path, joined: Path, full: Path) -> None:
    with Package(trunk) as package:
        assert trunk_identity(read_package(trunk)) == package.identity().hex()
    assert trunk_identity(read_package(joined)) == trunk_identity(read_package(trunk))
    assert trunk_identity(read_package(full)) == trunk_identity(read_package(trunk))


def test_a_side_car_is_no_model(sidecar: Path, full: Path, tmp_path: Path) -> None:
    with pytest.raises(PackageError):
        Package(sidecar)
    error = refused(lambda: append(AppendOptions(trunk=sidecar, donor=full, output=tmp_path / "out.l3r")), tmp_path)
    assert (error.slug, error.exit_code) == ("mtp-sidecar", 4)


def test_equal_input_gives_equal_bytes(full: Path, trunk: Path, sidecar: Path, joined: Path, tmp_path: Path) -> None:
    (tmp_path / "again").mkdir()
    head = extract(ExtractOptions(source=full, output=tmp_path / "again" / "head.mtp.l3r"))
    assert filecmp.cmp(head, sidecar, shallow=False)
    both = append(AppendOptions(trunk=trunk, donor=head, output=tmp_path / "again" / "joined.l3r"))
    assert filecmp.cmp(both, joined, shallow=False)


def test_a_side_car_comes_back_out_of_the_package_it_went_into(sidecar: Path, joined: Path, tmp_path: Path) -> None:
    again = extract(ExtractOptions(source=joined, output=tmp_path / "again.mtp.l3r"))
    assert filecmp.cmp(again, sidecar, shallow=False)


def test_the_layer_of_a_checkpoint_is_the_one_that_the_converter_writes(
    micro: Path, convert: Convert, tmp_path: Path
) -> None:
    whole = convert(micro, "w4a8", name="m")
    trunk = convert(micro, "w4a8", name="m", drop_mtp=True)
    head = extract(
        ExtractOptions(
            source=micro,
            output=tmp_path / "m.mtp.l3r",
            trunk=trunk,
            recipe="w4a8",
            repository="someone/base",
            revision="abc",
            license="MIT",
        )
    )
    both = append(AppendOptions(trunk=trunk, donor=head, output=tmp_path / "both.l3r"))
    assert extents(read_l3r(both), 0) == extents(read_l3r(whole), 0)
    assert extents(read_l3r(both), 1) == extents(read_l3r(whole), 1)
    for path in (head, both):
        record = inspect_mtp(path).record
        assert record is not None
        assert (record.donor.repository, record.donor.revision) == ("someone/base", "abc")
        assert (record.donor.license, record.donor.recipe) == ("MIT", "w4a8")
    metadata = json.loads(read_l3r(both).sections[Section.METADATA])
    assert metadata["quantization"]["mtp"] == "appended"
    listed = {entry["name"]: entry["sha256"] for entry in metadata["mtp"]["tensors"]}
    contents = extents(read_l3r(both), 1)
    assert listed == {name: hashlib.sha256(data).hexdigest() for name, data in contents.items()}


def test_source_digests_are_those_of_the_stored_tensors(micro: Path, convert: Convert, tmp_path: Path) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    trunk = convert(micro, drop_mtp=True)
    head = extract(ExtractOptions(source=micro, output=tmp_path / "m.mtp.l3r", trunk=trunk))
    record = inspect_mtp(head).record
    assert record is not None
    stored = safetensors.load_file(micro / "model.safetensors")
    expected = {
        name: hashlib.sha256(values.tobytes()).hexdigest()
        for name, values in stored.items()
        if name.startswith("model.layers.4.")
    }
    assert dict(record.donor.sources) == expected
    both = append(AppendOptions(trunk=trunk, donor=head, output=tmp_path / "both.l3r"))
    assert not audit(AuditOptions(package=both, donor=micro)).differs


def test_without_a_recipe_a_checkpoint_keeps_eight_bits(micro: Path, convert: Convert, tmp_path: Path) -> None:
    trunk = convert(micro, "w4a8", drop_mtp=True)
    head = extract(ExtractOptions(source=micro, output=tmp_path / "m.mtp.l3r", trunk=trunk))
    assert set(inspect_mtp(head).totals()) == {"F32", "F32X8", "Q8X8"}


def test_a_trunk_that_has_the_layer_is_refused(full: Path, sidecar: Path, tmp_path: Path) -> None:
    error = refused(lambda: append(AppendOptions(trunk=full, donor=sidecar, output=tmp_path / "out.l3r")), tmp_path)
    assert (error.slug, error.exit_code) == ("mtp-present", 2)


def test_a_donor_without_the_layer_is_refused(trunk: Path, tmp_path: Path) -> None:
    plain = write_package(tmp_path / "plain.l3r", CHAT, mtp=False, seed=2)
    for run in (
        lambda: append(AppendOptions(trunk=trunk, donor=plain, output=tmp_path / "out.l3r")),
        lambda: extract(ExtractOptions(source=plain, output=tmp_path / "out.mtp.l3r")),
        lambda: strip(StripOptions(package=plain, output=tmp_path / "out.l3r")),
    ):
        assert refused(run, tmp_path).slug == "mtp-absent"


def test_a_layer_made_for_another_trunk_needs_a_word(sidecar: Path, tmp_path: Path) -> None:
    other = write_package(tmp_path / "other.l3r", CHAT, mtp=False, seed=2)
    options = AppendOptions(trunk=other, donor=sidecar, output=tmp_path / "out.l3r")
    error = refused(lambda: append(options), tmp_path)
    assert (error.slug, error.exit_code) == ("mtp-other-trunk", 4)
    assert "--any-trunk" in error.hint
    both = append(replace(options, any_trunk=True))
    record = inspect_mtp(both).record
    assert record is not None
    assert record.appended_to is not None
    assert record.appended_to.identity == trunk_identity(read_package(other)) != record.trunk.identity
    assert "--any-trunk" in inspect_mtp(both).to_text()
    assert filecmp.cmp(strip(StripOptions(package=both, output=tmp_path / "back.l3r")), other, shallow=False)


def test_a_side_car_can_be_pinned_to_another_trunk(sidecar: Path, tmp_path: Path) -> None:
    other = write_package(tmp_path / "other.l3r", CHAT, mtp=False, seed=2)
    head = extract(ExtractOptions(source=sidecar, output=tmp_path / "other.mtp.l3r", trunk=other))
    append(AppendOptions(trunk=other, donor=head, output=tmp_path / "out.l3r"))


@pytest.mark.parametrize(
    "change",
    [
        {"v_head_dim": 32},
        {"moe_intermediate_size": 64},
        {"vocab_size": 336},
        {"rope_theta": 5000.0},
        {"layer_count": 4},
        {"expert_count": 8, "expert_group_count": 4},
    ],
    ids=lambda change: next(iter(change)),
)
def test_other_dimensions_are_refused_whatever_is_said(trunk: Path, tmp_path: Path, change: dict[str, Any]) -> None:
    donor = write_package(tmp_path / "donor.l3r", replace(INTEGER, **change))
    for run in (
        lambda: append(AppendOptions(trunk=trunk, donor=donor, output=tmp_path / "out.l3r", any_trunk=True)),
        lambda: extract(ExtractOptions(source=donor, output=tmp_path / "out.mtp.l3r", trunk=trunk)),
    ):
        error = refused(run, tmp_path)
        assert (error.slug, error.exit_code) == ("mtp-donor-differs", 4)
        assert next(iter(change)) in error.message


def test_another_tokenizer_is_refused(micro: Path, convert: Convert, tmp_path: Path) -> None:
    trunk = convert(micro, drop_mtp=True)
    base = make_checkpoint(tmp_path / "base")
    edit_json(base / "tokenizer.json", lambda document: document["added_tokens"][0].update(special=False))
    error = refused(
        lambda: extract(ExtractOptions(source=base, output=tmp_path / "out.mtp.l3r", trunk=trunk)), tmp_path
    )
    assert error.slug == "mtp-other-vocabulary"


def test_a_checkpoint_without_the_layer_is_refused(convert: Convert, tmp_path: Path) -> None:
    chat = make_checkpoint(tmp_path / "chat", mtp=False)
    trunk = convert(chat)
    error = refused(
        lambda: extract(ExtractOptions(source=chat, output=tmp_path / "out.mtp.l3r", trunk=trunk)), tmp_path
    )
    assert (error.slug, error.exit_code) == ("mtp-absent", 4)


def test_a_checkpoint_of_another_size_is_refused_before_anything_is_converted(convert: Convert, tmp_path: Path) -> None:
    trunk = convert(make_checkpoint(tmp_path / "chat", mtp=False))
    base = make_checkpoint(tmp_path / "base", "tiny")
    error = refused(
        lambda: extract(ExtractOptions(source=base, output=tmp_path / "out.mtp.l3r", trunk=trunk)), tmp_path
    )
    assert error.slug == "mtp-donor-differs"
    assert "hidden_size 256 instead of 64" in error.message


def test_options_that_say_nothing_are_refused(full: Path, micro: Path, tmp_path: Path) -> None:
    for options, slug in (
        (ExtractOptions(source=full, output=tmp_path / "x.mtp.l3r", recipe="w8a8"), "mtp-recipe-unused"),
        (ExtractOptions(source=full, output=tmp_path / "x.l3r"), "mtp-name"),
        (ExtractOptions(source=micro, output=tmp_path / "x.mtp.l3r"), "mtp-trunk-missing"),
    ):
        error = refused(lambda options=options: extract(options), tmp_path)  # type: ignore[misc]
        assert (error.slug, error.exit_code) == (slug, 2)


def test_nothing_is_ever_replaced(trunk: Path, full: Path, sidecar: Path, joined: Path, tmp_path: Path) -> None:
    taken = {"plain": tmp_path / "taken.mtp.l3r", "link": tmp_path / "link.mtp.l3r"}
    taken["plain"].write_bytes(b"precious")
    taken["link"].symlink_to(tmp_path / "nowhere")
    for output in (*taken.values(), trunk, joined):
        for run in (
            lambda output=output: append(AppendOptions(trunk=trunk, donor=sidecar, output=output)),
            lambda output=output: strip(StripOptions(package=joined, output=output)),
            lambda output=output: extract(ExtractOptions(source=full, output=output)),
        ):
            assert isinstance(refused(run, tmp_path), UsageError)
    assert taken["plain"].read_bytes() == b"precious"


def test_all_layouts_can_be_the_donors(trunk: Path, tmp_path: Path) -> None:
    for dtype in (Dtype.F32X8, Dtype.BF16X8, Dtype.Q4X8):
        donor = write_package(tmp_path / f"{dtype.name}.l3r", INTEGER, uniform(dtype))
        output = tmp_path / f"{dtype.name}-both.l3r"
        append(AppendOptions(trunk=trunk, donor=donor, output=output, any_trunk=True))
        assert dtype.name in inspect_mtp(output).totals()
