"""The official Python client, strict, and how tests ask with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from openai import OpenAI
from openai.types.chat import ChatCompletionChunk

from tests.support.server_process import ServerProcess

MODEL = "mindnano-demo"
LIST = "Please list 5 animals."
LISTED = "1. cat\n2. dog\n3. horse\n4. cow\n5. sheep"
LONG: dict[str, Any] = {"ignore_eos": True}
"""Makes a reply that goes on to the end of the context, for some seconds."""


@contextmanager
def openai_client(server: ServerProcess, key: str = "none", *, strict: bool = True) -> Iterator[OpenAI]:
    """A client that never retries; a strict one refuses answers that are not of the documented types."""
    with OpenAI(
        base_url=f"{server.url}/v1", api_key=key, _strict_response_validation=strict, max_retries=0, timeout=60
    ) as client:
        yield client


def user(text: str) -> list[Any]:
    """The messages of one question."""
    return [{"role": "user", "content": text}]


def long_text(words: int) -> str:
    """A text that takes a while to read."""
    return " ".join(("red", "green", "blue", "white")[index % 4] for index in range(words))


def joined(chunks: Sequence[ChatCompletionChunk], name: str = "content", choice: int = 0) -> str:
    """The text of one choice out of the chunks' deltas."""
    return "".join(
        getattr(each.delta, name, None) or "" for chunk in chunks for each in chunk.choices if each.index == choice
    )
