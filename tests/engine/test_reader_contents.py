"""Configs out of bounds, features, and wrong sets of tensors are refused by name, with checksums that fit."""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from launcher import engine_abi as abi
from launcher.engine_types import Section
from tests.support.package_bytes import SECTION_FIELDS, Image, Patch, Workbench
from tests.support.packages import INTEGER, ODD, Parts, alternating, sections, tensor_parts, write_package, write_parts
from tests.support.programs import PackageDriver, refused

MOST = (1 << 32) - 1
NAN = 0x7FC00000


def config_patch(image: Image, name: str, value: int, index: int = 0) -> Patch:
    """A 32-bit value in a field of the config."""
    place = image.section(Section.CONFIG).offset + getattr(abi.CConfig, name).offset + 4 * index
    return place, struct.pack("<I", value & MOST)


def bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


# Values just outside what docs and code allow, with the words that the message must hold.
OUT_OF_BOUNDS = [
    ("vocab_size", (0, (1 << 20) + 1, MOST), r"^config: vocab_size is \d+; 1 to 1048576"),
    ("token_count", (0, 329, MOST), r"^config: token_count is \d+; 1 to 328"),
    ("hidden_size", (0, 7, (1 << 14) + 1, MOST), r"^config: hidden_size is \d+; 8 to 16384"),
    ("hidden_size", (33, 36), r"^config: hidden_size \d+, .* must be multiples of 8"),
    ("intermediate_size", (0, (1 << 16) + 1, MOST), r"^config: intermediate_size is \d+; 1 to 65536"),
    ("layer_count", (0, 513, MOST), r"^config: layer_count is \d+; 1 to 512"),
    ("layer_group_size", (0, 513, MOST), r"^config: layer_group_size is \d+; 1 to 512"),
    ("head_count", (0, 257, MOST), r"^config: head_count is \d+; 1 to 256"),
    ("head_dim", (0, 7, 513, MOST), r"^config: head_dim is \d+; 8 to 512"),
    ("head_dim", (12,), r"^config: .*head_dim 12, .* must be multiples of 8"),
    ("q_lora_rank", ((1 << 14) + 1, MOST), r"^config: q_lora_rank is \d+; 0 to 16384"),
    ("kv_lora_rank", (0, 7, 4097, MOST), r"^config: kv_lora_rank is \d+; 8 to 4096"),
    ("kv_lora_rank", (33,), r"^config: .*kv_lora_rank 33 .* must be multiples of 8"),
    ("qk_nope_head_dim", (0, 7, 1025, MOST), r"^config: qk_nope_head_dim is \d+; 8 to 1024"),
    ("qk_rope_head_dim", (0, 7, 1025, MOST), r"^config: qk_rope_head_dim is \d+; 8 to 1024"),
    ("qk_rope_head_dim", (12,), r"^config: .*qk_rope_head_dim 12 must be multiples of 8"),
    ("v_head_dim", (0, 7, 1025, MOST), r"^config: v_head_dim is \d+; 8 to 1024"),
    ("conv_kernel", (0, 17, MOST), r"^config: conv_kernel is \d+; 1 to 16"),
    ("expert_count", (0, 4097, MOST), r"^config: expert_count is \d+; 1 to 4096"),
    ("expert_count", (3, 5), r"^config: \d+ experts do not form 2 equal groups"),
    ("expert_count", (2,), r"^config: 2 experts do not form 2 equal groups of 2"),
    ("experts_per_token", (0, 65, MOST), r"^config: experts_per_token is \d+; 1 to 64"),
    ("experts_per_token", (3,), r"^config: 3 experts per token, but 1 groups of 2 hold fewer"),
    ("expert_group_count", (0, 5, MOST), r"^config: expert_group_count is \d+; 1 to 4"),
    ("expert_group_top", (0, 3, MOST), r"^config: expert_group_top is \d+; 1 to 2"),
    ("moe_intermediate_size", (0, (1 << 16) + 1, MOST), r"^config: moe_intermediate_size is \d+; 1 to 65536"),
    ("shared_intermediate_size", (0, (1 << 22) + 1, MOST), r"^config: shared_intermediate_size is \d+; 1 to 4194304"),
    ("dense_layer_count", (3, MOST), r"^config: dense_layer_count is \d+; 0 to 2"),
    ("norm_topk_prob", (2, MOST), r"^config: norm_topk_prob is \d+; 0 to 1"),
    ("mtp_layer_count", (2, MOST), r"^config: mtp_layer_count is \d+; 0 to 1"),
    ("mtp_layer_count", (0,), r"^the package holds MTP tensors, but its config names no MTP layer"),
    ("max_position", (0, (1 << 24) + 1, MOST), r"^config: max_position is \d+; 1 to 16777216"),
    ("max_context", (0, (1 << 24) + 1, MOST), r"^config: max_context is \d+; 1 to 16777216"),
    ("stop_count", (0, 9, MOST), r"^config: stop_count is \d+; 1 to 8"),
    ("stop_ids", (320, 327, -1, -(1 << 31)), r"^config: stop id -?\d+ is no token; ids are below 320"),
    ("bos_id", (320, -2, -(1 << 31)), r"^config: special id -?\d+ is no token; ids are below 320"),
    ("eos_id", (320, -2, (1 << 31) - 1), r"^config: special id -?\d+ is no token"),
    ("pad_id", (320, -2), r"^config: special id -?\d+ is no token"),
    ("rms_eps", (0, bits(-1e-6), bits(1.0), NAN, bits(float("inf"))), r"^config: rms_eps is \S+; a small positive"),
    ("rope_theta", (0, bits(1.0), bits(-2.0), NAN, bits(float("inf"))), r"^config: rope_theta is \S+; more than 1"),
    ("routed_scaling", (NAN, bits(float("inf")), bits(float("-inf"))), r"^config: routed_scaling is not finite"),
    ("kda_lower_bound", (0, bits(0.5), bits(-80.5), NAN, bits(float("-inf"))), r"^config: kda_lower_bound is \S+; -80"),
    ("reserved", (1, MOST), r"^config: reserved field 0 is set"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "wrong", "expected"), OUT_OF_BOUNDS, ids=lambda item: str(item)[:24])
def test_config_fields_out_of_bounds_are_named(
    name: str, wrong: tuple[int, ...], expected: str, bench: Workbench
) -> None:
    for value in wrong:
        patch = config_patch(bench.image, name, value)
        refused(bench.ask(bench.image.sealed([patch])), expected, (name, value))
        refused(bench.ask([patch]), r"^config or feature list is damaged", (name, value, "stale"))


def test_every_stop_id_and_reserved_field_is_checked(bench: Workbench) -> None:
    image = bench.image
    for index in range(1, 8):
        patches = [config_patch(image, "stop_count", 8), config_patch(image, "stop_ids", 320, index)]
        refused(bench.ask(image.sealed(patches)), r"^config: stop id 320", index)
    for index in range(23):
        patch = config_patch(image, "reserved", 1 << index, index)
        refused(bench.ask(image.sealed([patch])), rf"^config: reserved field {index} is set", index)


def test_configs_within_bounds_must_fit_the_tensors(bench: Workbench) -> None:
    image = bench.image
    harmless = {"max_position", "max_context", "norm_topk_prob", "experts_per_token", "stop_count"}
    refusals = 0
    for name in [field[0] for field in abi.CConfig._fields_[:26]]:
        for value in (0, 1, 2, 3, 8, 16, 24, 31, 33, 40, 64, 128, 256, 320, 327, 512, 1024):
            if name == "max_context" and 0 < value < 6:
                continue  # possible, but less than the driver needs
            answer = bench.ask(image.sealed([config_patch(image, name, value)]), "walk")
            if answer.status == "ok":
                continue
            refusals += 1
            expected = (
                r"^config: |; the config asks for |^tensor .* is (missing|in group 1; group 0)|^tokenizer: "
                r"|^the package holds MTP tensors"
            )
            refused(answer, expected, (name, value))
            assert name not in harmless or answer.message.startswith("config: "), answer
    assert refusals > 300


def test_unused_expert_fields_cannot_ask_for_memory(driver: PackageDriver, tmp_path: Path) -> None:
    dense = replace(
        INTEGER, dense_layer_count=2, mtp_layer_count=0, expert_count=0, experts_per_token=0, expert_group_count=0,
        expert_group_top=0, moe_intermediate_size=0, shared_intermediate_size=0,
    )  # fmt: skip
    path = write_package(tmp_path / "dense.l3r", dense, mtp=False)
    assert driver.ask("walk", path).status == "ok"
    bench = Workbench(Image(path), tmp_path / "damaged.l3r", driver)
    for name in ("expert_count", "experts_per_token", "moe_intermediate_size", "shared_intermediate_size"):
        patch = config_patch(bench.image, name, MOST)
        refused(bench.ask(bench.image.sealed([patch]), "walk"), rf"^config: {name} is {MOST}", name)


def features_of(driver: PackageDriver, folder: Path, text: bytes) -> str:
    contents = {**sections(INTEGER), Section.FEATURES: text}
    answer = driver.ask("walk", write_parts(folder / "features.l3r", contents, tensor_parts()))
    assert answer.status in ("ok", "unsupported", "format"), answer
    return "" if answer.status == "ok" else f"{answer.status}: {answer.message}"


def test_unknown_features_are_refused_by_name(driver: PackageDriver, tmp_path: Path) -> None:
    sound = sections(INTEGER)[Section.FEATURES]
    assert features_of(driver, tmp_path, sound) == ""
    assert features_of(driver, tmp_path, sound.rstrip(b"\n")) == ""
    needs = "unsupported: the package needs 'rope-yarn', which this engine does not implement"
    for text in (sound + b"rope-yarn\n", b"rope-yarn\n" + sound, sound + b"rope-yarn"):
        assert features_of(driver, tmp_path, text) == needs
    for text in (b"bailing-v", b"bailing-v33", b"Bailing-v3", b"bailing-v3\0", b"bailing-v3 ", b"\xff\n", b"%s%n"):
        assert features_of(driver, tmp_path, text).startswith("unsupported: the package needs '")
    long = features_of(driver, tmp_path, b"x" * 4096)
    assert long == f"unsupported: the package needs '{'x' * 80}', which this engine does not implement"
    assert "has 4097 bytes; at most 4096" in features_of(driver, tmp_path, b"\n" * 4097)


@pytest.mark.parametrize("kind", [Section.CONFIG, Section.FEATURES, Section.TOKENIZER, Section.METADATA])
def test_required_sections_are_missed(kind: Section, driver: PackageDriver, tmp_path: Path) -> None:
    contents = {name: data for name, data in sections(INTEGER).items() if name is not kind}
    path = write_parts(tmp_path / "less.l3r", contents, tensor_parts())
    refused(driver.ask("open", path), rf"^the package has no section of kind {int(kind)}$", kind)


def test_a_chat_template_is_optional(driver: PackageDriver, tmp_path: Path) -> None:
    contents = {kind: data for kind, data in sections(INTEGER).items() if kind is not Section.CHAT_TEMPLATE}
    assert driver.ask("walk", write_parts(tmp_path / "less.l3r", contents, tensor_parts())).status == "ok"


def test_other_lengths_of_the_config_are_refused(driver: PackageDriver, tmp_path: Path) -> None:
    for change in (lambda data: data + b"\0", lambda data: data[:-1], lambda data: b""):
        contents = sections(INTEGER)
        contents[Section.CONFIG] = change(contents[Section.CONFIG])
        path = write_parts(tmp_path / "config.l3r", contents, tensor_parts())
        refused(driver.ask("open", path), r"^the config section has \d+ bytes; 256 are expected", change)


def test_sections_of_a_later_version_are_refused(bench: Workbench) -> None:
    image = bench.image
    last = image.sections[-1]
    for kind in (0, 6, 255):
        patch = SECTION_FIELDS["kind"].patch(last.entry, kind)
        refused(bench.ask(image.sealed([patch])), rf"is of kind {kind}, which this engine does not know", kind)


Change = Callable[[Parts], object]


def index_of(parts: Parts, name: str) -> int:
    return next(i for i, (part, _) in enumerate(parts) if part.name == name)


def renamed(old: str, new: str) -> Change:
    def change(parts: Parts) -> None:
        i = index_of(parts, old)
        parts[i] = replace(parts[i][0], name=new), parts[i][1]

    return change


def repeated(name: str) -> Change:
    return lambda parts: parts.insert(index_of(parts, name), parts[index_of(parts, name)])


def added(name: str) -> Change:
    return lambda parts: parts.insert(3, (replace(parts[2][0], name=name), parts[2][1]))


def regrouped(name: str, group: int) -> Change:
    """The tensor in the other group, at that group's end of the file."""

    def change(parts: Parts) -> None:
        part, data = parts.pop(index_of(parts, name))
        parts.insert(len(parts) if group == 1 else 0, (replace(part, group=group), data))

    return change


def reshaped(name: str, shape: tuple[int, ...]) -> Change:
    def change(parts: Parts) -> None:
        i = index_of(parts, name)
        parts[i] = replace(parts[i][0], shape=shape), parts[i][1]

    return change


NORM = "model.norm.weight"
KEY = "model.layers.1.attention.k_b_proj.weight"
ENORM = "model.layers.2.enorm.weight"
EXPERTS = "model.layers.1.mlp.experts.down_proj.weight"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (renamed(NORM, "model.norm"), rf"^tensor {NORM} is missing$"),
        (renamed(ENORM, "model.layers.2.enorm"), rf"^tensor {ENORM} is missing$"),
        (renamed(EXPERTS, "model.layers.1.mlp.experts.1"), rf"^tensor {EXPERTS} is missing$"),
        (repeated(NORM), rf"^tensor {NORM} occurs twice$"),
        (repeated(ENORM), rf"^tensor {ENORM} occurs twice$"),
        (regrouped(NORM, 1), rf"^tensor {NORM} is in group 1; group 0 is expected$"),
        (regrouped(ENORM, 0), rf"^tensor {ENORM} is in group 0; group 1 is expected$"),
        (lambda parts: parts.pop(index_of(parts, KEY)), rf"^tensor {KEY} is missing$"),
        (lambda parts: parts.pop(), r"^tensor model\.layers\.2\.\S+ is missing$"),
        (added("model.extra"), r"^tensor model\.extra has no place in this model$"),
        (reshaped(NORM, (4, 8)), rf"^tensor {NORM} has shape \[4, 8, 0\] of rank 2; the config asks for \[32, 0, 0\]"),
        (reshaped(EXPERTS, (2, 64, 32)), rf"^tensor {EXPERTS} has shape \[2, 64, 32\] .* asks for \[4, 32, 32\]"),
    ],
)  # fmt: skip
def test_wrong_sets_of_tensors_are_named(change: Change, expected: str, driver: PackageDriver, tmp_path: Path) -> None:
    parts = tensor_parts()
    change(parts)
    refused(driver.ask("open", write_parts(tmp_path / "wrong.l3r", sections(INTEGER), parts)), expected, expected)


def test_packages_of_another_config_are_refused(driver: PackageDriver, tmp_path: Path) -> None:
    path = write_parts(tmp_path / "other.l3r", sections(ODD), tensor_parts(INTEGER, alternating))
    refused(driver.ask("open", path), r"; the config asks for \[333, 24, 0\] of rank 2$", "other config")
