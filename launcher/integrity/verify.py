"""`--verify`: every file of a release against what the release claims; and the same for one package at the start."""

from __future__ import annotations

import errno
import json
import os
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final, Protocol, TextIO

from launcher.errors import Cancelled, MindnanoError, PackageError
from launcher.integrity import checksums, manifest
from launcher.integrity.claims import METADATA, Claims, SignatureState, read_claims, require_consistency
from launcher.integrity.publisher import Publisher, read_publisher
from launcher.integrity.release_files import Refused, open_member, printable
from launcher.integrity.release_memory import ReleaseMemory
from launcher.integrity.stamps import HashedFile, Stamp, StampCache, hash_steady_file
from launcher.integrity.verify_report import ChangedFile, Reason, UnreadableFile, VerifyReport, failure_document
from launcher.messages import Catalogue
from launcher.progress import Progress
from launcher.terminal import emit

MAX_WORKERS: Final = 4
MAX_ENTRIES: Final = 100_000
MAX_EXTRA: Final = 1000
MIN_STAMPED_BYTES: Final = 1 << 20
"""Smaller files are hashed faster than a stamp is found, and would crowd out those of the packages."""
_FOREIGN_FOLDERS: Final = frozenset({".git", ".cache/huggingface"})
_FOREIGN_FILES: Final = frozenset({".gitattributes"})


class VerifyOptions(Protocol):
    """What `run_verify` needs of the command line. `operand` is the folder, None where it names none."""

    @property
    def operand(self) -> str | None: ...
    @property
    def model(self) -> Path | None: ...
    @property
    def json(self) -> bool: ...
    @property
    def strict(self) -> bool: ...


class Known(Enum):
    """How a digest is known: computed now, or from a stamp of an earlier time."""

    HASHED = "hashed"
    STAMP = "stamp"


class VerificationState(Enum):
    """What is known of a package without hashing it."""

    UNLISTED = "unlisted"
    UNVERIFIED = "unverified"
    VERIFIED = "verified"
    CHANGED = "changed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verified:
    """A package that is as its release claims. `size` in bytes; `sources` are the files that list it."""

    sha256: str
    size: int
    known: Known
    signature: SignatureState
    sources: tuple[str, ...]


def run_verify(options: VerifyOptions, environ: Mapping[str, str], texts: Catalogue) -> int:
    """The command: prints the report and returns its exit code.

    Raises:
        PackageError, TrustError: as `verify`; with `--json` the document is printed all the same.
    """
    folder = _folder_of(options)
    try:
        report = verify(folder, environ, texts, strict=options.strict)
    except MindnanoError as error:
        if options.json:
            emit(json.dumps(failure_document(folder, error), indent=2))
        raise
    emit(json.dumps(report.document(), indent=2) if options.json else report.text(texts))
    return report.exit_code


def verify(
    folder: Path,
    environ: Mapping[str, str],
    texts: Catalogue,
    *,
    strict: bool = False,
    publisher: Publisher | None = None,
    stream: TextIO | None = None,
) -> VerifyReport:
    """Hashes a whole release anew and compares it with what it claims. Stamps are refreshed, never trusted.

    Args:
        folder: the release.
        strict: whether warnings count as failures.
        publisher: whom to trust; by default whom this build names.
        stream: where progress goes; stderr by default.

    Raises:
        TrustError: the signature is wrong, or the release is older than one that was verified before.
        PackageError: there is no such folder, nothing in it to verify against, or its metadata is malformed.
    """
    root = _existing(folder)
    trusted = read_publisher() if publisher is None else publisher
    claims = read_claims(root, trusted.keys)
    if claims is None:
        raise PackageError(
            "nothing-to-verify",
            f"{folder} has neither {checksums.FILE_NAME} nor {manifest.FILE_NAME} of a release",
            hint="name the folder of a release: --verify DIR",
        )
    memory = ReleaseMemory.of(environ)
    signed = claims.manifest if claims.signed is not None else None
    if signed is not None:
        memory.require_not_older(signed.model, signed.release)
    hashing = _Hashing(root, claims, texts, stream)
    try:
        found = hashing.run()
    except BrokenPipeError as error:  # must not pass for a reader of the report who has seen enough
        raise Cancelled("cancelled", "nobody reads the progress on stderr any more") from error
    extra, all_extra = _extra_files(root, claims)
    described = () if claims.manifest is None else claims.manifest.files
    programs = {file.path for file in described if file.role == manifest.PROGRAM_ROLE}
    report = VerifyReport(
        folder=root,
        claims=claims,
        intact=found.intact,
        hashed_bytes=found.hashed_bytes,
        missing=tuple(sorted(set(found.missing) - programs)),
        absent=tuple(sorted(set(found.missing) & programs)),
        changed=tuple(sorted(found.changed, key=lambda file: file.path)),
        unreadable=tuple(sorted(found.unreadable, key=lambda file: file.path)),
        extra=extra,
        all_extra=all_extra,
        strict=strict,
    )
    StampCache.of(environ).record(found.stamps)
    if not report.damaged:
        require_consistency(root, claims)
        if signed is not None:
            memory.remember(signed.model, signed.release)
    return report


def require_verified(
    package: Path, environ: Mapping[str, str], *, texts: Catalogue, publisher: Publisher | None = None
) -> Verified | None:
    """Checks a package, before it is used, against the release that it lies in.

    It is hashed unless a fresh stamp says what its digest is.

    Args:
        texts: the language of progress on stderr.
        publisher: whom to trust; by default whom this build names.

    Returns:
        None where nothing beside the package lists it, or where there is no such file.

    Raises:
        PackageError: its digest is another one, or the release's metadata is malformed.
        TrustError: the release's signature is wrong.
    """
    claims = _claims_beside(package, publisher)
    if claims is None:
        return None
    try:
        handle = os.open(package, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError:
        return None  # the engine says what is wrong with it
    try:
        status = os.fstat(handle)
        cache = StampCache.of(environ)
        digest = cache.lookup(package, status)
        known = Known.HASHED if digest is None else Known.STAMP
        if digest is None:
            found = _hash_with_progress(handle, package, texts, status.st_size)
            digest = found.sha256
            cache.record([] if found.stamp is None else [(package, found.stamp)])
    finally:
        os.close(handle)
    expected = claims.digests[package.name]
    if digest != expected:
        raise PackageError(
            "package-changed",
            f"{package} has SHA-256 {digest}, expected {expected} by {claims.sources[0]}",
            hint="fetch the package again; --verify shows what else is damaged",
        )
    return Verified(sha256=digest, size=status.st_size, known=known, signature=claims.state, sources=claims.sources)


def verification_state(
    package: Path, environ: Mapping[str, str], *, publisher: Publisher | None = None
) -> VerificationState:
    """What is known of a package from its release and from stamps; nothing is hashed.

    Raises:
        PackageError, TrustError: as `require_verified`, but for the package itself.
    """
    claims = _claims_beside(package, publisher)
    if claims is None:
        return VerificationState.UNLISTED
    try:
        digest = StampCache.of(environ).lookup(package, package.stat())
    except OSError:
        return VerificationState.UNVERIFIED
    if digest is None:
        return VerificationState.UNVERIFIED
    return VerificationState.VERIFIED if digest == claims.digests[package.name] else VerificationState.CHANGED


def signature_state(package: Path, *, publisher: Publisher | None = None) -> SignatureState | None:
    """What is known about the signature of the package's release; None where nothing beside the package lists it.

    Raises:
        PackageError, TrustError: as `require_verified`, but for the package itself.
    """
    claims = _claims_beside(package, publisher)
    return None if claims is None else claims.state


def _claims_beside(package: Path, publisher: Publisher | None) -> Claims | None:
    """The claims of the package's own folder, if they are about the package."""
    trusted = read_publisher() if publisher is None else publisher
    claims = read_claims(package.parent, trusted.keys)
    return claims if claims is not None and package.name in claims.digests else None


def _hash_with_progress(handle: int, package: Path, texts: Catalogue, size: int) -> HashedFile:
    with Progress(texts("verify-progress", name=printable(package.name)), size, texts=texts) as progress:

        def step(done: int, _total: int) -> bool:
            progress.update(done)
            return False

        return hash_steady_file(handle, str(package), progress=step)


def _folder_of(options: VerifyOptions) -> Path:
    """The folder that is meant: named, that of the model, that of the program, or the current one."""
    if options.operand is not None:
        return Path(options.operand)
    if options.model is not None:
        return options.model.parent
    program = Path(sys.argv[0]).resolve().parent
    names = (manifest.FILE_NAME, checksums.FILE_NAME, checksums.PUBLIC_FILE_NAME)
    return program if any((program / name).is_file() for name in names) else Path.cwd()


def _existing(folder: Path) -> Path:
    try:
        root = folder.resolve(strict=True)
    except (OSError, RuntimeError, ValueError) as error:
        raise PackageError(
            "verify-folder", f"there is no folder {printable(str(folder))}", hint="name the folder of a release"
        ) from error
    if not root.is_dir():
        raise PackageError(
            "verify-folder",
            f"{printable(str(folder))} is not a folder",
            hint=f"name the folder of the release: --verify {printable(str(folder.parent))}",
        )
    return root


def _extra_files(folder: Path, claims: Claims) -> tuple[tuple[str, ...], bool]:
    """Files that nothing lists, sorted, and whether these are all.

    What git and the client of Hugging Face add to a folder is left out.
    """
    known = METADATA | claims.digests.keys()
    extra: list[str] = []
    closed: list[OSError] = []
    visited = 0
    for place, folders, files in os.walk(folder, onerror=closed.append):
        inside = "" if place == str(folder) else os.path.relpath(place, folder) + "/"
        links = [name for name in folders if (Path(place) / name).is_symlink()]
        folders[:] = sorted(name for name in folders if name not in links and inside + name not in _FOREIGN_FOLDERS)
        for name in sorted(files + links):
            visited += 1
            if visited > MAX_ENTRIES or len(extra) >= MAX_EXTRA:
                return tuple(sorted(extra)), False
            path = inside + name
            if path not in known and path not in _FOREIGN_FILES:
                extra.append(path)
        visited += len(folders)
    return tuple(sorted(extra)), not closed


class _Hashing:
    """Hashes all listed files, several at a time, with one report of progress."""

    def __init__(self, folder: Path, claims: Claims, texts: Catalogue, stream: TextIO | None) -> None:
        self._folder = folder
        self._claims = claims
        label = texts("verify-progress", name=printable(folder.name))
        self._progress = Progress(label, sum(map(self._size_of, claims.digests)), stream=stream, texts=texts)
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self.intact = 0
        self.hashed_bytes = 0
        self.missing: list[str] = []
        self.changed: list[ChangedFile] = []
        self.unreadable: list[UnreadableFile] = []
        self.stamps: list[tuple[Path, Stamp]] = []

    def run(self) -> _Hashing:
        """Hashes; an interrupt stops the workers within a step of theirs."""
        workers = min(MAX_WORKERS, os.cpu_count() or 1, len(self._claims.digests))
        with self._progress, ThreadPoolExecutor(workers, thread_name_prefix="verify") as pool:
            try:
                largest_first = sorted(self._claims.digests, key=self._size_of, reverse=True)
                running: list[Future[None]] = [pool.submit(self._hash, path) for path in largest_first]
                for future in as_completed(running):
                    future.result()
            except BaseException:
                self._stop.set()
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        return self

    def _size_of(self, path: str) -> int:
        try:
            return (self._folder / path).stat().st_size
        except (OSError, RuntimeError):
            return 0

    def _hash(self, path: str) -> None:
        try:
            handle = open_member(self._folder, path)
        except FileNotFoundError:
            with self._lock:
                self.missing.append(path)
            return
        except Refused as refused:
            self._refuse(path, Reason(refused.reason))
            return
        except OSError as error:
            denied = error.errno in (errno.EACCES, errno.EPERM)
            self._refuse(path, Reason.NO_PERMISSION if denied else Reason.READ_ERROR)
            return
        try:
            self._compare(path, handle)
        except PackageError as error:
            changed = error.slug == "file-changed-while-read"
            self._refuse(path, Reason.CHANGED_WHILE_READ if changed else Reason.READ_ERROR)
        finally:
            os.close(handle)

    def _compare(self, path: str, handle: int) -> None:
        seen = 0

        def step(done: int, _total: int) -> bool:
            nonlocal seen
            with self._lock:
                self._progress.advance(done - seen)
            seen = done
            return self._stop.is_set()

        found = hash_steady_file(handle, path, progress=step)
        expected, size = self._claims.digests[path], self._claims.sizes.get(path)
        with self._lock:
            self.hashed_bytes += found.size
            if found.stamp is not None and found.size >= MIN_STAMPED_BYTES:
                self.stamps.append((self._folder / path, found.stamp))
            if found.sha256 == expected and size in (None, found.size):
                self.intact += 1
                return
            self.changed.append(
                ChangedFile(
                    path=path,
                    expected_sha256=expected,
                    actual_sha256=found.sha256,
                    expected_size=size,
                    actual_size=found.size,
                )
            )

    def _refuse(self, path: str, reason: Reason) -> None:
        with self._lock:
            self.unreadable.append(UnreadableFile(path=path, reason=reason))
