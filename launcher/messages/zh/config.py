"""Simplified Chinese: `--print-config`, `--print-unit`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "config-file": "已读取：{path}",
    "config-file-missing": "不存在：{path}",
    "config-default": "默认",
    "config-command-line": "命令行",
}
