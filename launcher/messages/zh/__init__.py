"""Simplified Chinese. One module per topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from launcher.messages.zh import (
    chat,
    check,
    check_machine,
    check_resources,
    config,
    contexts,
    download,
    general,
    help,
    payload,
    server,
    verify,
)
from launcher.messages.zh.errors import ERRORS as ERRORS

TEXTS: Final[Mapping[str, str]] = {
    **help.TEXTS,
    **general.TEXTS,
    **chat.TEXTS,
    **check.TEXTS,
    **check_machine.TEXTS,
    **check_resources.TEXTS,
    **contexts.TEXTS,
    **payload.TEXTS,
    **verify.TEXTS,
    **download.TEXTS,
    **config.TEXTS,
    **server.TEXTS,
}
