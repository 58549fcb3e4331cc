"""Nuitka's plugin of the portable build: packages of others become bytecode, which keeps the program small.

Nuitka loads this file by its path; the build itself never imports it.
"""

from __future__ import annotations

from typing import Any

from nuitka.plugins.PluginBase import NuitkaPluginBase  # type: ignore[import-not-found]

COMPILED = ("launcher", "mindnano_infer")


class MindnanoBytecode(NuitkaPluginBase):  # type: ignore[misc]
    """Decides for each module whether it is compiled. For those of the standard library Nuitka decides itself."""

    plugin_name = "mindnano-bytecode"
    plugin_desc = "Keeps packages of others as bytecode."

    def decideCompilation(self, module_name: Any) -> str | None:
        """`compiled`, `bytecode`, or None for Nuitka's own decision."""
        top = str(module_name).partition(".")[0]
        if top in COMPILED:
            return "compiled"
        return "bytecode" if top in self.packages else None

    packages = frozenset(
        {
            "certifi",
            "charset_normalizer",
            "idna",
            "jinja2",
            "markupsafe",
            "prompt_toolkit",
            "requests",
            "urllib3",
            "wcwidth",
        }
    )
