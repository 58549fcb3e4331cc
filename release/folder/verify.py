"""`mindnano verify`: is this folder a release, complete, as published, and do its files agree with each other?

Sums, sizes and signatures are checked by the launcher's own code; what the files say about each other is read anew out
of the program and the package. The program is not started; the package computes three tokens.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TextIO

from launcher.errors import EngineCrash, EngineError, InternalError, MindnanoError, ResourceError, TrustError
from launcher.integrity import checksums, manifest, model_info
from launcher.integrity.checksums import format_checksums, read_checksums
from launcher.integrity.hashing import sha256_file
from launcher.integrity.manifest import Manifest
from launcher.integrity.model_info import ModelInfo
from launcher.integrity.publisher import Publisher
from launcher.integrity.release_files import Refused, open_member, read_capped
from launcher.integrity.signature import PublicKey
from launcher.integrity.verify import verify as verify_files
from launcher.integrity.verify_report import VerifyReport
from launcher.messages import Catalogue, Language
from release.folder import bom, card, provenance
from release.folder.agreement import (
    licence_faults,
    manifest_faults,
    model_faults,
    own_licence_faults,
    program_faults,
)
from release.folder.consistency import COMPARED, WORDED, Read, contradictions, is_of_this_version
from release.folder.program_facts import NAME as PROGRAM
from release.folder.program_facts import ProgramFacts, read_program
from release.folder.release_set import empty_folders, is_whole, require_own_files, wanted_lists
from release.folder.signatures import check_signatures, judge
from release.folder.verify_result import CHECKS, Check, VerifyResult
from release.package.facts import PackageFacts, ask, read_package_facts

_NOT_ABOUT_THE_RELEASE: Final = (ResourceError, EngineError, EngineCrash, InternalError, TrustError)
"""Errors that say nothing about the files, and a wrong signature: they end the command with their own exit code."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyOptions:
    """How to check a release.

    Attributes:
        folder: the release.
        keys: whose signatures count.
        signed: whether there must be a signature; without, that there is none is a warning.
        stream: where progress goes; None takes stderr.
    """

    folder: Path
    keys: Sequence[PublicKey] = ()
    signed: bool = False
    stream: TextIO | None = None


def verify(options: VerifyOptions) -> VerifyResult:
    """Checks a release folder.

    Raises:
        PackageError: there is no such folder, or nothing in it to check against, or a list is malformed.
        TrustError: the signature is wrong.
        ResourceError, EngineError, EngineCrash: the machine could not do it.
    """
    publisher = Publisher(repository=None, keys=tuple(options.keys))
    texts = Catalogue(Language.ENGLISH)
    require_own_files(options.folder)
    # Without an environment nothing is remembered: neither stamps of files nor versions that were seen.
    report = verify_files(options.folder, {}, texts, publisher=publisher, stream=options.stream)
    release = _Release(folder=report.folder, report=report, keys=tuple(options.keys), signed=options.signed)
    checks = {name: release.check(name) for name in CHECKS}
    described = report.claims.manifest
    return VerifyResult(
        folder=report.folder,
        model=None if described is None else described.model,
        version=None if described is None else described.release,
        complete=release.whole,
        checks=tuple(checks[name] for name in CHECKS),
    )


@dataclass(slots=True)
class _Release:
    """A folder with what was read of it so far; every check adds what later ones look at."""

    folder: Path
    report: VerifyReport
    keys: Sequence[PublicKey]
    signed: bool
    whole: bool = False
    info: ModelInfo | None = None
    program: ProgramFacts | None = None
    package: PackageFacts | None = None
    program_faults: list[str] | None = None
    package_faults: list[str] | None = None
    contradictions: Mapping[str, tuple[str, ...]] | None = None
    broken: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.whole = is_whole(self.folder, self.manifest)
        report = self.report
        self.broken = {*report.missing, *report.absent, *(file.path for file in report.changed)}
        self.broken |= {file.path for file in report.unreadable}

    @property
    def manifest(self) -> Manifest | None:
        return self.report.claims.manifest

    @property
    def digests(self) -> Mapping[str, str]:
        """SHA-256 by path, of all that the list or the manifest names."""
        described = () if self.manifest is None else self.manifest.files
        return {**{file.path: file.sha256 for file in described}, **self.report.claims.digests}

    def check(self, name: str) -> Check:
        """One check; an error about the files becomes a fault."""
        run: Callable[[], Check] = getattr(self, "_" + name.replace("-", "_"))
        try:
            found = run()
            # What is wrong by itself is told with its own words; comparing with the rest would say it again.
            return found if found.state != "ok" else self._compared(found)
        except _NOT_ABOUT_THE_RELEASE:
            raise
        except MindnanoError as error:
            return Check(name=name, fact="", faults=(error.message,))

    def _compared(self, check: Check) -> Check:
        """The same check, with what other files of the release say otherwise."""
        if check.name not in COMPARED:
            return check
        if self.contradictions is None:
            self.contradictions = self._contradictions()
        faults = self.contradictions.get(check.name, ())
        described = self.manifest
        if described is None or is_of_this_version(described) or check.name not in WORDED:
            return replace(check, faults=faults)
        fact = f"{check.fact}; made by {described.builder}, so its wording was not compared"
        return replace(check, fact=fact, faults=faults, doubtful=True)

    def _contradictions(self) -> Mapping[str, tuple[str, ...]]:
        info, program, _ = self._model_info(), *self._read_program()
        package = None if info is None else self._read_package(info)[0]
        if self.manifest is None or info is None or program is None or package is None:
            return {}
        read = Read(folder=self.folder, manifest=self.manifest, info=info, program=program, package=package)
        return contradictions(read)

    def _signature(self) -> Check:
        found = check_signatures(self.folder, self.keys)
        comment = "" if self.manifest is None else f"{self.manifest.model} {self.manifest.release}"
        lists = wanted_lists(whole=self.whole)
        # That a list is missing is told with the sums.
        lists = tuple(name for name in lists if os.path.lexists(self.folder / name)) or lists
        return judge(found, lists, comment, required=self.signed)

    def _sums(self) -> Check:
        """The lists, byte by byte as `sha256sum` writes them, so that others can check the release too."""
        faults = []
        counts = []
        for name in wanted_lists(whole=self.whole):
            found = read_checksums(self.folder / name)
            if found is None:
                faults.append(f"{name} is missing")
                continue
            counts.append(f"{name} lists {len(found.digests)}")
            if found.tolerated:
                kinds = ", ".join(kind.value for kind in found.tolerated)
                faults.append(f"{name} is not as sha256sum writes it ({kinds}); sha256sum -c may fail on it")
            elif read_capped(self.folder / name, checksums.MAX_BYTES) != format_checksums(found.digests):
                faults.append(f"{name} is not sorted by the bytes of the names")
            faults += [f"{name} does not list {gap}" for gap in self._unlisted(name, found.digests)]
        return Check(name="sums", fact=", ".join(counts), faults=tuple(faults))

    def _unlisted(self, name: str, digests: Iterable[str]) -> list[str]:
        if self.manifest is None:
            return []
        public = name == checksums.PUBLIC_FILE_NAME
        wanted = {file.path for file in self.manifest.files if file.public or not public} | {manifest.FILE_NAME}
        if not public:
            wanted.add(checksums.PUBLIC_FILE_NAME)
        return sorted(wanted - set(digests))

    def _files(self) -> Check:
        report = self.report
        missing = {*report.missing, *report.absent}
        extra = {*report.extra, *empty_folders(self.folder, self.digests)}
        if checksums.FILE_NAME not in report.claims.sources and self.whole:  # the list is missing; not so the files
            missing |= {path for path in self.digests if not os.path.lexists(self.folder / path)}
            extra -= self.digests.keys()
        faults = []
        for path, old in sorted(self._renamed(missing, extra).items()):
            faults.append(f"renamed: {old} is here as {path}")
            extra.discard(path)
            missing.discard(old)
        faults += [f"missing: {path}" for path in sorted(missing)]
        for file in report.changed:
            size = "" if file.expected_size in (None, file.actual_size) else f", {file.actual_size:,} bytes"
            expected = "" if not size else f", {file.expected_size:,} bytes"
            found = f"{file.path} has SHA-256 {file.actual_sha256}{size}"
            faults.append(f"changed: {found}; expected {file.expected_sha256}{expected}")
        faults += [f"unreadable: {file.path} ({file.reason.value})" for file in report.unreadable]
        faults += [f"extra: {path}" for path in sorted(extra)]
        if not report.all_extra:
            faults.append("there are more extra files than are listed here")
        total = len(report.claims.digests)
        return Check(
            name="files", fact=f"{report.intact} of {total} intact, none missing or extra", faults=tuple(faults)
        )

    def _renamed(self, missing: set[str], extra: set[str]) -> dict[str, str]:
        """Missing files that lie here under another name, by that name."""
        wanted = {self.digests[path]: path for path in sorted(missing)}
        return {path: wanted[digest] for path in sorted(extra) if (digest := self._digest(path)) in wanted}

    def _digest(self, path: str) -> str:
        try:
            handle = open_member(self.folder, path)
        except (OSError, Refused):
            return ""
        try:
            return sha256_file(handle).digest
        finally:
            os.close(handle)

    def _manifest(self) -> Check:
        described = self.manifest
        if described is None:
            return Check(name="manifest", fact="", faults=(f"{manifest.FILE_NAME} is missing, changed or not listed",))
        fact = f"{len(described.files)} files, for mindnano-infer {described.min_launcher_version} or newer"
        return Check(name="manifest", fact=fact, faults=tuple(manifest_faults(described)))

    def _program(self) -> Check:
        program, faults = self._read_program()
        if program is None:
            return Check(name="program", fact="", faults=tuple(faults))
        if self.manifest is not None:
            faults = program_faults(program, self.manifest, self.folder, complete=self.whole)
        runtime = "without librknnrt" if program.runtime is None else f"with librknnrt {program.runtime.version}"
        fact = f"{program.version} for {program.target}, {runtime}; seal, bill and notices agree"
        return Check(name="program", fact=fact, faults=tuple(faults))

    def _licences(self) -> Check:
        info = self._model_info()
        if info is None:
            return self._skip("licences")
        faults = licence_faults(self.folder, info, self.program)
        package, _ = self._read_package(info)
        if package is not None:
            faults += own_licence_faults(self.folder, info, package)
        return Check(name="licences", fact=f"code, weights ({info.licence}) and parts by others", faults=tuple(faults))

    def _sbom(self) -> Check:
        info = self._model_info()
        data = read_capped(self.folder / bom.NAME, bom.MAX_BYTES)
        if info is None or data is None:
            return self._skip("sbom")
        try:
            document = json.loads(data)
        except (ValueError, RecursionError) as error:
            return Check(name="sbom", fact="", faults=(f"{bom.NAME} is not JSON: {error}",))
        digest = self._listed(PROGRAM)
        faults = bom.bill_faults(document, self.program, digest, info)
        fact = "" if faults else f"CycloneDX 1.6, {len(document['components'])} components"
        return Check(name="sbom", fact=fact, faults=tuple(faults))

    def _card(self) -> Check:
        info = self._model_info()
        data = read_capped(self.folder / card.NAME, card.MAX_BYTES)
        if info is None or data is None:
            return self._skip("card")
        faults = card.card_faults(data, info)
        return Check(name="card", fact="its metadata are those of the package", faults=tuple(faults))

    def _base_model(self) -> Check:
        """The base model by MODEL.json and by the package itself; card and provenance are held against MODEL.json."""
        info = self._model_info()
        if info is None:
            return self._skip("base-model")
        self._read_package(info)
        said = "none" if info.base is None else f"{info.base.repository} at {info.base.revision}"
        if self.package is None:
            return self._skip("base-model")
        base = self.package.base
        found = "none" if base is None else f"{base.repository} at {base.revision}"
        faults = [] if said == found else [f"{model_info.FILE_NAME} says {said}, the package {found}"]
        return Check(name="base-model", fact=said, faults=tuple(faults))

    def _provenance(self) -> Check:
        info = self._model_info()
        data = read_capped(self.folder / provenance.NAME, provenance.MAX_BYTES)
        if info is None or data is None or self.manifest is None:
            return self._skip("provenance")
        faults = provenance.provenance_faults(data, self.manifest, info)
        source = "no commit" if self.manifest.commit is None else f"commit {self.manifest.commit}"
        fact = f"SLSA 1.0, about {len(self.manifest.files) - 1} files, of {source}"
        return Check(name="provenance", fact=fact, faults=tuple(faults))

    def _package(self) -> Check:
        info = self._model_info()
        if info is None:
            return self._skip("package")
        package, faults = self._read_package(info)
        if package is not None:
            faults = model_faults(info, package)
        fact = f"{info.package.path} opens, all of its SHA-256 are right"
        return Check(name="package", fact="" if package is None else fact, faults=tuple(faults))

    def _known_answer(self) -> Check:
        info = self._model_info()
        if info is None or self.package is None or info.package.path in self.broken:
            return self._skip("known-answer")
        known = info.known_answer
        if known is None:
            return Check(name="known-answer", fact="", faults=(f"{model_info.FILE_NAME} records none",))
        found = ask(self.folder / info.package.path, known.prompt)
        faults = []
        if found.continuation != known.continuation:
            faults.append(f"the package says {list(found.continuation)}, expected {list(known.continuation)}")
        return Check(name="known-answer", fact=f"{list(known.continuation)}, as recorded", faults=tuple(faults))

    def _read_program(self) -> tuple[ProgramFacts | None, list[str]]:
        """Reads and hashes the program, once."""
        if self.program_faults is None:
            self.program, self.program_faults = read_program(self.folder / PROGRAM)
        return self.program, list(self.program_faults)

    def _read_package(self, info: ModelInfo) -> tuple[PackageFacts | None, list[str]]:
        """Reads and hashes the package, once."""
        if self.package_faults is None:
            self.package, self.package_faults = read_package_facts(self.folder / info.package.path)
        return self.package, list(self.package_faults)

    def _model_info(self) -> ModelInfo | None:
        if self.info is None:
            self.info = model_info.read_model_info(self.folder)
        return self.info

    def _listed(self, path: str) -> str:
        return self.report.claims.digests.get(path, "")

    def _skip(self, name: str) -> Check:
        return Check(name=name, fact="")
