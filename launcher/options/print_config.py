"""`--print-config`: every option, its value and where the value came from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from launcher.messages import Catalogue
from launcher.options.layers import config_files
from launcher.options.parse import Options
from launcher.options.table import BY_NAME, Value


def run_print_config(options: Options, environ: Mapping[str, str], texts: Catalogue) -> int:
    """Prints what is in force. The text is TOML that a configuration file may hold as it is."""
    files = config_files(environ)
    print(json.dumps(_document(options, files), indent=2) if options.json else _text(options, files, texts))
    return 0


def _document(options: Options, files: Sequence[Path]) -> dict[str, object]:
    return {
        "schema": "mindnano-infer.config",
        "version": 1,
        "files": [{"path": str(path), "exists": path.exists()} for path in files],
        "options": {
            name: {"value": _plain(_shown(name, setting.value)), "origin": setting.origin}
            for name, setting in options.settings.items()
            if BY_NAME[name].configurable
        },
    }


def _shown(name: str, value: Value) -> Value:
    """The value, or as many stars as there are secrets."""
    return ("***",) * len(value) if BY_NAME[name].secret and isinstance(value, tuple) else value


def _plain(value: Value) -> Value:
    return str(value) if isinstance(value, Path) else value


def _text(options: Options, files: Sequence[Path], texts: Catalogue) -> str:
    lines = []
    for path in files:
        lines.append("# " + texts("config-file" if path.exists() else "config-file-missing", path=path))
    lines.append("")
    for name, setting in options.settings.items():
        if not BY_NAME[name].configurable:
            continue
        # An option without a value has no TOML; it is shown, but as a comment.
        shown = f"# {name}" if setting.value is None else f"{name} = {_toml(_shown(name, setting.value))}"
        lines.append(f"{shown:<40} # {_origin(setting.origin, texts)}")
    return "\n".join(lines)


def _origin(origin: str, texts: Catalogue) -> str:
    if origin == "default":
        return texts("config-default")
    return texts("config-command-line") if origin == "command line" else origin


def _toml(value: Value) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return f"[{', '.join(_toml(item) for item in value)}]"
    # A basic string of TOML has the escapes of JSON.
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
