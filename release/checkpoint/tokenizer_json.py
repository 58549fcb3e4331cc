"""Reads a Hugging Face `tokenizer.json` of the kind that the engine implements; refuses every other by name.

What the engine implements is byte-level BPE behind one regular-expression split, with added tokens. A setting that
changes ids and is not understood here would give silently wrong ids, so nothing is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from launcher.errors import PackageError
from release.checkpoint.json_text import parse_json

# The split of Ling-3.0. The classes on both sides of each possessive quantifier are disjoint, so the greedy spelling
# matches the same text.
_SPLIT: Final = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?{OPTIONAL}\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+{REPEATED}[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
SPLIT_SPELLINGS: Final = frozenset(
    _SPLIT.replace("{OPTIONAL}", optional).replace("{REPEATED}", repeated)
    for optional in ("", "+")
    for repeated in ("", "+")
)

_TOP_LEVEL: Final = frozenset(
    {
        "version",
        "truncation",  # truncation and padding belong to a call, not to the model
        "padding",
        "added_tokens",
        "normalizer",
        "pre_tokenizer",
        "post_processor",
        "decoder",
        "model",
    }
)
_MODEL: Final = frozenset(
    {
        "type",
        "dropout",
        "unk_token",
        "continuing_subword_prefix",
        "end_of_word_suffix",
        "fuse_unk",  # without an unknown token there is nothing to fuse
        "byte_fallback",
        "ignore_merges",
        "vocab",
        "merges",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedToken:
    """A token that is matched in the text before BPE. `normalized` ones are matched after all others."""

    id: int
    content: str
    special: bool
    normalized: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BpeTokenizer:
    """Vocabulary in the byte alphabet, merges by rank as pairs of vocabulary entries, added tokens."""

    vocabulary: Mapping[str, int]
    merges: Sequence[tuple[str, str]]
    added: Sequence[AddedToken]
    ignore_merges: bool


def read_tokenizer_json(data: bytes) -> BpeTokenizer:
    """Parses and checks the file.

    Raises:
        PackageError: it is no tokenizer.json, contradicts itself, or needs what the engine does not implement.
    """
    try:
        document = parse_json(data)
    except ValueError as error:
        raise _invalid(f"tokenizer.json is not JSON: {error}") from error
    if not isinstance(document, dict) or not isinstance(document.get("model"), dict):
        raise _invalid("tokenizer.json holds no model")
    _only(document, _TOP_LEVEL, "")
    _empty(document, "normalizer", "")
    _check_pre_tokenizer(document.get("pre_tokenizer"))
    _check_post_processor(document.get("post_processor"))
    _check_decoder(document.get("decoder"))
    model = document["model"]
    _check_model(model)
    vocabulary = _vocabulary(model.get("vocab"))
    return BpeTokenizer(
        vocabulary=vocabulary,
        merges=_merges(model.get("merges"), vocabulary),
        added=_added_tokens(document.get("added_tokens") or [], vocabulary),
        ignore_merges=bool(model.get("ignore_merges", False)),
    )


def refuse(what: str) -> NoReturn:
    """Raises the error for a setting that the engine does not implement."""
    raise PackageError(
        "tokenizer-unsupported",
        f"tokenizer.json: {what}",
        hint="The engine implements the byte-level BPE of Ling-3.0 and nothing else.",
    )


def invalid(what: str) -> NoReturn:
    """Raises the error for a file that contradicts itself."""
    raise _invalid(f"tokenizer.json: {what}")


def _invalid(message: str) -> PackageError:
    hint = "Download the file again and compare its size and SHA-256 with the source."
    return PackageError("tokenizer-invalid", message, hint=hint)


def _only(value: Mapping[str, Any], known: frozenset[str], where: str) -> None:
    unknown = sorted(set(value) - known)
    if unknown:
        refuse(f"{where}{unknown[0]} is unknown")


def _empty(value: Mapping[str, Any], key: str, where: str) -> None:
    """Refuses a setting that is neither absent nor null nor empty nor false."""
    if value.get(key) not in (None, "", False):
        refuse(f"{where}{key} is {_short(value[key])}, expected none")


def _short(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 120 else f"{text[:117]}..."


def _type(value: object) -> object:
    return value.get("type") if isinstance(value, dict) else value


def _check_pre_tokenizer(value: object) -> None:
    parts = value.get("pretokenizers") if isinstance(value, dict) and value.get("type") == "Sequence" else None
    if not isinstance(parts, list) or [_type(part) for part in parts] != ["Split", "ByteLevel"]:
        refuse(f"pre_tokenizer is {_short(value)}, expected a Sequence of Split and ByteLevel")
    split, byte_level = parts
    _only(split, frozenset({"type", "pattern", "behavior", "invert"}), "pre_tokenizer Split.")
    pattern = split.get("pattern")
    if not isinstance(pattern, dict) or set(pattern) != {"Regex"} or pattern["Regex"] not in list(SPLIT_SPELLINGS):
        refuse(f"pre_tokenizer Split.pattern is {_short(pattern)}, expected the regular expression of Ling-3.0")
    if split.get("behavior") != "Isolated" or split.get("invert", False) is not False:
        refuse("pre_tokenizer Split is not Isolated or is inverted")
    _only(byte_level, frozenset({"type", "add_prefix_space", "trim_offsets", "use_regex"}), "pre_tokenizer ByteLevel.")
    # Both are true where the file does not say.
    for key in ("add_prefix_space", "use_regex"):
        if byte_level.get(key, True) is not False:
            refuse(f"pre_tokenizer ByteLevel.{key} is not false")


def _check_post_processor(value: object) -> None:
    if value is None or _type(value) == "ByteLevel":
        return  # ByteLevel moves offsets, which the engine does not report
    if isinstance(value, dict) and value.get("type") == "Sequence":
        for part in _list(value, "processors"):
            _check_post_processor(part)
        return
    if isinstance(value, dict) and value.get("type") == "TemplateProcessing":
        pieces = [*_list(value, "single"), *_list(value, "pair")]
        if all(isinstance(piece, dict) and set(piece) == {"Sequence"} for piece in pieces):
            return
        refuse("post_processor TemplateProcessing adds tokens to the text")
    refuse(f"post_processor is {_short(_type(value))}, expected none that adds tokens")


def _list(value: Mapping[str, Any], key: str) -> list[Any]:
    found = value.get(key) or []
    if not isinstance(found, list):
        invalid(f"post_processor {key} is {_short(found)}, expected a list")
    return found


def _check_decoder(value: object) -> None:
    if isinstance(value, dict) and value.get("type") == "Sequence":
        decoders = value.get("decoders")
        if isinstance(decoders, list) and len(decoders) == 1:
            value = decoders[0]
    if _type(value) != "ByteLevel":
        refuse(f"decoder is {_short(_type(value))}, expected ByteLevel")


def _check_model(model: Mapping[str, Any]) -> None:
    # Old files leave the type out.
    if model.get("type", "BPE") != "BPE":
        refuse(f"model.type is {_short(model['type'])}, expected BPE")
    _only(model, _MODEL, "model.")
    for key in ("unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"):
        _empty(model, key, "model.")
    if model.get("dropout"):
        refuse(f"model.dropout is {_short(model['dropout'])}, expected none")
    if not isinstance(model.get("ignore_merges", False), bool):
        invalid(f"model.ignore_merges is {_short(model['ignore_merges'])}, expected true or false")


def _vocabulary(value: object) -> dict[str, int]:
    if not isinstance(value, dict) or not value:
        invalid("model.vocab is not a list of tokens with their ids")
    texts: dict[int, str] = {}
    for text, token in value.items():
        if type(token) is not int or not 0 <= token < 2**31 - 1:
            invalid(f"token {_short(text)} has the id {_short(token)}")
        if not text:
            invalid(f"token {token} is empty")
        other = texts.setdefault(token, text)
        if other != text:
            invalid(f"tokens {_short(other)} and {_short(text)} have the same id {token}")
    return value


def _merges(value: object, vocabulary: Mapping[str, int]) -> list[tuple[str, str]]:
    if not isinstance(value, list):
        invalid("model.merges is not a list")
    merges: list[tuple[str, str]] = []
    for rank, merge in enumerate(value):
        parts = merge.split(" ") if isinstance(merge, str) else merge
        if not isinstance(parts, list) or len(parts) != 2 or not all(isinstance(part, str) for part in parts):
            invalid(f"merge {rank} is {_short(merge)}, expected two tokens")
        left, right = parts
        for text in (left, right, left + right):
            if text not in vocabulary:
                invalid(f"merge {rank} ({left} {right}): {_short(text)} is no token")
        merges.append((left, right))
    if len(set(merges)) != len(merges):
        invalid("a pair of tokens is merged twice")
    return merges


def _added_tokens(value: object, vocabulary: Mapping[str, int]) -> list[AddedToken]:
    if not isinstance(value, list):
        invalid("added_tokens is not a list")
    texts = {token: text for text, token in vocabulary.items()}
    tokens: list[AddedToken] = []
    for entry in value:
        token = _added_token(entry)
        if vocabulary.get(token.content, token.id) != token.id:
            invalid(f"added token {_short(token.content)} is {token.id} here and {vocabulary[token.content]} in vocab")
        other = texts.setdefault(token.id, token.content)
        if other != token.content:
            invalid(f"added token {_short(token.content)} has the id {token.id} of {_short(other)}")
        tokens.append(token)
    contents = [token.content for token in tokens]
    if len(set(contents)) != len(contents):
        invalid("an added token is listed twice")
    _check_two_passes(tokens)
    return tokens


def _added_token(entry: object) -> AddedToken:
    if not isinstance(entry, dict):
        invalid(f"added token {_short(entry)} is no object")
    token, content = entry.get("id"), entry.get("content")
    if type(token) is not int or not 0 <= token < 2**31 - 1 or not isinstance(content, str) or not content:
        invalid(f"added token {_short(entry)} has no id or no content")
    known = frozenset({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"})
    _only(entry, known, f"added token {_short(content)}: ")
    for key in ("single_word", "lstrip", "rstrip"):
        if entry.get(key, False) is not False:
            refuse(f"added token {_short(content)} has {key}, which changes what it matches")
    special = bool(entry.get("special", False))
    return AddedToken(id=token, content=content, special=special, normalized=bool(entry.get("normalized", not special)))


def _check_two_passes(tokens: Sequence[AddedToken]) -> None:
    """Refuses tokens for which one pass over the text differs from two.

    The source matches tokens that are not `normalized` first, in the whole text, and the others in what remains. The
    engine matches all in one pass, leftmost first, then longest. That differs only where an occurrence of a token of
    the second kind begins before one of the first and reaches into it, or begins with it and is longer.
    """
    first = [token for token in tokens if not token.normalized]
    for late in (token for token in tokens if token.normalized):
        for early in first:
            if _reaches_into(late.content, early.content):
                refuse(f"added tokens {_short(late.content)} and {_short(early.content)} overlap in the text")


def _reaches_into(late: str, early: str) -> bool:
    """Whether `early` can begin inside `late`: it is contained in it, or begins as `late` ends."""
    return early in late or any(late.endswith(early[:length]) for length in range(1, min(len(late), len(early))))
