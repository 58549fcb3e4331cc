"""The engine's tokenizer gives the ids that the `tokenizers` library gives, and its text comes back unchanged."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine.build import build_library
from launcher.engine import Package
from launcher.engine_library import Library
from launcher.errors import UsageError
from release.package.tokenizer_tables import build_tables
from tests.support.reference_tokenizers import class_revealing, train, without_added_tokens, without_merges
from tests.support.texts import random_texts
from tests.support.tokenizer_package import tokenizer_package

DEMO = Path(__file__).parents[2] / "release" / "demo" / "checkpoint" / "tokenizer.json"
OVERLAPS = (
    "<tool",
    "<tool_call>",
    "call>x",
    "思考",
    "考虑",
    "|",
    "@@@",
    "the",
    "<|role_end|>",
    "考",
    "_",
    "c",
    " ",
    "@",
)


@pytest.fixture(scope="module")
def library() -> Library:
    return Library(build_library())


class Subject:
    """The same tokenizer in the engine and in the reference."""

    def __init__(self, tokenizer_json: str, folder: Path, library: Library) -> None:
        tables = build_tables(tokenizer_json.encode())
        self.reference = Tokenizer.from_str(tokenizer_json)
        self.package = Package(tokenizer_package(folder / "t.l3r", tables.section, tables.token_count), library=library)
        self._bytes: dict[int, bytes] = {}

    def token_bytes(self, token: int) -> bytes:
        if token not in self._bytes:
            self._bytes[token] = self.package.token_bytes(token)
        return self._bytes[token]

    def check(self, texts: Sequence[str], *, round_trip: bool = True) -> None:
        """Fails at the first text whose ids differ or whose bytes do not come back."""
        for text, encoding in zip(texts, self.reference.encode_batch(texts, add_special_tokens=False), strict=True):
            ids = self.package.tokenize(text)
            assert ids == encoding.ids, f"{text!r}: {encoding.tokens}"
            if round_trip:
                assert b"".join(map(self.token_bytes, ids)) == text.encode(), f"{text!r}"


@pytest.fixture(scope="module")
def large() -> Tokenizer:
    return train(4096)


@pytest.fixture(scope="module")
def subject(large: Tokenizer, library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Subject]:
    subject = Subject(large.to_str(), tmp_path_factory.mktemp("large"), library)
    yield subject
    subject.package.close()


@pytest.fixture
def subject_of(library: Library, tmp_path: Path) -> Iterator[Callable[[str], Subject]]:
    """Makes a subject of a tokenizer.json, for one test."""
    with ExitStack() as opened:

        def make(tokenizer_json: str) -> Subject:
            subject = Subject(tokenizer_json, tmp_path, library)
            opened.callback(subject.package.close)
            return subject

        yield make


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")


def batches(texts: Iterator[str], size: int = 1000) -> Iterator[list[str]]:
    while batch := list(itertools.islice(texts, size)):
        yield batch


@pytest.mark.slow
def test_ids_of_random_text_are_those_of_the_reference(subject: Subject) -> None:
    for batch in batches(random_texts(100_000, seed=1)):
        subject.check(batch)


@pytest.mark.parametrize("vocabulary", [512, 1024])
def test_small_vocabularies_give_the_ids_of_the_reference(
    vocabulary: int, subject_of: Callable[[str], Subject]
) -> None:
    small = subject_of(train(vocabulary).to_str())
    for batch in batches(random_texts(5_000, seed=vocabulary)):
        small.check(batch)


@pytest.mark.skipif(not DEMO.is_file(), reason="the built-in model is not in this tree")
def test_built_in_model_gives_the_ids_of_the_reference(subject_of: Callable[[str], Subject]) -> None:
    demo = subject_of(DEMO.read_text(encoding="utf-8"))
    for batch in batches(random_texts(10_000, seed=3)):
        demo.check(batch)


def test_whole_words_are_found_where_merges_are_ignored(large: Tokenizer, subject_of: Callable[[str], Subject]) -> None:
    document = without_merges(large, share=0.5)
    words_only = subject_of(json.dumps(document))
    # Without this the test would pass for an engine that does not know the setting.
    assert words_only.reference.encode(" would").ids != Tokenizer.from_str(
        json.dumps(document | {"model": document["model"] | {"ignore_merges": False}})
    ).encode(" would").ids  # fmt: skip
    for batch in batches(random_texts(10_000, seed=4)):
        words_only.check(batch)


@pytest.mark.slow
def test_every_code_point_has_the_class_of_the_reference(subject_of: Callable[[str], Subject]) -> None:
    revealing = subject_of(class_revealing().to_str())
    examples = ["a" + character + "b " + character + "." for character in "x7 -"]
    # Letter, number, white space and all others are cut in four ways.
    assert len({tuple(len(token) for token in revealing.reference.encode(text).tokens) for text in examples}) == 4
    code_points = (chr(code) for code in range(0x110000) if not 0xD800 <= code <= 0xDFFF)
    for batch in batches((f"a{c}b {c}." for c in code_points), 10_000):
        revealing.check(["".join(batch[i : i + 100]) for i in range(0, len(batch), 100)], round_trip=False)


def test_contractions_are_those_of_the_reference(subject_of: Callable[[str], Subject]) -> None:
    revealing = subject_of(class_revealing().to_str())
    ranges = ((0, 0x3000), (0xA640, 0xAC00), (0xFB00, 0xFB50), (0xFF00, 0x10000), (0x1D400, 0x1D800))
    single = [chr(code) for begin, end in ranges for code in range(begin, end)]
    pairs = itertools.product("lLvVrReEsSdDmMtTxſℓĿ1 .中", repeat=2)
    revealing.check([f"'{character}b" for character in single] + [f"'{first}{second}b" for first, second in pairs])


def test_overlapping_added_tokens_are_matched_as_in_the_reference(subject: Subject) -> None:
    rng = random.Random(5)
    subject.check(["".join(rng.choices(OVERLAPS, k=rng.randint(1, 8))) for _ in range(20_000)])


def test_added_tokens_are_plain_text_without_the_flag(large: Tokenizer, subject: Subject) -> None:
    plain = without_added_tokens(large)
    rng = random.Random(6)
    for _ in range(5_000):
        text = "".join(rng.choices(OVERLAPS, k=rng.randint(1, 8)))
        assert subject.package.tokenize(text, special=False) == plain.encode(text).ids, repr(text)


def test_plain_words_do_not_become_added_tokens_where_merges_are_ignored(
    large: Tokenizer, subject_of: Callable[[str], Subject]
) -> None:
    document = without_merges(large, share=0.5)
    words_only = subject_of(json.dumps(document))
    plain = without_added_tokens(words_only.reference)
    for text in ("思考", "考虑", "@@@", "思考 思考!", "<tool"):
        assert words_only.package.tokenize(text, special=False) == plain.encode(text).ids, text


@pytest.mark.parametrize(
    "text",
    [
        "a" * 1_000_000,
        "ab" * 100_000,
        "中" * 300_000,
        " " * 300_000,
        " " * 300_000 + "x",
        "\n" * 300_000,
        " \n" * 100_000 + " x",
        "!" * 300_000,
        "<" * 300_000,
        "<too" * 100_000,
        "1" * 300_000,
    ],
    ids=["letter", "two letters", "chinese", "spaces", "spaces then x", "lines", "lines and spaces", "marks", "angles",
         "half tokens", "digits"],
)  # fmt: skip
def test_long_runs_are_not_quadratic(subject: Subject, text: str) -> None:
    # A quadratic merge of a million letters would take hours.
    subject.check([text])


def test_empty_text_has_no_ids(subject: Subject) -> None:
    assert subject.package.tokenize("") == []


def test_tokens_are_found_by_their_bytes(subject: Subject) -> None:
    package = subject.package
    vocabulary = {package.token_bytes(token): token for token in range(package.config.token_count)}
    for token in range(package.config.token_count):
        data = package.token_bytes(token)
        assert package.token_bytes(package.token_find(data) or 0) == data
    added = {token.content: identity for identity, token in subject.reference.get_added_tokens_decoder().items()}
    for content, token in added.items():
        assert package.token_find(content.encode()) == token
    assert package.token_find(b"no such token") is None
    assert package.token_find(b"") is None
    assert b"" not in vocabulary


def test_only_special_tokens_are_special(subject: Subject) -> None:
    decoder = subject.reference.get_added_tokens_decoder()
    special = {identity for identity, token in decoder.items() if token.special}
    count = subject.package.config.token_count
    assert {token for token in range(-1, count + 1) if subject.package.token_is_special(token)} == special


@pytest.mark.parametrize("token", [-1, -(2**31), 2**31 - 1])
def test_ids_that_are_no_tokens_are_refused(subject: Subject, token: int) -> None:
    with pytest.raises(UsageError, match="no token"):
        subject.package.token_bytes(token)
    with pytest.raises(UsageError, match="no token"):
        subject.package.token_bytes(subject.package.config.token_count)
