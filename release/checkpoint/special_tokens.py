"""Which ids have a meaning: resolved from config.json, generation_config.json and the tokenizer files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from launcher.errors import PackageError

MAX_STOP_IDS: Final = 8
_END_OF_TEXT: Final = "<|endoftext|>"


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecialTokens:
    """Ids with a meaning, None where there is none; generation ends at any of `stop` (1 to 8 ids)."""

    bos: int | None
    eos: int | None
    pad: int | None
    stop: tuple[int, ...]


def resolve_special_tokens(
    config: Mapping[str, Any],
    generation_config: Mapping[str, Any],
    tokenizer_config: Mapping[str, Any],
    added: Mapping[str, int],
    token_count: int,
) -> SpecialTokens:
    """Reads ids from the source; nothing is built in but the name of the end-of-text token.

    config.json decides; where it says nothing about eos or pad, the token that tokenizer_config.json names does. Stop
    ids are every eos of the three files and the end-of-text token. bos comes from config.json alone.

    Args:
        config, generation_config, tokenizer_config: the parsed files.
        added: ids of the tokenizer's added tokens, by text.
        token_count: ids that the tokenizer knows.

    Raises:
        PackageError: an id is not a token, a named token is unknown, or there is no stop id or more than eight.
    """
    stops = _ids(config, "eos_token_id", token_count)
    named_eos = _named(tokenizer_config, "eos_token", added)
    eos = stops[0] if stops else named_eos
    pad = _ids(config, "pad_token_id", token_count)
    bos = _ids(config, "bos_token_id", token_count)
    candidates = [
        *stops,
        *_ids(generation_config, "eos_token_id", token_count),
        named_eos,
        added.get(_END_OF_TEXT),
    ]
    stop = tuple(dict.fromkeys(token for token in candidates if token is not None))
    if not 1 <= len(stop) <= MAX_STOP_IDS:
        raise PackageError(
            "special-tokens-invalid",
            f"the checkpoint names {len(stop)} tokens that end an answer; 1 to {MAX_STOP_IDS} are possible",
            hint="Set eos_token_id in config.json.",
        )
    return SpecialTokens(
        bos=bos[0] if bos else None,
        eos=eos,
        pad=pad[0] if pad else _named(tokenizer_config, "pad_token", added),
        stop=stop,
    )


def _ids(config: Mapping[str, Any], key: str, token_count: int) -> list[int]:
    value = config.get(key)
    if value is None:
        return []
    ids = value if isinstance(value, list) else [value]
    for token in ids:
        if type(token) is not int or not 0 <= token < token_count:
            raise PackageError(
                "special-tokens-invalid",
                f"{key} is {value!r}; expected ids of tokens, which are below {token_count}",
                hint="Compare config.json and generation_config.json with those of inclusionAI/Ling-3.0-tiny.",
            )
    return ids


def _named(tokenizer_config: Mapping[str, Any], key: str, added: Mapping[str, int]) -> int | None:
    value = tokenizer_config.get(key)
    text = value.get("content") if isinstance(value, dict) else value
    if text is None:
        return None
    if not isinstance(text, str) or text not in added:
        raise PackageError(
            "special-tokens-invalid",
            f"tokenizer_config.json: {key} is {text!r}, which is not an added token of tokenizer.json",
            hint="Take both files from the same checkpoint.",
        )
    return added[text]
