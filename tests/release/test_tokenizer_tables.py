"""Conversion of tokenizer.json: what changes ids and is not implemented is refused by name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from tokenizers import pre_tokenizers

from launcher.errors import PackageError
from release.checkpoint.tokenizer_json import SPLIT_SPELLINGS
from release.package.tokenizer_tables import build_tables, byte_alphabet
from tests.support.checkpoint_tokenizer import SPLIT
from tests.support.reference_tokenizers import train

Document = dict[str, Any]


@pytest.fixture(scope="module")
def source() -> str:
    return train(400).to_str()


def build_changed(source: str, change: Callable[[Document], object]) -> bytes:
    document = json.loads(source)
    change(document)
    return build_tables(json.dumps(document).encode()).section


def set_in(*path: str | int, value: object) -> Callable[[Document], object]:
    def change(document: Document) -> None:
        place: Any = document
        for key in path[:-1]:
            place = place[key]
        place[path[-1]] = value

    return change


SPLIT_PLACE = ("pre_tokenizer", "pretokenizers", 0)
BYTE_LEVEL_PLACE = ("pre_tokenizer", "pretokenizers", 1)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (set_in("normalizer", value={"type": "NFC"}), "normalizer"),
        (set_in("pre_tokenizer", value=None), "pre_tokenizer"),
        (set_in("pre_tokenizer", value={"type": "ByteLevel"}), "pre_tokenizer"),
        (set_in(*SPLIT_PLACE, "pattern", value={"String": " "}), "Split.pattern"),
        (set_in(*SPLIT_PLACE, "pattern", "Regex", value=SPLIT.replace(r"\s*[\r\n]", r"\s*[\r\n]+")), "Split.pattern"),
        (set_in(*SPLIT_PLACE, "pattern", "Regex", value=SPLIT.replace(r"\s*[", r"\s*+[")), "Split.pattern"),
        (set_in(*SPLIT_PLACE, "behavior", value="Removed"), "Isolated"),
        (set_in(*SPLIT_PLACE, "invert", value=True), "inverted"),
        (set_in(*BYTE_LEVEL_PLACE, "add_prefix_space", value=True), "add_prefix_space"),
        (set_in(*BYTE_LEVEL_PLACE, "use_regex", value=True), "use_regex"),
        (set_in(*BYTE_LEVEL_PLACE, value={"type": "ByteLevel", "add_prefix_space": False}), "use_regex"),
        (set_in(*BYTE_LEVEL_PLACE, "new_setting", value=1), "new_setting"),
        (set_in("decoder", value={"type": "BPEDecoder", "suffix": "</w>"}), "decoder"),
        (set_in("decoder", value=None), "decoder"),
        (
            set_in("post_processor", value={"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "x"}}]}),
            "adds tokens",
        ),
        (set_in("post_processor", value={"type": "BertProcessing"}), "BertProcessing"),
        (set_in("model", "type", value="WordPiece"), "model.type"),
        (set_in("model", "dropout", value=0.1), "dropout"),
        (set_in("model", "unk_token", value="<unk>"), "unk_token"),
        (set_in("model", "byte_fallback", value=True), "byte_fallback"),
        (set_in("model", "continuing_subword_prefix", value="##"), "continuing_subword_prefix"),
        (set_in("model", "end_of_word_suffix", value="</w>"), "end_of_word_suffix"),
        (set_in("model", "new_setting", value=1), "new_setting"),
        (set_in("new_part", value=1), "new_part"),
        (set_in("added_tokens", 0, "lstrip", value=True), "lstrip"),
        (set_in("added_tokens", 0, "rstrip", value=True), "rstrip"),
        (set_in("added_tokens", 0, "single_word", value=True), "single_word"),
        (set_in("added_tokens", 0, "new_setting", value=1), "new_setting"),
        (lambda document: document["model"]["vocab"].update({"好": 5000}), "stands for no byte"),
        (lambda document: document["model"]["vocab"].update({"ab": 1 << 24}), "largest id"),
    ],
)
def test_unsupported_settings_are_refused_by_name(
    source: str, change: Callable[[Document], object], named: str
) -> None:
    with pytest.raises(PackageError) as caught:
        build_changed(source, change)
    assert caught.value.slug == "tokenizer-unsupported"
    assert named in caught.value.message


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (set_in("model", value=None), "no model"),
        (set_in("model", "vocab", value=[]), "vocab"),
        (lambda document: document["model"]["vocab"].update({"ab": -1}), "-1"),
        (lambda document: document["model"]["vocab"].update({"ab": True}), "true"),
        (lambda document: document["model"]["vocab"].update({"abc": 0}), "same id 0"),
        (lambda document: document["model"]["vocab"].update({"": 6000}), "empty"),
        (lambda document: document["model"]["vocab"].pop("Ġ"), "is no token"),
        (lambda document: document["model"].update(vocab={"a": 0}, merges=[]), "no token for the byte"),
        (set_in("model", "merges", 0, value="a b c"), "two tokens"),
        (set_in("model", "merges", 0, value=["a"]), "two tokens"),
        (set_in("model", "merges", 0, value=["a", "\u0179"]), "is no token"),
        (lambda document: document["model"]["merges"].append(document["model"]["merges"][0]), "twice"),
        (set_in("added_tokens", 0, "id", value="x"), "no id"),
        (set_in("added_tokens", -1, "id", value=0), "has the id 0 of"),
        (set_in("added_tokens", 0, "content", value="the"), "in vocab"),
        (set_in("added_tokens", 0, "content", value=""), "no content"),
        (lambda document: document["added_tokens"].append(document["added_tokens"][0]), "twice"),
    ],
)
def test_contradictions_are_refused_with_their_place(
    source: str, change: Callable[[Document], object], named: str
) -> None:
    with pytest.raises(PackageError) as caught:
        build_changed(source, change)
    assert caught.value.slug == "tokenizer-invalid"
    assert named in caught.value.message


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b"null"])
def test_other_files_are_refused(data: bytes) -> None:
    with pytest.raises(PackageError, match=r"tokenizer\.json"):
        build_tables(data)


@pytest.mark.parametrize(
    ("late", "early"), [("<role>x", "<role>"), ("x<ro", "<role>"), ("a<role>b", "<role>"), ("@<", "<|startoftext|>")]
)
def test_tokens_that_two_passes_would_match_otherwise_are_refused(source: str, late: str, early: str) -> None:
    def add(document: Document) -> None:
        last = max(token["id"] for token in document["added_tokens"])
        document["added_tokens"].append(
            document["added_tokens"][0] | {"id": last + 1, "content": late, "normalized": True}
        )

    with pytest.raises(PackageError, match="overlap in the text") as caught:
        build_changed(source, add)
    assert early in caught.value.message


def as_text(document: Document) -> None:
    document["model"]["merges"] = [" ".join(merge) for merge in document["model"]["merges"]]


def as_lists(document: Document) -> None:
    document["model"]["merges"] = [merge if isinstance(merge, list) else merge.split() for merge in
                                   document["model"]["merges"]]  # fmt: skip


@pytest.mark.parametrize(
    "change",
    [
        as_lists,
        lambda document: (as_lists(document), as_text(document)),
        set_in("post_processor", value={"type": "ByteLevel", "trim_offsets": False}),
        set_in("post_processor", value={"type": "TemplateProcessing", "single": [{"Sequence": {"id": "A"}}]}),
        set_in("decoder", value={"type": "Sequence", "decoders": [{"type": "ByteLevel"}]}),
        set_in("model", "continuing_subword_prefix", value=""),
        *(set_in(*SPLIT_PLACE, "pattern", "Regex", value=spelling) for spelling in sorted(SPLIT_SPELLINGS)),
    ],
)
def test_other_spellings_of_the_same_tokenizer_give_the_same_bytes(
    source: str, change: Callable[[Document], object]
) -> None:
    assert build_changed(source, change) == build_tables(source.encode()).section


def test_the_reference_spelling_is_one_of_the_accepted() -> None:
    assert SPLIT in SPLIT_SPELLINGS


def test_byte_alphabet_is_that_of_the_reference() -> None:
    alphabet = byte_alphabet()
    assert set(alphabet) == set(pre_tokenizers.ByteLevel.alphabet())
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for code in (*range(0x80), 0xE9, 0x4E2D, 0x1F600):
        spelled = byte_level.pre_tokenize_str(chr(code))[0][0]
        assert bytes(alphabet[character] for character in spelled) == chr(code).encode()


def test_ids_without_a_token_are_holes(source: str) -> None:
    document = json.loads(source)
    last = max(token["id"] for token in document["added_tokens"])
    document["added_tokens"][-2]["id"] = last + 10
    tables = build_tables(json.dumps(document).encode())
    assert tables.token_count == last + 11
    assert tables.ids[document["added_tokens"][-2]["content"]] == last + 10
