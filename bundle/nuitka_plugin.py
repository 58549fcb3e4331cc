"""Nuitka's plugin of the portable build.

Packages of others become bytecode, which keeps the program small, and bytecode depends on the source alone.

Nuitka loads this file by its path; the build itself never imports it.
"""

from __future__ import annotations

import warnings
from contextlib import suppress
from typing import Any

from nuitka.plugins.PluginBase import NuitkaPluginBase  # type: ignore[import-not-found]

COMPILED = ("launcher", "mindnano_infer")
PACKAGES = frozenset(
    {
        "anyio",
        "certifi",
        "charset_normalizer",
        "click",
        "h11",
        "idna",
        "jinja2",
        "llguidance",
        "markupsafe",
        "msgspec",
        "prometheus_client",
        "prompt_toolkit",
        "requests",
        "starlette",
        "typing_extensions",
        "urllib3",
        "uvicorn",
        "wcwidth",
    }
)


class MindnanoBytecode(NuitkaPluginBase):  # type: ignore[misc]
    """Decides for each module whether it is compiled. For those of the standard library Nuitka decides itself."""

    plugin_name = "mindnano-bytecode"
    plugin_desc = "Keeps packages of others as bytecode."

    def __init__(self) -> None:
        """Has seen no module yet."""
        self._seen: list[Any] = []

    def decideCompilation(self, module_name: Any) -> str | None:
        """`compiled`, `bytecode`, or None for Nuitka's own decision."""
        top = str(module_name).partition(".")[0]
        if top in COMPILED:
            return "compiled"
        return "bytecode" if top in PACKAGES else None

    def onModuleSourceCode(self, module_name: Any, source_filename: str, source_code: str) -> str:
        """Leaves the source as it is, and compiles it once for nothing.

        How `marshal` writes a string depends on whether the process knows it already, so on which modules Nuitka
        happens to have imported itself. With one copy of every module alive, every name is known.
        """
        with warnings.catch_warnings(), suppress(SyntaxError, ValueError):
            warnings.simplefilter("ignore")
            self._seen.append(compile(source_code, source_filename, "exec", dont_inherit=True))
        return source_code
