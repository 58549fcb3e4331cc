"""The notices as the program carries them: one document of everything, one per component, and their list.

    NOTICES.txt            every component, then every text once
    notices/KEY.txt        one component with its texts
    notices/index.json     the list, for the program itself

The same build gives the same bytes.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from notices.collect import Kind, Owned, Ownership, Part
from notices.components import PROJECT, read_texts

DOCUMENT: Final = "NOTICES.txt"
FOLDER: Final = "notices/"
INDEX: Final = f"{FOLDER}index.json"
SCHEMA: Final = "mindnano-infer.notices"
VERSION: Final = 1

_RULE: Final = "=" * 78
_WIDTH: Final = 78
_SHOWN: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rendered:
    """A component with its texts: (file name, content)."""

    owned: Owned
    texts: tuple[tuple[str, str], ...]


def render_notices(
    ownership: Ownership, supplied: Mapping[tuple[str, str], bytes] | None = None
) -> Mapping[str, bytes]:
    """The payload files of the notices, by name.

    Args:
        supplied: texts that are no part of the repository, as in `components.read_texts`.

    Raises:
        NoticeError: a text is missing or is not the expected one.
    """
    rendered = tuple(
        _Rendered(
            owned=owned,
            texts=tuple((text.file, _clean(content)) for text, content in read_texts(owned.component, supplied)),
        )
        for owned in ownership.owned
    )
    files = {DOCUMENT: _document(rendered), INDEX: _index(rendered)}
    files |= {_file(entry.owned): _component(entry) for entry in rendered}
    return {name: files[name].encode() for name in sorted(files)}


def _clean(content: str) -> str:
    """A text with line ends of one kind and one at its end; nothing else of it is touched."""
    return content.replace("\r\n", "\n").strip("\n") + "\n"


def _file(owned: Owned) -> str:
    return f"{FOLDER}{owned.component.key}.txt"


def _document(rendered: tuple[_Rendered, ...]) -> str:
    contents = dict.fromkeys(content for entry in rendered for _, content in entry.texts)
    numbers = {content: number for number, content in enumerate(contents, start=1)}
    lines = ["mindnano-infer: notices", "", "The program consists of these components, each under its own licence."]
    lines += ["Numbers in brackets refer to the texts at the end.", ""]
    width = max(len(entry.owned.component.name) for entry in rendered)
    for entry in rendered:
        component = entry.owned.component
        lines.append(f"  {component.name:{width}}  {entry.owned.version}  {component.license}")
    for entry in rendered:
        named = [f"[{numbers[content]}] {file}" for file, content in entry.texts]
        lines += ["", _RULE, *_head(entry.owned), *_field("texts", named)]
    for content, number in numbers.items():
        owners = [entry.owned.component.name for entry in rendered if content in dict(entry.texts).values()]
        lines += ["", _RULE, *_wrap(f"[{number}] of {', '.join(owners)}"), _RULE, "", content.rstrip("\n")]
    return "\n".join(lines) + "\n"


def _component(entry: _Rendered) -> str:
    lines = _head(entry.owned)
    for file, content in entry.texts:
        lines += ["", _RULE, file, _RULE, "", content.rstrip("\n")]
    return "\n".join(lines) + "\n"


def _head(owned: Owned) -> list[str]:
    component = owned.component
    lines = [f"{component.name} {owned.version}", "", *_wrap(component.part), ""]
    lines += _field("licence", [component.license])
    lines += _field("copyright", component.copyright)
    lines += _field("website", [component.homepage] if component.homepage else [])
    lines += _field("source", _source(owned))
    lines += _field("within", [component.within] if component.within else [])
    lines += _field("contains", _parts(owned.parts))
    lines += _field("crates", [f"{crate.name} {crate.version}  {crate.license}" for crate in component.crates])
    lines += _field("note", _wrap(component.note, 16) if component.note else [])
    return lines


def _source(owned: Owned) -> list[str]:
    if owned.component.source == PROJECT:
        return []
    origin = owned.origin
    lines = [word for word in (origin.url or origin.file,) if word]
    if owned.component.source_version:
        lines.append(f"version {owned.component.source_version}, which holds a copy")
    if origin.sha256:
        lines.append(f"SHA-256 {origin.sha256}")
    return lines


def _parts(parts: tuple[Part, ...]) -> list[str]:
    """Parts by kind; of many modules or objects the number, since the SBOM lists them all."""
    lines = []
    for kind in Kind:
        names = [part.name for part in parts if part.kind is kind]
        if len(names) > _SHOWN:
            lines.append(f"{kind.value}: {len(names)}, listed in the SBOM")
        elif names:
            lines += _wrap(f"{kind.value}: {', '.join(names)}", 16)
    return lines


def _field(label: str, values: list[str] | tuple[str, ...]) -> list[str]:
    return [f"{label + ':' if not index else '':12}{value}" for index, value in enumerate(values)]


def _wrap(text: str, indent: int = 0) -> list[str]:
    return textwrap.wrap(text, _WIDTH - indent, break_long_words=False, break_on_hyphens=False)


def _index(rendered: tuple[_Rendered, ...]) -> str:
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "components": [
            {
                "key": entry.owned.component.key,
                "name": entry.owned.component.name,
                "version": entry.owned.version,
                "license": entry.owned.component.license,
                "file": _file(entry.owned),
            }
            for entry in rendered
        ],
    }
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"
