"""MANIFEST.json: what a release is, file by file. The reader here owns the format; writers call `Manifest.to_json`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from launcher import __version__
from launcher.errors import PackageError
from launcher.integrity.release_files import clashing_paths, read_capped
from launcher.integrity.strict_json import Fields, invalid, parse_object, to_bytes
from launcher.integrity.versions import parse_version

FILE_NAME: Final = "MANIFEST.json"
SCHEMA: Final = "mindnano.manifest"
VERSION: Final = 1
PROGRAM_ROLE: Final = "binary"
"""The role of `mindnano-infer` itself. A model is complete without it."""
MAX_BYTES: Final = 8 << 20
MAX_FILES: Final = 16_384
_MAX_NAMES: Final = 64
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}", re.ASCII)
_ROLE: Final = re.compile(r"[a-z][a-z0-9-]{0,31}", re.ASCII)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.ASCII)
LICENCE: Final = re.compile(r"[A-Za-z0-9(][A-Za-z0-9.+() -]{0,199}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseFile:
    """One file of a release.

    Attributes:
        path: relative to the release folder, with ``/`` between parts.
        size: bytes.
        sha256: 64 lower-case hexadecimal digits.
        role: what it is for, e.g. ``binary``, ``package``, ``notice``.
        licence: SPDX expression.
        public: whether it belongs to the smaller set that SHA256SUMS.PUBLIC lists.
    """

    path: str
    size: int
    sha256: str
    role: str
    licence: str
    public: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A release.

    Attributes:
        model: name of the model, the same in all of its releases.
        release: version of this release, as `launcher.integrity.versions` orders it.
        builder: program and version that made the release.
        tools: other tools by name, with their versions.
        commit: the source's Git commit, None where the source was not committed.
        source_sha256: digest of the files that the program was built from, None where it is not known.
        source_date_epoch: seconds since 1970 that stand in for every time of building.
        min_launcher_version: the oldest launcher that can use the release.
        redistribution: terms that go beyond a file's licence, by component, e.g. ``rknn-runtime: vendor-license``.
        files: everything but MANIFEST.json, the lists of checksums and their signatures, sorted by bytes of path.
    """

    model: str
    release: str
    builder: str
    tools: Mapping[str, str]
    commit: str | None
    source_date_epoch: int
    min_launcher_version: str
    redistribution: Mapping[str, str] = field(default_factory=dict)
    source_sha256: str | None = None
    files: tuple[ReleaseFile, ...]

    def to_json(self) -> bytes:
        """The document, the same bytes for the same facts.

        Raises:
            PackageError: the reader would not accept it.
        """
        data = to_bytes(
            {
                "schema": SCHEMA,
                "version": VERSION,
                "model": self.model,
                "release": self.release,
                "min_launcher_version": self.min_launcher_version,
                "builder": self.builder,
                "tools": dict(sorted(self.tools.items())),
                "commit": self.commit,
                "source_sha256": self.source_sha256,
                "source_date_epoch": self.source_date_epoch,
                "redistribution": dict(sorted(self.redistribution.items())),
                "files": [
                    {
                        "path": file.path,
                        "size": file.size,
                        "sha256": file.sha256,
                        "role": file.role,
                        "licence": file.licence,
                        "public": file.public,
                    }
                    for file in sorted(self.files, key=lambda file: file.path.encode(errors="replace"))
                ],
            }
        )
        parse_manifest(data, launcher_version=self.min_launcher_version)
        return data


def parse_manifest(data: bytes, *, where: str = FILE_NAME, launcher_version: str = __version__) -> Manifest:
    """The manifest in these bytes.

    Raises:
        PackageError: it is too large, malformed, of another schema or version, or asks for a newer launcher.
    """
    if len(data) > MAX_BYTES:
        raise invalid(where, f"it has {len(data)} bytes, expected at most {MAX_BYTES}")
    fields = parse_object(data, where)
    require_schema(fields, SCHEMA, VERSION, where)
    # Before anything that a newer format may have changed, so that the reader learns the real cause.
    wanted = _version(fields, "min_launcher_version")
    _require_launcher(wanted, launcher_version, where)
    manifest = Manifest(
        model=fields.text("model", pattern=_NAME),
        release=_version(fields, "release"),
        builder=fields.text("builder", limit=200),
        tools=_texts(fields.fields("tools")),
        commit=fields.text("commit", pattern=_COMMIT) if fields.has("commit") else None,
        source_sha256=fields.digest("source_sha256") if fields.has("source_sha256") else None,
        source_date_epoch=fields.integer("source_date_epoch"),
        min_launcher_version=wanted,
        redistribution=_texts(fields.fields("redistribution")),
        files=_files(fields, where),
    )
    fields.finish()
    return manifest


def read_manifest(folder: Path) -> Manifest | None:
    """The manifest of a release folder, or None where it has none.

    Raises:
        PackageError: as `parse_manifest`; it cannot be read.
    """
    path = folder / FILE_NAME
    data = read_capped(path, MAX_BYTES)
    return None if data is None else parse_manifest(data, where=str(path))


def require_schema(fields: Fields, schema: str, version: int, where: str) -> None:
    """Checks the two keys by which a document says what it is.

    Raises:
        PackageError: it is something else, or a version that this program does not read.
    """
    found = fields.take("schema")
    if found != schema:
        raise PackageError(
            "metadata-schema",
            f"{where}: {fields.fault('schema', repr(schema))}",
            hint="fetch the release again from its publisher",
        )
    number = fields.integer("version", low=1)
    if number != version:
        raise PackageError(
            "metadata-version",
            f"{where}: the format has version {number}, this program reads version {version}",
            hint="use a newer mindnano-infer",
        )


def _require_launcher(wanted: str, have: str, where: str) -> None:
    needed, present = parse_version(wanted), parse_version(have)
    if needed is not None and present is not None and present < needed:
        raise PackageError(
            "launcher-too-old",
            f"{where}: the release needs mindnano-infer {wanted} or newer, this is {have}",
            hint=f"use mindnano-infer {wanted} or newer",
        )


def _version(fields: Fields, name: str) -> str:
    text = fields.text(name, limit=64)
    if parse_version(text) is None:
        raise fields.fail(name, "a version such as 1.2.3 or 1.2.3rc1")
    return text


def _texts(fields: Fields) -> Mapping[str, str]:
    return {name: fields.text(name, limit=200) for name in fields.names(limit=_MAX_NAMES)}


def _files(fields: Fields, where: str) -> tuple[ReleaseFile, ...]:
    found = []
    for index, entry in enumerate(fields.array("files", limit=MAX_FILES)):
        item = Fields(entry, f"{where}: files[{index}]")
        found.append(
            ReleaseFile(
                path=item.path("path"),
                size=item.integer("size"),
                sha256=item.digest("sha256"),
                role=item.text("role", pattern=_ROLE),
                licence=item.text("licence", pattern=LICENCE),
                public=item.boolean("public"),
            )
        )
        item.finish()
    if not found:
        raise invalid(where, "it lists no file")
    found.sort(key=lambda file: file.path.encode())
    clash = clashing_paths(file.path for file in found)
    if clash is not None:
        raise invalid(where, f"{clash[0]} and {clash[1]} cannot both exist in one folder")
    if any(file.path == FILE_NAME for file in found):
        raise invalid(where, "it lists itself")
    return tuple(found)
