"""What a compiled Python module that is loaded at run time asks of the interpreter, and whether a program has it.

The program exports its functions to such modules. The linker leaves out what nothing in the program calls, so a
function that only the module calls could be missing, which would show when it is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile
from elftools.elf.sections import SymbolTableSection

from bundle.errors import BundleError

_PREFIXES: Final = ("Py", "_Py")


def wanted(library: Path) -> frozenset[str]:
    """Names of Python's API that a shared library takes from whoever loads it."""
    return frozenset(name for name, defined in _symbols(library) if not defined)


def exported(program: Path) -> frozenset[str]:
    """Names of Python's API that a program offers to what it loads."""
    return frozenset(name for name, defined in _symbols(program) if defined)


def require(program: Path, library: Path) -> None:
    """Makes sure that the program exports all that the library wants.

    Raises:
        BundleError: it does not, with the names; or one of the two is no ELF file with dynamic symbols.
    """
    names = wanted(library)
    missing = sorted(names - exported(program))
    if not names or missing:
        found = ", ".join(missing) or "nothing, so it is no module of Python"
        raise BundleError(
            "python-api",
            f"{library.name} wants {found}, which the program does not export",
            hint="see that the linker keeps and exports these functions",
        )


def _symbols(path: Path) -> list[tuple[str, bool]]:
    """Dynamic symbols of Python's API, and whether the file defines them."""
    try:
        with path.open("rb") as stream:
            table = ELFFile(stream).get_section_by_name(".dynsym")
            if not isinstance(table, SymbolTableSection):
                raise BundleError("python-api", f"{path.name} has no dynamic symbols")
            return [
                (symbol.name, symbol["st_shndx"] != "SHN_UNDEF")
                for symbol in table.iter_symbols()
                if symbol.name.startswith(_PREFIXES)
            ]
    except (OSError, ELFError) as error:
        raise BundleError("python-api", f"{path.name} cannot be read: {error}") from error
