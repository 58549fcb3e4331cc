"""`mindnano finalize`: from a portable program and a package to a release folder that checks itself.

Everything in it is taken from the two files; the version alone is typed. The folder is written beside its place,
checked by `release.folder.verify`, and only then gets its name.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import launcher
from launcher.errors import InternalError, PackageError, TrustError, UsageError
from launcher.integrity import checksums, manifest
from launcher.integrity.manifest import Manifest, ReleaseFile
from launcher.integrity.signature import SUFFIX
from launcher.integrity.versions import parse_version
from launcher.progress import Progress
from release.folder import bom, provenance
from release.folder.bom import ReleaseFacts, release_bill
from release.folder.checkout import Checkout
from release.folder.described import Described, model_of, texts_of
from release.folder.fidelity import Measured, built_in_digests, read_reports
from release.folder.files import (
    LISTS,
    OLDEST_LAUNCHER,
    Entry,
    is_release_file,
    package_name,
    program_licence,
    redistribution,
)
from release.folder.program_facts import NAME as PROGRAM
from release.folder.program_facts import ProgramFacts, read_program, source_gaps
from release.folder.signing import SecretKey, sign
from release.folder.terms import Terms, settle_terms
from release.folder.verify import VerifyOptions, verify
from release.folder.weights_licences import (
    BASE_LICENCE,
    DONOR_LICENCE,
    LICENCE,
    WEIGHTS_LICENCE,
    find_licence,
    given_text,
    licence_text,
    same_origin,
)
from release.folder.writing import check_new_folder, new_folder
from release.output import require_free_space
from release.package.facts import PackageFacts, ask, hash_file, read_package_facts, read_stated_of

_CHUNK: Final = 1 << 20
_TEXT_LICENCE: Final = "Apache-2.0"
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,59}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalizeOptions:
    """What to release.

    Attributes:
        program: the portable program.
        package: the weights.
        version: of the release.
        output: folder to make.
        checkout: source that this program runs from.
        name: name of the model and of its file, without `.l3r`; by default out of the package.
        weights_licence: by default the one that the package names.
        base_licence_file: the base model's licence text; by default the usual text of its licence.
        fidelity: files that `mindnano fidelity --json` printed about this package.
        key: signs the lists of checksums.
    """

    program: Path
    package: Path
    version: str
    output: Path
    checkout: Checkout
    name: str | None = None
    weights_licence: str | None = None
    base_licence_file: Path | None = None
    fidelity: Sequence[Path] = ()
    key: SecretKey | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Inputs:
    """Everything that is known before the first file is written."""

    program: ProgramFacts
    package: PackageFacts
    terms: Terms
    measured: Measured | None
    release: ReleaseFacts


def finalize(options: FinalizeOptions) -> Path:
    """Makes the release folder and returns its path. Equal inputs give equal bytes.

    Raises:
        UsageError: the version or an option cannot be, or the folder exists.
        PackageError: something is missing; the message lists all of it.
        TrustError: the program would not accept the signature.
        ResourceError: it cannot be written.
    """
    if parse_version(options.version) is None:
        raise UsageError(
            "version-invalid", f"{options.version!r} is no version", hint="Give one such as 1.2.3 or 1.2.3rc1."
        )
    if options.name is not None and not _NAME.fullmatch(options.name):
        raise UsageError(
            "name-invalid",
            f"{options.name!r} cannot be a model's name",
            hint="Use letters, digits, dots, dashes and underscores, at most 60.",
        )
    check_new_folder(options.output)
    inputs = _inputs(options)
    require_free_space(options.output, inputs.program.size + inputs.package.size + (4 << 20))
    with new_folder(options.output, is_own=is_release_file) as folder:
        folder.chmod(0o755)
        _Writer(folder, options, inputs).write()
        keys = () if options.key is None else (options.key.public(),)
        trusted = keys or inputs.program.publisher.keys
        report = verify(VerifyOptions(folder=folder, keys=trusted, signed=options.key is not None))
        if report.exit_code:
            raise InternalError("release-unsound", f"the release does not pass its own check\n{report.to_text()}")
    return options.output


def _inputs(options: FinalizeOptions) -> _Inputs:
    """Reads both files.

    Raises:
        PackageError: with a list of everything that is missing.
    """
    program, gaps = read_program(options.program)
    if program is not None:
        gaps += source_gaps(program, options.checkout.sources)
    package, more = read_package_facts(options.package)
    gaps += more
    stated = read_stated_of(options.package)
    terms, more = settle_terms(stated, chosen=options.weights_licence, base_text=options.base_licence_file)
    gaps += more
    needs_digest = stated is not None and (stated.names_no_base or options.fidelity)
    digest = hash_file(options.package) if needs_digest else ""
    if stated is not None and stated.names_no_base and digest not in built_in_digests():
        gaps.append(
            "the base model: the package names none, and it is not the built-in model; convert it again with"
            " mindnano quantize --repository ORGANISATION/NAME --revision 40-DIGITS (for a model of your own, the"
            " repository that has its checkpoint)"
        )
    measured, more = read_reports(options.fidelity, package, digest)
    gaps += more
    epoch = options.checkout.epoch
    if epoch is None:
        gaps.append("the time: this is no Git checkout; set SOURCE_DATE_EPOCH to seconds since 1970")
    if gaps:
        raise PackageError(
            "release-incomplete",
            f"a release cannot be made of this; {len(gaps)} missing or wrong:\n  - " + "\n  - ".join(gaps),
            hint="Mend all of these and run it again.",
        )
    if program is None or package is None or terms is None or epoch is None:
        raise InternalError("release-gaps", "an input is missing that nothing was said about")
    if options.key is not None and program.publisher.keys:
        trusted = {key.identifier for key in program.publisher.keys}
        if options.key.identifier not in trusted:
            raise TrustError(
                "signature-key-unknown",
                f"the program would refuse signatures by key {options.key.public().name}, since it trusts others",
                hint="Sign with the publisher's key, or build the program with this key in publisher.json.",
            )
    model = options.name or package_name(package)
    release = ReleaseFacts(model=model, version=options.version, epoch=epoch)
    return _Inputs(program=program, package=package, terms=terms, measured=measured, release=release)


class _Writer:
    """Writes the files of a release in the order in which they depend on each other."""

    def __init__(self, folder: Path, options: FinalizeOptions, inputs: _Inputs) -> None:
        self._folder = folder
        self._options = options
        self._inputs = inputs
        self._files: list[ReleaseFile] = []

    def write(self) -> None:
        """All of them; the lists of checksums come last."""
        inputs, options = self._inputs, self._options
        release, program, package = inputs.release, inputs.program, inputs.package
        name = f"{release.model}.l3r"
        licence = inputs.terms.weights.spdx
        with Progress("Copying", program.size + package.size) as progress:
            program_file = self._put(
                Entry(path=PROGRAM, content=program.path, licence=program_licence(program)), progress
            )
            package_file = self._put(Entry(path=name, content=package.path, licence=licence), progress)
        described = Described(
            release=release,
            program=program,
            program_sha256=program_file.sha256,
            package=package,
            package_sha256=package_file.sha256,
            licence=licence,
            known_answer=ask(package.path),
            reports={} if inputs.measured is None else inputs.measured.reports,
        )
        for report, content in described.reports.items():
            self._text(report, content)
        for path, content in texts_of(described).items():
            self._text(path, content)
        self._licence_files()
        for member, content in program.notices.items():
            self._put(Entry(path=member, content=content, licence=program_licence(program)))
        info = model_of(described)
        bill = release_bill(
            release,
            program,
            program_file.sha256,
            info,
            tool_version=launcher.__version__,
            own_licence=inputs.terms.own.spdx,
        )
        self._text(bom.NAME, (json.dumps(bill, indent=2, ensure_ascii=False) + "\n").encode())
        self._text(
            provenance.NAME,
            provenance.statement(
                {file.path: file.sha256 for file in self._files},
                release=release,
                origin=provenance.Origin(commit=options.checkout.commit, version=launcher.__version__),
                program=program,
                package=package,
                info=info,
                reports={report: hashlib.sha256(data).hexdigest() for report, data in described.reports.items()},
            ),
        )
        self._lists()

    def _licence_files(self) -> None:
        terms, package, given = self._inputs.terms, self._inputs.package, self._options.base_licence_file
        own = licence_text(terms.own, package.base) if given is None else given_text(given, terms.own)
        code = find_licence(_TEXT_LICENCE)
        assert code is not None
        self._text(LICENCE, licence_text(code, None))
        if terms.own is terms.weights:
            self._put(Entry(path=WEIGHTS_LICENCE, content=own, licence=terms.weights.spdx))
        else:
            text = licence_text(terms.weights, package.base)
            self._put(Entry(path=WEIGHTS_LICENCE, content=text, licence=terms.weights.spdx))
            if package.base is not None:
                self._put(Entry(path=BASE_LICENCE, content=own, licence=terms.own.spdx))
        if package.donor is None or terms.donor is None:
            return
        if package.base is None or not same_origin(package.donor, package.base):
            text = licence_text(terms.donor, package.donor)
            self._put(Entry(path=DONOR_LICENCE, content=text, licence=terms.donor.spdx))

    def _lists(self) -> None:
        inputs = self._inputs
        described = Manifest(
            model=inputs.release.model,
            release=inputs.release.version,
            builder=f"mindnano {launcher.__version__}",
            tools={**inputs.program.tools, "converter": inputs.package.created_by},
            commit=self._options.checkout.commit,
            source_sha256=inputs.program.sources,
            source_date_epoch=inputs.release.epoch,
            min_launcher_version=OLDEST_LAUNCHER,
            redistribution=redistribution(inputs.program),
            files=tuple(self._files),
        ).to_json()
        _write(self._folder / manifest.FILE_NAME, described)
        digests = {file.path: file.sha256 for file in self._files}
        digests[manifest.FILE_NAME] = hashlib.sha256(described).hexdigest()
        public = {file.path for file in self._files if file.public} | {manifest.FILE_NAME}
        shorter = checksums.format_checksums({path: digests[path] for path in public})
        digests[checksums.PUBLIC_FILE_NAME] = hashlib.sha256(shorter).hexdigest()
        lists = {checksums.PUBLIC_FILE_NAME: shorter, checksums.FILE_NAME: checksums.format_checksums(digests)}
        comment = f"{inputs.release.model} {inputs.release.version}"
        for name in LISTS:
            _write(self._folder / name, lists[name])
            if self._options.key is not None:
                _write(self._folder / (name + SUFFIX), sign(lists[name], self._options.key, comment))

    def _text(self, path: str, content: bytes) -> None:
        self._put(Entry(path=path, content=content, licence=_TEXT_LICENCE))

    def _put(self, entry: Entry, progress: Progress | None = None) -> ReleaseFile:
        place = self._folder / entry.path
        if place.parent != self._folder:
            place.parent.mkdir(exist_ok=True)
            place.parent.chmod(0o755)
        if isinstance(entry.content, bytes):
            _write(place, entry.content)
            size, digest = len(entry.content), hashlib.sha256(entry.content).hexdigest()
        else:
            size, digest = _copy(entry.content, place, progress)
        place.chmod(0o755 if entry.path == PROGRAM else 0o644)
        file = ReleaseFile(
            path=entry.path, size=size, sha256=digest, role=entry.role, licence=entry.licence, public=entry.public
        )
        self._files.append(file)
        return file


def _write(place: Path, content: bytes) -> None:
    with place.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    place.chmod(0o644)


def _copy(source: Path, place: Path, progress: Progress | None) -> tuple[int, str]:
    digest = hashlib.sha256()
    size = 0
    with source.open("rb", buffering=0) as reader, place.open("wb") as writer:
        while chunk := reader.read(_CHUNK):
            writer.write(chunk)
            digest.update(chunk)
            size += len(chunk)
            if progress is not None:
                progress.advance(len(chunk))
        writer.flush()
        os.fsync(writer.fileno())
    return size, digest.hexdigest()
