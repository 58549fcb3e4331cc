"""JSON out of files that may hold anything."""

from __future__ import annotations

import json
from typing import Any


def parse_json(data: bytes) -> Any:
    """The value in these bytes. Every text in it can be written as UTF-8.

    Raises:
        ValueError: it is not JSON, nested too deeply, or a text in it has half of a surrogate pair.
    """
    try:
        value = json.loads(data)
        json.dumps(value, ensure_ascii=False).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return value
