"""Components as their `component.toml` describes them.

Its keys, with examples:

    name = "zlib"                       what its authors call it
    part = "compression"                which part of it is used, and for what
    version = "from build"              or the version, where it is not that of the source
    source_version = "3.13.5"           optional: the version of the source that holds a copy of that `version`
    license = "Zlib"                    SPDX expression; LicenseRef- where SPDX knows no name for the terms
    copyright = ["(C) ..."]             holders, as they write it
    homepage = "https://zlib.net/"      optional
    source = "archive:zlib"             the pin that the build takes it from, or an address; see `Component.source`
    source_sha256 = "..."               with an address
    purl = "pkg:generic/zlib#part"      optional: package URL without version
    within = "cpython"                  optional: it is compiled into files of that component and has none of its own
    optional = "left out by --x"        optional: why a build may be without it
    note = "..."                        optional: what a reader of the notices should know
    crates = ["log 0.4.27 MIT"]         optional: Rust libraries in it, each with version and licence expression

    [[texts]]
    file = "LICENSE"                    in this folder; in the project's own folder where `source` is "project"
    from = "*/LICENSE"                  where it stands in the source, * for parts that change with the version
    lines = [1, 23]                     optional: first and last line of it
    archive = "..."                     optional: where it comes from, if not from the source
    reference = "LicenseRef-..."        optional: it is the text of these terms
    supplied_sha256 = "..."             optional: the text is no part of the repository; the build hands it over

    [owns]                              patterns of names, * for anything
    archives = ["libz.a"]               static libraries
    members = ["libpython3.13.a:x.o"]   members of a library of somebody else
    objects = ["start.o"]               single objects
    stdlib = true                       modules of Python's standard library
    python = ["jinja2"]                 modules and packages with all they hold
    payload = ["models/demo.l3r"]       files of the payload
"""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Final

from notices.errors import NoticeError

FOLDER: Final = Path(__file__).parent
PROJECT: Final = "project"
FROM_BUILD: Final = "from build"
DESCRIPTION: Final = "component.toml"

_KEYS: Final = {
    "": (
        {"name", "part", "version", "license", "copyright", "source", "texts"},
        {"homepage", "source_sha256", "source_version", "purl", "within", "optional", "note", "crates", "owns"},
    ),
    "texts": ({"file", "from"}, {"lines", "archive", "reference", "supplied_sha256"}),
    "owns": (set(), {"archives", "members", "objects", "stdlib", "python", "payload"}),
}
_REFERENCE: Final = re.compile(r"LicenseRef-[A-Za-z0-9.-]+")
_PIN: Final = re.compile(r"(archive:|pypi:)[a-z0-9][a-z0-9_-]*|project|rknn-runtime")
_KEY: Final = re.compile(r"[a-z0-9][a-z0-9-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """A licence text. `lines` are the first and last line of `origin`, `supplied_sha256` is normalised."""

    file: str
    origin: str
    lines: tuple[int, int] | None
    archive: str
    reference: str
    supplied_sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Crate:
    """A Rust library that is compiled into a file of a component. `license` is an SPDX expression."""

    name: str
    version: str
    license: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Owns:
    """Patterns of what a component owns."""

    archives: tuple[str, ...]
    members: tuple[str, ...]
    objects: tuple[str, ...]
    python: tuple[str, ...]
    payload: tuple[str, ...]
    stdlib: bool

    def __bool__(self) -> bool:
        return self.stdlib or any((self.archives, self.members, self.objects, self.python, self.payload))


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One component; the module's text describes the fields.

    `key` is the name of its folder. `source` is `archive:NAME` (a source archive of the build), `pypi:NAME` (a Python
    distribution), `rknn-runtime`, `project`, or an address with `source_sha256`.
    """

    key: str
    folder: Path
    name: str
    part: str
    version: str
    license: str
    copyright: tuple[str, ...]
    homepage: str
    source: str
    source_sha256: str
    source_version: str
    purl: str
    within: str
    optional: str
    note: str
    crates: tuple[Crate, ...]
    texts: tuple[Text, ...]
    owns: Owns

    @property
    def is_pinned(self) -> bool:
        """Whether the build says which version it took, and from which file."""
        return not self.source_sha256

    def path(self, text: Text) -> Path:
        """Where a text lies that is part of the repository."""
        return (FOLDER.parent if self.source == PROJECT else self.folder) / text.file

    @property
    def references(self) -> tuple[str, ...]:
        """Names in the licence expression that SPDX does not know, in order."""
        return tuple(dict.fromkeys(_REFERENCE.findall(self.license)))


def load_components(folder: Path = FOLDER) -> tuple[Component, ...]:
    """All components, by key.

    Raises:
        NoticeError: one is not described as it must be, a text is missing, or a file is no text of its component.
    """
    found = [_load(path) for path in sorted(folder.glob(f"*/{DESCRIPTION}"))]
    keys = {component.key for component in found}
    for component in found:
        if component.within and component.within not in keys - {component.key}:
            raise _invalid(component.folder, f"it is within {component.within!r}, which is no other component")
    if not found:
        raise _invalid(folder, "it holds no component")
    return tuple(found)


def read_texts(
    component: Component, supplied: Mapping[tuple[str, str], bytes] | None = None
) -> tuple[tuple[Text, str], ...]:
    """The component's texts with their content.

    Args:
        supplied: texts that are no part of the repository, by (component, file).

    Raises:
        NoticeError: a text is missing or, handed over, is not the expected one.
    """
    return tuple((text, _read_text(component, text, supplied or {})) for text in component.texts)


def normalised_sha256(data: bytes) -> str:
    """SHA-256 of a text, however its line ends and blanks at line ends were changed on the way.

    Raises:
        UnicodeDecodeError: it is not UTF-8.
    """
    lines = [line.rstrip() for line in data.decode().splitlines()]
    return hashlib.sha256(("\n".join(lines).strip("\n") + "\n").encode()).hexdigest()


def _read_text(component: Component, text: Text, supplied: Mapping[tuple[str, str], bytes]) -> str:
    name = f"{component.key}/{text.file}"
    if not text.supplied_sha256:
        try:
            return component.path(text).read_bytes().decode()
        except (OSError, UnicodeDecodeError) as error:
            raise NoticeError("notices-text", f"the licence text {name} cannot be read: {error}") from error
    hint = f"hand over the text that came with {component.name}: {text.origin}"
    data = supplied.get((component.key, text.file))
    if data is None:
        raise NoticeError("notices-text", f"the licence text {name} is needed and was not handed over", hint=hint)
    try:
        digest = normalised_sha256(data)
        content = data.decode()
    except UnicodeDecodeError as error:
        raise NoticeError("notices-text", f"the licence text {name} is not UTF-8", hint=hint) from error
    if digest != text.supplied_sha256:
        raise NoticeError(
            "notices-text",
            f"the licence text {name} has the normalised SHA-256 {digest}, expected {text.supplied_sha256}: "
            "the terms are others than those that were read when this component was described",
            hint=hint,
        )
    return content


def _load(path: Path) -> Component:
    folder = path.parent
    try:
        entry = tomllib.loads(path.read_text(encoding="utf-8"))
        _require_keys(entry, "")
        for text in entry["texts"]:
            _require_keys(text, "texts")
        _require_keys(entry.get("owns", {}), "owns")
        component = _component(folder, entry)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _invalid(folder, str(error)) from error
    for fault in _faults(component):
        raise _invalid(folder, fault)
    return component


def _require_keys(entry: Mapping[str, Any], place: str) -> None:
    needed, allowed = _KEYS[place]
    for names, word in ((needed - set(entry), "lacks"), (set(entry) - needed - allowed, "has unknown")):
        if names:
            raise ValueError(f"{place or 'it'} {word} {', '.join(sorted(names))}")


def _component(folder: Path, entry: Mapping[str, Any]) -> Component:
    words = {
        name: _word(entry.get(name, ""))
        for name in ("homepage", "source_sha256", "source_version", "purl", "within", "optional", "note")
    }
    owns = entry.get("owns", {})
    return Component(
        key=folder.name,
        folder=folder,
        name=_word(entry["name"]),
        part=_word(entry["part"]),
        version=_word(entry["version"]),
        license=_word(entry["license"]),
        copyright=_words(entry["copyright"]),
        source=_word(entry["source"]),
        crates=tuple(_crate(line) for line in _words(entry.get("crates", []))),
        texts=tuple(_text(text) for text in entry["texts"]),
        owns=Owns(
            archives=_words(owns.get("archives", [])),
            members=_words(owns.get("members", [])),
            objects=_words(owns.get("objects", [])),
            python=_words(owns.get("python", [])),
            payload=_words(owns.get("payload", [])),
            stdlib=owns.get("stdlib", False) is True,
        ),
        **words,
    )


def _text(entry: Mapping[str, Any]) -> Text:
    lines = entry.get("lines")
    if lines is not None:
        first, last = lines
        if not 1 <= first <= last:
            raise ValueError(f"lines {lines} of {entry['file']} are no stretch of lines")
        lines = (int(first), int(last))
    return Text(
        file=_word(entry["file"]),
        origin=_word(entry["from"]),
        lines=lines,
        archive=_word(entry.get("archive", "")),
        reference=_word(entry.get("reference", "")),
        supplied_sha256=_word(entry.get("supplied_sha256", "")),
    )


def _crate(line: str) -> Crate:
    name, version, expression = line.split(" ", 2)
    return Crate(name=name, version=version, license=expression)


def _word(value: object) -> str:
    if not isinstance(value, str) or "\n" in value:
        raise TypeError(f"{value!r} is not one line of text")
    return value


def _words(values: object) -> tuple[str, ...]:
    if not isinstance(values, list):
        raise TypeError(f"{values!r} is not a list of texts")
    return tuple(_word(value) for value in values)


def _faults(component: Component) -> Sequence[str]:
    """What is wrong with a component beyond the shape of its description."""
    faults = []
    if not _KEY.fullmatch(component.key):
        faults.append("its folder is not called by lower-case letters, digits and dashes")
    expressions = [component.license, *(crate.license for crate in component.crates)]
    faults += [fault for expression in dict.fromkeys(expressions) if (fault := license_fault(expression))]
    if component.is_pinned and not _PIN.fullmatch(component.source):
        faults.append(f"source {component.source!r} is neither a pin nor an address with source_sha256")
    if not component.is_pinned and component.version == FROM_BUILD:
        faults.append("its version comes from no build, since its source is an address")
    if component.source_version and component.version == FROM_BUILD:
        faults.append("source_version is for a copy with a version of its own")
    if bool(component.within) == bool(component.owns):
        faults.append("it must either own something or be within another component")
    if not component.copyright or not component.texts:
        faults.append("it needs a copyright holder and a text")
    explained = {text.reference for text in component.texts if text.reference}
    if explained != set(component.references):
        faults.append(f"its texts are of {sorted(explained)}; its licence refers to {sorted(component.references)}")
    ours = [text for text in component.texts if not text.supplied_sha256]
    faults += [f"{text.file} is missing" for text in ours if not component.path(text).is_file()]
    listed = {component.path(text) for text in ours} | {component.folder / DESCRIPTION}
    faults += [f"{path.name} is no text of it" for path in sorted(set(component.folder.iterdir()) - listed)]
    return faults


def license_fault(expression: str) -> str:
    """What is wrong with an SPDX expression, or an empty string. LicenseRef- names are taken as they are."""
    from license_expression import (  # type: ignore[import-untyped]
        ExpressionError,
        LicenseSymbol,
        Licensing,
        ParseError,
    )

    names = sorted(set(_REFERENCE.findall(expression)))
    licensing = Licensing([*_spdx_symbols(), *(LicenseSymbol(name) for name in names)])
    try:
        parsed = licensing.parse(expression, validate=True, strict=True)
    except (ExpressionError, ParseError) as error:
        return f"license {expression!r} is no SPDX expression: {error}"
    if str(parsed) != expression:
        return f"license {expression!r} is not in its usual form {str(parsed)!r}"
    return ""


@cache
def _spdx_symbols() -> tuple[Any, ...]:
    from license_expression import get_spdx_licensing

    return tuple(get_spdx_licensing().known_symbols.values())


def _invalid(folder: Path, fault: str) -> NoticeError:
    return NoticeError("notices-component", f"notices/{folder.name}: {fault}", hint=f"correct its {DESCRIPTION}")
