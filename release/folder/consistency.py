"""Do the files of a release say the same? Every document that follows from others is made again, and compared.

What lies nearest to the bytes counts: the package itself, the program's payload, then the manifest for what stands in
neither. The documents are made as this version of the program makes them. Another version may word and arrange them
otherwise, so of a release that another one made only the facts are compared, not the wording.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import launcher
from launcher.errors import PackageError
from launcher.integrity import model_info
from launcher.integrity.manifest import Manifest
from launcher.integrity.model_info import ModelInfo
from launcher.integrity.release_files import read_capped
from launcher.payload.carried import NOTICES
from release.folder import bom, card, provenance
from release.folder.described import Described, described_in, model_of, texts_of
from release.folder.fidelity import PLOT
from release.folder.files import NEEDED, NOTICE, OLDEST_LAUNCHER, program_licence, redistribution, role_of
from release.folder.program_facts import DOCUMENT, ProgramFacts
from release.folder.program_facts import NAME as PROGRAM
from release.folder.weights_licences import BASE_LICENCE, DONOR_LICENCE, WEIGHTS_LICENCE, find_licence
from release.package.facts import PackageFacts

_MAX_BYTES: Final = 16 << 20
_SHOWN: Final = 8
_BUILDER: Final = "mindnano "
_TEXT_LICENCE: Final = "Apache-2.0"
_NAMES: Final = ("bom-ref", "ref", "name", "uri")
"""Keys that tell the entries of a list apart, so that a difference can be named by them."""
_BILL_FACTS: Final = ("metadata.component", "metadata.timestamp", f"components[{bom.PACKAGE}]")
_VARYING: Final = ("memory", "languages")
"""Keys of MODEL.json that depend on the version of the program that wrote it."""
COMPARED: Final = frozenset({"manifest", "package", "licences", "card", "sbom", "provenance"})
"""Checks of files that say again what others say."""
WORDED: Final = frozenset({"licences", "card"})
"""Those of texts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A release of which manifest, MODEL.json, program and package could be read."""

    folder: Path
    manifest: Manifest
    info: ModelInfo
    program: ProgramFacts
    package: PackageFacts

    @property
    def is_of_this_version(self) -> bool:
        """Whether its documents can be compared word for word."""
        return is_of_this_version(self.manifest)


def is_of_this_version(described: Manifest) -> bool:
    """Whether this version of the program made the release."""
    return described.builder == f"{_BUILDER}{launcher.__version__}"


def _version_of(described: Manifest) -> str:
    return described.builder.removeprefix(_BUILDER)


def contradictions(read: Read) -> Mapping[str, tuple[str, ...]]:
    """Where files of a release say something else than they must, one sentence each, by the name of the check."""
    found: dict[str, list[str]] = {"manifest": list(_manifest_faults(read))}
    try:
        described = described_in(read.folder, read.manifest, read.info, program=read.program, package=read.package)
        texts = texts_of(described)
        info = model_of(described)
    except PackageError as error:
        return {"manifest": tuple(found["manifest"]), "card": (error.message,)}
    found["manifest"] += _foreign_files(read, described, texts)
    found["package"] = _info_faults(read, texts[model_info.FILE_NAME])
    found["licences"] = list(
        _text_faults(read, NOTICE, texts[NOTICE], [f"{read.manifest.model} {read.manifest.release}"])
    )
    found["card"] = list(_text_faults(read, card.NAME, texts[card.NAME], _needed_on_card(described)))
    if PLOT in texts and read.is_of_this_version:
        found["card"] += _text_faults(read, PLOT, texts[PLOT], [])
    found["sbom"] = _bill_faults(read, described, info)
    found["provenance"] = _statement_faults(read, described, info)
    return {name: tuple(faults) for name, faults in found.items()}


def _manifest_faults(read: Read) -> Iterator[str]:
    described = read.manifest
    tools = {**read.program.tools, "converter": read.package.created_by}
    yield from _shown(_differences(dict(described.tools), tools, "tools"), extra=read.is_of_this_version)
    terms = redistribution(read.program)
    yield from _shown(_differences(dict(described.redistribution), terms, "redistribution"), extra=True)
    if read.is_of_this_version and described.min_launcher_version != OLDEST_LAUNCHER:
        yield f"it asks for mindnano-infer {described.min_launcher_version}, expected {OLDEST_LAUNCHER}"
    for file in described.files:
        role, licence = role_of(file.path), _licence_of(file.path, read)
        if role is None and file.path != read.info.package.path:
            continue  # another version's, of which nothing is known; of this version's it is told as foreign
        if role is not None and file.role != role:
            yield f"it gives {file.path} the role {file.role}, expected {role}"
        if file.licence != licence:
            yield f"it puts {file.path} under {file.licence}, expected {licence}"


def _foreign_files(read: Read, described: Described, texts: Mapping[str, bytes]) -> Iterator[str]:
    """Files that are listed though nothing asks for them. Other versions may add some."""
    if not read.is_of_this_version:
        return
    known = {*NEEDED, BASE_LICENCE, DONOR_LICENCE, read.info.package.path}
    known |= {*read.program.notices, *described.reports, *texts}
    for file in read.manifest.files:
        if file.path not in known:
            yield f"it lists {file.path}, which this release has no use for"


def _licence_of(path: str, read: Read) -> str:
    """The terms of a file by what the package and the program say; the weights' own are those of MODEL.json."""
    if path in (PROGRAM, DOCUMENT) or path.startswith(NOTICES):
        return program_licence(read.program)
    if path in (read.info.package.path, WEIGHTS_LICENCE):
        return read.info.licence
    part = read.package.licence if path == BASE_LICENCE else None
    if path == DONOR_LICENCE and read.package.donor is not None:
        part = read.package.donor.licence
    known = None if part is None else find_licence(part)
    return _TEXT_LICENCE if known is None else known.spdx


def _info_faults(read: Read, expected: bytes) -> list[str]:
    found = _bytes_of(read, model_info.FILE_NAME)
    said, wanted = json.loads(found), json.loads(expected)
    if not read.is_of_this_version:
        said, wanted = ({key: value for key, value in each.items() if key not in _VARYING} for each in (said, wanted))
    faults = _shown(_differences(said, wanted), extra=read.is_of_this_version)
    if not faults and found != expected and read.is_of_this_version:
        faults = [_other_line(found, expected)]
    return [f"{model_info.FILE_NAME}: {fault}" for fault in faults]


def _bill_faults(read: Read, described: Described, info: ModelInfo) -> list[str]:
    own = find_licence(read.package.licence or "")
    expected = bom.release_bill(
        described.release,
        read.program,
        described.program_sha256,
        info,
        tool_version=_version_of(read.manifest),
        own_licence=info.licence if own is None else own.spdx,
    )
    found = _json_of(read, bom.NAME)
    differences = _differences(found, expected)
    if read.is_of_this_version:
        return _shown(differences, extra=True)
    return _shown((each for each in differences if each.where.startswith(_BILL_FACTS)), extra=False)


def _statement_faults(read: Read, described: Described, info: ModelInfo) -> list[str]:
    expected = provenance.statement(
        {file.path: file.sha256 for file in read.manifest.files if file.path != provenance.NAME},
        release=described.release,
        origin=provenance.Origin(commit=read.manifest.commit, version=_version_of(read.manifest)),
        program=read.program,
        package=read.package,
        info=info,
        reports={name: hashlib.sha256(data).hexdigest() for name, data in described.reports.items()},
    )
    found = _bytes_of(read, provenance.NAME)
    faults = _shown(_differences(_json_of(read, provenance.NAME), json.loads(expected)), extra=read.is_of_this_version)
    if not faults and found != expected and read.is_of_this_version:
        return [_other_line(found, expected)]
    return faults


def _needed_on_card(described: Described) -> list[str]:
    release, shapes = described.release, described.package.shapes
    return [
        f"# {release.model} {release.version}",
        f"{shapes['parameters']:,}",
        described.program_sha256,
        described.package_sha256,
    ]


def _text_faults(read: Read, name: str, expected: bytes, needed: list[str]) -> Iterator[str]:
    """Where a text differs. Of another version's only what it must name is looked for, in whichever words."""
    found = _bytes_of(read, name)
    if read.is_of_this_version:
        if found != expected:
            yield f"{name}: {_other_line(found, expected)}"
        return
    said = found.decode(errors="replace")
    yield from (f"{name} does not name {part}" for part in needed if part not in said)


def _other_line(found: bytes, expected: bytes) -> str:
    """The first line that differs, by its number."""
    lines = zip_longest(*(text.decode(errors="replace").split("\n") for text in (found, expected)))
    for number, (said, wanted) in enumerate(lines, start=1):
        if said != wanted:
            return f"line {number} is {_quoted(said)}, expected {_quoted(wanted)}"
    return "its bytes are not UTF-8"


def _quoted(line: str | None) -> str:
    return "missing" if line is None else f"{line:.200}" if line else "empty"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Difference:
    """A place in a JSON document; None where `found` has nothing there, or nothing is `expected`."""

    where: str
    found: str | None
    expected: str | None

    def __str__(self) -> str:
        if self.found is None:
            return f"{self.where} is missing, expected {self.expected}"
        if self.expected is None:
            return f"{self.where} is {self.found}, expected nothing of this name"
        return f"{self.where} is {self.found}, expected {self.expected}"


def _differences(found: Any, expected: Any, where: str = "") -> Iterator[_Difference]:
    """Where two JSON values differ; it goes no deeper than the expected one does."""
    if isinstance(found, list) and isinstance(expected, list):
        said, wanted = _named(found), _named(expected)
        if said is None or wanted is None:
            said, wanted = _numbered(found), _numbered(expected)
        yield from _differences_of(said, wanted, where, "[{}]")
    elif isinstance(found, dict) and isinstance(expected, dict):
        yield from _differences_of(found, expected, where, ".{}" if where else "{}")
    elif type(found) is not type(expected) or found != expected:
        yield _Difference(where=where or "it", found=_written(found), expected=_written(expected))


def _differences_of(
    found: Mapping[str, Any], expected: Mapping[str, Any], where: str, form: str
) -> Iterator[_Difference]:
    for key in sorted(found.keys() | expected.keys()):
        place = where + form.format(key)
        if key not in found:
            yield _Difference(where=place, found=None, expected=_written(expected[key]))
        elif key not in expected:
            yield _Difference(where=place, found=_written(found[key]), expected=None)
        else:
            yield from _differences(found[key], expected[key], place)


def _numbered(values: list[Any]) -> dict[str, Any]:
    return {str(index): value for index, value in enumerate(values)}


def _named(values: list[Any]) -> dict[str, Any] | None:
    """The entries by the first of their names; None where they have none, or two have the same."""
    if not all(isinstance(value, dict) for value in values):
        return None
    named = {next((str(value[key]) for key in _NAMES if key in value), ""): value for value in values}
    return named if len(named) == len(values) and "" not in named else None


def _written(value: Any) -> str:
    return f"{json.dumps(value, ensure_ascii=False):.120}"


def _shown(differences: Iterator[_Difference], *, extra: bool) -> list[str]:
    """One sentence each for the first few; with `extra` also where there is something that is not expected."""
    found = [str(each) for each in differences if extra or each.expected is not None]
    return found if len(found) <= _SHOWN else [*found[:_SHOWN], f"and {len(found) - _SHOWN} more"]


def _json_of(read: Read, name: str) -> Any:
    try:
        return json.loads(_bytes_of(read, name))
    except (ValueError, RecursionError):
        return None


def _bytes_of(read: Read, name: str) -> bytes:
    return read_capped(read.folder / name, _MAX_BYTES) or b""
