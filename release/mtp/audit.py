"""`mindnano mtp audit`: reads packages whole and compares them tensor by tensor."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from launcher.engine_types import Section, TensorInfo
from launcher.errors import UsageError
from launcher.progress import Progress
from release.checkpoint.files import open_checkpoint
from release.checkpoint.tensors import GROUP_MTP, GROUP_TRUNK
from release.mtp.extract import checkpoint_mtp, source_digests, stored_bytes
from release.mtp.record import MtpRecord, read_record, trunk_of, with_mtp_layers
from release.package.reader import PackageFile, damaged_tensors, hash_tensors, read_package

SCHEMA: Final = "mindnano-mtp-audit"
VERSION: Final = 1
SAME: Final = "same"
_GROUPS: Final = ("trunk", "mtp")


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions:
    """A package and what to compare it with: another one, or a trunk and a donor, or nothing but its own directory."""

    package: Path
    other: Path | None = None
    trunk: Path | None = None
    donor: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRow:
    """One comparison.

    Attributes:
        name: of the tensor, section or fact.
        group: trunk, mtp, section, source or record.
        dtype: layout, or empty.
        shape: sizes, or empty.
        sha256: of what the package holds, in hex, or None.
        expected: of what it should hold, or None.
        state: same; differs; damaged (contents are not what the file's own directory says); missing; added.
    """

    name: str
    group: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    sha256: str | None
    expected: str | None
    state: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """All comparisons, and of which files."""

    package: str
    references: tuple[str, ...]
    rows: tuple[AuditRow, ...]

    @property
    def differs(self) -> bool:
        """Whether anything is not the same."""
        return any(row.state != SAME for row in self.rows)

    def counts(self) -> dict[str, int]:
        """Rows of each state."""
        states = [row.state for row in self.rows]
        return {state: states.count(state) for state in sorted(set(states))}

    def to_json(self) -> str:
        """One JSON document with `schema` and `version`."""
        document = {
            "schema": SCHEMA,
            "version": VERSION,
            "package": self.package,
            "references": list(self.references),
            "differs": self.differs,
            "counts": self.counts(),
            "rows": [asdict(row) for row in self.rows],
        }
        return json.dumps(document, indent=1, ensure_ascii=False)

    def to_text(self) -> str:
        """A table; every difference has a second line with what was expected."""
        lines = [f"{self.package} against {', '.join(self.references)}", ""]
        for row in self.rows:
            shape = " x ".join(str(size) for size in row.shape)
            name = f"  {row.state:<8} {row.group:<8} {row.name:<58} {row.dtype:<7} {shape:>18}"
            lines.append(f"{name}  {row.sha256 or '-'}")
            if row.state != SAME:
                lines.append(f"{'expected':>{len(name)}}  {row.expected or '-'}")
        summary = ", ".join(f"{count} {state}" for state, count in self.counts().items())
        return "\n".join([*lines, "", summary])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hashed:
    """A file, its tensors' contents as hashed now, and those that are not what its directory says."""

    file: PackageFile
    digests: Mapping[str, bytes]
    damaged: frozenset[str]


def audit(options: AuditOptions) -> AuditReport:
    """Hashes every file whole and compares.

    Raises:
        UsageError: options contradict each other.
        PackageError: a file is missing, or so damaged that it has no directory to compare.
    """
    if options.other is not None and (options.trunk is not None or options.donor is not None):
        raise UsageError(
            "mtp-audit-options",
            "a second package leaves nothing to compare with --trunk or --donor",
            hint="Give either the second package, or --trunk and --donor.",
        )
    package = _hash(options.package)
    rows: list[AuditRow] = []
    references: list[str] = []
    if options.other is not None:
        other = _hash(options.other)
        references.append(str(options.other))
        rows += _sections(package.file, other.file, record=None, exact=True)
        rows += _tensors(package, other, (GROUP_TRUNK, GROUP_MTP))
    record = read_record(package.file) if package.file.mtp else None
    if options.trunk is not None:
        trunk = _hash(options.trunk)
        references.append(str(options.trunk))
        rows += _sections(package.file, trunk.file, record=record, exact=False)
        rows += _tensors(package, trunk, (GROUP_TRUNK,))
    if options.donor is not None:
        references.append(str(options.donor))
        if options.donor.is_dir():
            rows += _sources(record, options.donor)
        else:
            rows += _tensors(package, _hash(options.donor), (GROUP_MTP,))
    if not references:
        references.append("its own directory and record")
        rows += _tensors(package, package, (GROUP_TRUNK, GROUP_MTP))
        rows += _own_record(package.file, record)
    return AuditReport(package=str(options.package), references=tuple(references), rows=tuple(rows))


def _hash(path: Path) -> _Hashed:
    file = read_package(path)
    with Progress(f"Hashing {path.name}", file.bytes) as progress:
        digests = hash_tensors(file, progress.advance)
    return _Hashed(file=file, digests=digests, damaged=frozenset(damaged_tensors(file, digests)))


def _tensors(package: _Hashed, reference: _Hashed, groups: tuple[int, ...]) -> list[AuditRow]:
    """Rows in the order of the reference, then what only the package has."""
    found = {tensor.name: tensor for tensor in package.file.tensors if tensor.group in groups}
    wanted = {tensor.name: tensor for tensor in reference.file.tensors if tensor.group in groups}
    return [_tensor(found.get(name), wanted.get(name), package, reference) for name in {**wanted, **found}]


def _tensor(found: TensorInfo | None, wanted: TensorInfo | None, package: _Hashed, reference: _Hashed) -> AuditRow:
    shown = found or wanted
    assert shown is not None
    if found is None:
        state = "missing"
    elif wanted is None:
        state = "added"
    elif found.name in package.damaged or wanted.name in reference.damaged:
        state = "damaged"
    else:
        is_same = (found.dtype, found.shape, found.group) == (wanted.dtype, wanted.shape, wanted.group)
        state = SAME if is_same and found.sha256 == wanted.sha256 else "differs"
    expected = None if wanted is None else reference.digests[wanted.name].hex()
    if package is reference and wanted is not None:
        expected = wanted.sha256.hex()
    return AuditRow(
        name=shown.name,
        group=_GROUPS[shown.group],
        dtype=shown.dtype.name,
        shape=shown.shape,
        sha256=None if found is None else package.digests[found.name].hex(),
        expected=expected,
        state=state,
    )


def _sections(package: PackageFile, reference: PackageFile, *, record: MtpRecord | None, exact: bool) -> list[AuditRow]:
    """What lies beside the tensors. Config and metadata of a trunk are compared as they were before the layer came."""
    rows = []
    for kind in Section:
        found, wanted = (_section(file, kind) for file in (package, reference))
        if kind is Section.CONFIG and not exact and found is not None and wanted is not None:
            found, wanted = with_mtp_layers(found, 0), with_mtp_layers(wanted, 0)
        if kind is Section.METADATA and not exact:
            if record is None or record.trunk_file is None:
                continue  # both say where they come from, each in its own words
            found = record.trunk_file.metadata.encode()
        if found is not None or wanted is not None:
            rows.append(_row(kind.name.lower(), "section", _digest(found), _digest(wanted)))
    return rows


def _sources(record: MtpRecord | None, folder: Path) -> list[AuditRow]:
    """The donor checkpoint's tensors against those that the layer's record names."""
    checkpoint = open_checkpoint(folder)
    tensors = checkpoint_mtp(checkpoint)[2]
    with Progress(f"Hashing {folder.name}", stored_bytes(checkpoint, tensors)) as progress:
        wanted = source_digests(checkpoint, tensors, progress.advance)
    found = {} if record is None else record.donor.sources
    return [_row(name, "source", found.get(name), wanted.get(name)) for name in {**wanted, **found}]


def _own_record(package: PackageFile, record: MtpRecord | None) -> list[AuditRow]:
    if record is None or record.appended_to is None:
        return []
    held = trunk_of(package)
    return [
        _row("trunk identity", "record", held.identity, record.appended_to.identity),
        _row("vocabulary", "record", held.vocabulary, record.appended_to.vocabulary),
    ]


def _row(name: str, group: str, found: str | None, wanted: str | None) -> AuditRow:
    state = "missing" if found is None else "added" if wanted is None else SAME if found == wanted else "differs"
    return AuditRow(name=name, group=group, sha256=found, expected=wanted, state=state)


def _section(package: PackageFile, kind: Section) -> bytes | None:
    section = package.section(kind)
    return None if section is None else section.data


def _digest(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()
