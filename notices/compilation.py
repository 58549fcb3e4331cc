"""Nuitka's compilation report: which Python modules a compiled program holds, and where each came from.

The format is that of Nuitka 4.3.3 (`--report=FILE`): the element `nuitka-compilation-report` with a `module` for each
module, a `distributions/distribution` for each distribution that a module comes from, and a
`metadata/included_metadata` for each one whose metadata is carried.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from notices.errors import NoticeError

ROOT: Final = "nuitka-compilation-report"
KINDS: Final = frozenset(
    {
        "PythonMainModule",
        "PythonExtensionModule",
        "CompiledPythonModule",
        "CompiledPythonPackage",
        "CompiledPythonNamespacePackage",
        "UncompiledPythonModule",
        "UncompiledPythonPackage",
    }
)
_STDLIB: Final = re.compile(r"\$\{sys\.(?:real_)?prefix\}/lib(?:64)?/python\d+\.\d+/(?!site-packages/|dist-packages/)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """A module of the program. `distributions` are normalised names of those that installed it; none for most."""

    name: str
    kind: str
    stdlib: bool
    distributions: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compilation:
    """What a report says.

    Attributes:
        version: Nuitka's.
        modules: by name.
        metadata: distributions whose metadata is carried, by normalised name.
        distributions: version of every distribution that a module comes from, by normalised name.
    """

    version: str
    modules: tuple[Module, ...]
    metadata: tuple[str, ...]
    distributions: Mapping[str, str]


def read_report(path: Path) -> Compilation:
    """Reads a report.

    Raises:
        NoticeError: it cannot be read, is none of Nuitka's, or is that of a compilation that did not come to its end.
    """
    try:
        return parse_report(path.read_bytes(), path.name)
    except OSError as error:
        raise _invalid(path.name, f"it cannot be read: {error.strerror}") from error


def parse_report(data: bytes, where: str) -> Compilation:
    """The report in these bytes.

    Raises:
        NoticeError: as `read_report`.
    """
    if b"<!DOCTYPE" in data or b"<!ENTITY" in data:
        raise _invalid(where, "it declares entities, which Nuitka never does")
    try:
        root = ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise _invalid(where, f"it is no XML: {error}") from error
    if root.tag != ROOT:
        raise _invalid(where, f"its outermost element is {root.tag!r}, expected {ROOT!r}")
    completion = root.get("completion")
    if completion != "yes":
        raise _invalid(where, f"the compilation did not complete: {completion!r}")
    modules = tuple(
        sorted((_module(element, where) for element in root.iter("module")), key=lambda module: module.name)
    )
    if not any(module.kind == "PythonMainModule" for module in modules):
        raise _invalid(where, "it lists no main module")
    names = [module.name for module in modules]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise _invalid(where, f"it lists {', '.join(twice)} more than once")
    metadata = {normalised_name(_needed(e.attrib, "name", where)) for e in root.iterfind("metadata/included_metadata")}
    return Compilation(
        version=_needed(root.attrib, "nuitka_version", where),
        modules=modules,
        metadata=tuple(sorted(metadata)),
        distributions={
            normalised_name(_needed(element.attrib, "name", where)): _needed(element.attrib, "version", where)
            for element in root.iterfind("distributions/distribution")
        },
    )


def normalised_name(name: str) -> str:
    """The name of a distribution as the packaging specifications compare it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _module(element: ElementTree.Element, where: str) -> Module:
    kind = _needed(element.attrib, "kind", where)
    if kind not in KINDS:
        raise _invalid(where, f"a module is of the kind {kind!r}, which Nuitka 4.3.3 does not have")
    distributions = element.get("distribution", "")
    return Module(
        name=_needed(element.attrib, "name", where),
        kind=kind,
        stdlib=_STDLIB.match(_needed(element.attrib, "source_path", where)) is not None,
        distributions=tuple(sorted({normalised_name(name) for name in distributions.split(",") if name})),
    )


def _needed(attributes: Mapping[str, str], name: str, where: str) -> str:
    value = attributes.get(name)
    if not value:
        raise _invalid(where, f"an element lacks {name}")
    return value


def _invalid(where: str, fault: str) -> NoticeError:
    return NoticeError("notices-report", f"{where}: {fault}", hint="compile anew with --report")
