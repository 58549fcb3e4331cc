"""What a request may hold. Bodies come from anybody, so everything that costs memory or time has a bound."""

from __future__ import annotations

from typing import Final

MAX_DEPTH: Final = 64
"""Nested arrays and objects of a body."""

MAX_CONTAINERS: Final = 1 << 17
"""Arrays and objects of a body: while millions of them are made, no other thread of the process runs for seconds."""

MAX_DETOKENIZED: Final = 1 << 18
"""Ids of one /detokenize, each of which is looked up by itself."""

MAX_MESSAGES: Final = 2048
MAX_ITEMS: Final = 2 * MAX_MESSAGES
"""Items of a response's input, where a turn with thinking and calls is several."""

MAX_INCLUDED: Final = 64
"""Names in a response's `include`."""

MAX_PARTS: Final = 1024
"""Content parts of one message."""

MAX_STOPS: Final = 16
"""Stop strings; OpenAI allows 4."""

MAX_STOP_CHARACTERS: Final = 1024
MAX_TOOLS: Final = 128
MAX_TOOL_CALLS: Final = 128
"""Calls in one message of the assistant."""

MAX_BIASES: Final = 1024
MAX_BIAS: Final = 100.0
MAX_CHOICES: Final = 16
MAX_TOP_LOGPROBS: Final = 20
MAX_COMPLETION_LOGPROBS: Final = 5
MAX_METADATA: Final = 64
MAX_NAME_CHARACTERS: Final = 256
"""Of a session's name and of the names of authors."""

MAX_TEMPERATURE: Final = 2.0
MAX_PENALTY: Final = 2.0
MAX_TIMEOUT: Final = 604_800.0
"""Seconds: a week."""

MIN_SEED: Final = -(1 << 63)
MAX_SEED: Final = (1 << 64) - 1

# `$` also matches before a last line feed, in Python but not in JSON Schema; this end means the same in both.
_END: Final = r"(?![\s\S])"
TOOL_NAME: Final = rf"^[a-zA-Z0-9_.-]{{1,64}}{_END}"
REQUEST_ID: Final = rf"^[a-zA-Z0-9_.:-]{{1,64}}{_END}"
LABEL: Final = rf"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{{1,{MAX_NAME_CHARACTERS}}}{_END}"
LABEL_OR_NOTHING: Final = rf"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{{0,{MAX_NAME_CHARACTERS}}}{_END}"
LABEL_IN_HEADER: Final = rf"^[^\x00-\x1f\x7f-\x9f\u2028\u2029]{{0,{12 * MAX_NAME_CHARACTERS}}}{_END}"
"""Percent-encoded, where a character may take twelve."""

TOKEN_KEY: Final = rf"^[0-9]{{1,9}}{_END}"
