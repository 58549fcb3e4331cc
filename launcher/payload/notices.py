"""`--notices [COMPONENT]` and `--sbom`: what the portable program consists of, from the files that it carries."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Protocol, TextIO

from launcher.errors import PackageError, UsageError
from launcher.integrity.strict_json import Fields, parse_object
from launcher.payload.carried import NOTICES, SBOM

DOCUMENT: Final = "NOTICES.txt"
INDEX: Final = f"{NOTICES}index.json"
SCHEMA: Final = "mindnano-infer.notices"
VERSION: Final = 1
MAX_COMPONENTS: Final = 1000


class Files(Protocol):
    """The payload, as far as it is needed here."""

    @property
    def members(self) -> Mapping[str, object]:
        """The files by name."""

    def read(self, name: str) -> bytes:
        """The bytes of a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A component in the list of the notices. `license` is an SPDX expression, `file` a file of the payload."""

    key: str
    name: str
    version: str
    license: str
    file: str


def run_notices(component: str | None, out: TextIO, files: Files | None) -> int:
    """Prints the notices of everything, or of one component by its key or its name.

    Raises:
        UsageError: the launcher runs from source, or there is no such component.
        PackageError: the payload has no notices or they are damaged.
    """
    if component is None:
        out.write(_read(files, DOCUMENT))
        return 0
    entries = read_index(files)
    wanted = component.casefold()
    found = [entry for entry in entries if wanted in (entry.key.casefold(), entry.name.casefold())]
    if not found:
        raise UsageError(
            "notices-component",
            f"there is no component {component!r}",
            hint=f"one of: {', '.join(entry.key for entry in entries)}",
        )
    out.write(_read(files, found[0].file))
    return 0


def run_sbom(out: TextIO, files: Files | None) -> int:
    """Prints the bill of materials, CycloneDX 1.6 as JSON.

    Raises:
        UsageError: the launcher runs from source.
        PackageError: the payload has none or it is damaged.
    """
    out.write(_read(files, SBOM))
    return 0


def read_index(files: Files | None) -> tuple[Entry, ...]:
    """The components of this program, in the order of the notices.

    Raises:
        UsageError: the launcher runs from source.
        PackageError: the payload has no list or it is damaged.
    """
    fields = parse_object(_read(files, INDEX).encode(), INDEX)
    found = (fields.text("schema"), fields.integer("version"))
    if found != (SCHEMA, VERSION):
        raise _damaged(f"{INDEX} is {found[0]} {found[1]}; expected {SCHEMA} {VERSION}")
    entries = tuple(_entry(value) for value in fields.array("components", limit=MAX_COMPONENTS))
    fields.finish()
    return entries


def _entry(value: object) -> Entry:
    fields = Fields(value, f"{INDEX}: components")
    entry = Entry(
        key=fields.text("key"),
        name=fields.text("name"),
        version=fields.text("version"),
        license=fields.text("license"),
        file=fields.text("file"),
    )
    fields.finish()
    return entry


def _read(files: Files | None, name: str) -> str:
    if files is None:
        raise UsageError(
            "notices-none",
            "this program runs from source; notices and SBOM are made when the portable program is built",
            hint="read LICENSES.md and the folder notices/, or ask the portable program, mindnano-infer",
        )
    if name not in files.members:
        raise _damaged(f"this program carries no {name}")
    try:
        return files.read(name).decode()
    except UnicodeDecodeError as error:
        raise _damaged(f"{name} is not UTF-8") from error


def _damaged(message: str) -> PackageError:
    return PackageError("payload-damaged", message, hint="copy or download the program again")
