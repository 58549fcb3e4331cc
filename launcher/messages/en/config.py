"""English: `--print-config`, `--print-unit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "config-file": "read: {path}",
    "config-file-missing": "not there: {path}",
    "config-default": "default",
    "config-command-line": "command line",
}
