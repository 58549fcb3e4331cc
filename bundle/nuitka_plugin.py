"""Nuitka's plugin of the portable build.

Packages of others become bytecode, which keeps the program small, and bytecode depends on the source alone. Each module
of it is compressed for itself, so a start inflates what it imports and nothing else.

Nuitka loads this file by its path; the build itself never imports it.
"""

from __future__ import annotations

import marshal
import warnings
import zlib
from contextlib import suppress
from types import CodeType
from typing import Any

from nuitka.freezer.ImportDetection import detectEarlyImports  # type: ignore[import-not-found]
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
# All that a compressed module is: one statement, whose parts are in the interpreter and which leaves no name behind.
INFLATE = "exec(__import__('marshal').loads(__import__('zlib').decompress({!r})))"
# Of smaller ones hardly anything would be saved.
LEAST_BYTES = 1500


def compressed(bytecode: CodeType) -> CodeType:
    """Code that inflates the given one and runs it in the same module; the given one where it is small.

    Nuitka runs on the interpreter of this build, whatever the machine has, so it is always the same zlib.
    """
    content = marshal.dumps(bytecode)
    if len(content) < LEAST_BYTES:
        return bytecode
    source = INFLATE.format(zlib.compress(content, 9))
    return compile(source, bytecode.co_filename, "exec", dont_inherit=True)


class MindnanoBytecode(NuitkaPluginBase):  # type: ignore[misc]
    """Decides for each module whether it is compiled. For those of the standard library Nuitka decides itself."""

    plugin_name = "mindnano-bytecode"
    plugin_desc = "Keeps packages of others as bytecode."

    def __init__(self) -> None:
        """Has seen no module yet but the one that inflates."""
        self._seen: list[Any] = [compile(INFLATE.format(b""), "inflate", "exec", dont_inherit=True)]

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

    def onFrozenModuleBytecode(self, module_name: Any, is_package: bool, bytecode: CodeType) -> CodeType:
        """Compresses the bytecode of a module.

        What every start imports stays as it is. Nuitka counts all character encodings to that; a start takes two.
        """
        name = str(module_name)
        encoding = name.startswith("encodings.") and name != "encodings.aliases"
        return bytecode if name in detectEarlyImports() and not encoding else compressed(bytecode)
