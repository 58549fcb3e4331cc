"""English: `--print-config`, `--print-unit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "config-file": "read: {path}",
    "config-file-missing": "not there: {path}",
    "config-default": "default",
    "config-command-line": "command line",
    "unit-no-server": "note: this version has no server yet; the unit is for a version that has one",
}
