"""What a release holds: its lists are read and checked first, then the package is chosen from them.

The lists are small and capped. SHA256SUMS, signed where there is a signature, covers MANIFEST.json; both cover the
rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from hashlib import sha256
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote

from launcher import checksums, manifest, signature
from launcher.errors import NetworkError, PackageError
from launcher.fetch import Expected
from launcher.release_files import path_fault, portable_path_fault, printable, read_capped
from launcher.signature import PublicKey
from launcher.sources import PACKAGE_SUFFIX, RELEASE_NAME, HubSource
from launcher.strict_json import MAX_COUNT, Fields, invalid, parse_object
from launcher.transport import Retries, Transport

SIGNATURE_NAME: Final = checksums.FILE_NAME + signature.SUFFIX
_MAX_SMALL: Final = 4 << 20
_MAX_INFO: Final = 16 << 20
_MAX_NOTICES: Final = 64
_MAX_LISTED: Final = 100_000
_NOTICE: Final = re.compile(r"(?:MODEL\.json|NOTICE[^/]{0,60}|LICEN[CS]ES?[^/]{0,60})")
_NOT_HERE: Final = frozenset({"http-forbidden", "http-credentials", "http-too-large"})
"""How servers answer that do not say which files they lack."""
_COMMIT: Final = re.compile(r"[0-9a-f]{40}", re.ASCII)
_DIGEST: Final = re.compile(r"[0-9a-f]{64}", re.ASCII)


class Trust(Enum):
    """Who says that the bytes are right."""

    SIGNED = "signed"
    LISTED = "listed"
    GIVEN = "given"
    NOBODY = "nobody"


class Place(Protocol):
    """Where the files of one release are."""

    def small(self, path: str, limit: int) -> bytes | None:
        """A small file, or None where there is none.

        Raises:
            NetworkError, PackageError: it cannot be had, or is larger than `limit` bytes.
        """

    def names(self) -> Mapping[str, Expected] | None:
        """All files by their paths, with what the place itself says about them; None where it cannot list."""

    def __str__(self) -> str: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """What is to be fetched from a place.

    Attributes:
        package: path of the package in the release.
        expected: its size and digest.
        small: the files that belong beside it, by name, already compared with the lists.
        trust: who says so.
        unchecked: whether there is a signature that this build has no key for.
    """

    package: str
    expected: Expected
    small: Mapping[str, bytes]
    trust: Trust
    unchecked: bool


class WebFolder:
    """A folder of a web server."""

    def __init__(self, base: str, transport: Transport, retries: Retries) -> None:
        self._base = base
        self._transport = transport
        self._retries = retries

    def url(self, path: str) -> str:
        """Where a file is."""
        return self._base + quote(path)

    def small(self, path: str, limit: int) -> bytes | None:
        return self._transport.small(self.url(path), limit, self._retries)

    def names(self) -> Mapping[str, Expected] | None:
        return None

    def __str__(self) -> str:
        return self._base


class HubPlace(WebFolder):
    """A repository at one commit, so that all files belong together."""

    def __init__(self, source: HubSource, transport: Transport, retries: Retries) -> None:
        """Asks for the commit that the revision names now.

        Raises:
            NetworkError: the endpoint does not answer as a Hub does, or there is no such repository or revision.
        """
        url = f"{source.endpoint}/api/models/{source.repository}/revision/{quote(source.revision, safe='')}?blobs=true"
        data = transport.small(url, _MAX_INFO, retries)
        if data is None:
            raise NetworkError(
                "http-missing",
                f"{source} does not exist at {source.endpoint}",
                hint="check repository and revision; a private one needs HF_TOKEN",
            )
        try:
            self._files, self.commit = _repository_info(parse_object(data, str(source)))
        except PackageError as error:
            raise NetworkError(
                "hub-answer",
                f"{source.endpoint} does not answer as a Hub does: {error.message}",
                hint="check HF_ENDPOINT",
            ) from error
        super().__init__(f"{source.endpoint}/{source.repository}/resolve/{self.commit}/", transport, retries)
        self._source = source

    def small(self, path: str, limit: int) -> bytes | None:
        return super().small(path, limit) if path in self._files else None

    def names(self) -> Mapping[str, Expected] | None:
        return self._files

    def __str__(self) -> str:
        return f"{self._source.page} at commit {self.commit[:12]}"


class LocalFolder:
    """A folder of this machine."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def small(self, path: str, limit: int) -> bytes | None:
        return read_capped(self.folder / path, limit)

    def names(self) -> Mapping[str, Expected] | None:
        try:
            files = sorted(path for path in self.folder.iterdir() if path.is_file())
            return {path.name: Expected(size=path.stat().st_size, sha256=None) for path in files}
        except OSError as error:
            raise PackageError(
                "package-unreadable", f"cannot read {self.folder}: {error.strerror}", hint="check its permissions"
            ) from error

    def __str__(self) -> str:
        return str(self.folder)


def read_release(place: Place, keys: Sequence[PublicKey]) -> Release:
    """The package of a release, and the small files beside it.

    Args:
        keys: whose signatures are trusted; none where this build names no publisher.

    Raises:
        PackageError: the lists are malformed or contradict each other, or there is not exactly one package.
        TrustError: a signature does not hold.
        NetworkError: a list cannot be had.
    """
    sums_data = place.small(checksums.FILE_NAME, checksums.MAX_BYTES)
    manifest_data = place.small(manifest.FILE_NAME, manifest.MAX_BYTES)
    small: dict[str, bytes] = {}
    listed: dict[str, Expected] = {}
    trust, unchecked = Trust.NOBODY, False
    if sums_data is not None:
        small[checksums.FILE_NAME] = sums_data
        seal = place.small(SIGNATURE_NAME, signature.MAX_BYTES)
        trust, unchecked = _check_signature(sums_data, seal, keys, str(place))
        if seal is not None:
            small[SIGNATURE_NAME] = seal
        digests = checksums.parse_checksums(sums_data, where=f"{place}: {checksums.FILE_NAME}").digests
        listed = {path: Expected(size=None, sha256=digest) for path, digest in digests.items()}
    if manifest_data is not None:
        if sums_data is not None:
            _require_digest(place, manifest.FILE_NAME, manifest_data, listed.get(manifest.FILE_NAME))
        else:
            trust = Trust.LISTED
        small[manifest.FILE_NAME] = manifest_data
        _merge(listed, manifest.parse_manifest(manifest_data, where=f"{place}: {manifest.FILE_NAME}"), place)
    if not listed:
        listed = dict(place.names() or {})
        if not listed:
            raise PackageError(
                "release-unlisted",
                f"{place} has neither {manifest.FILE_NAME} nor {checksums.FILE_NAME}",
                hint=f"name the package itself: .../FILE{PACKAGE_SUFFIX}",
            )
    package = _package(listed, place)
    if trust is not Trust.NOBODY:
        small |= _notices(place, listed)
    expected = listed[package]
    if expected.size is None:
        hint = (place.names() or {}).get(package)
        expected = Expected(size=None if hint is None else hint.size, sha256=expected.sha256)
    return Release(package=package, expected=expected, small=small, trust=trust, unchecked=unchecked)


def expected_beside(place: Place, name: str, keys: Sequence[PublicKey]) -> tuple[Expected, Trust]:
    """What a list beside a single file says about it; nothing where there is no list that names it.

    Raises:
        TrustError: a signature does not hold.
        NetworkError: the list cannot be had.
    """
    try:
        data = place.small(checksums.FILE_NAME, checksums.MAX_BYTES)
        digest = None if data is None else checksums.parse_checksums(data).digests.get(name)
    except PackageError:  # many servers answer any path with a page; it vouches for nothing
        return Expected(size=None, sha256=None), Trust.NOBODY
    except NetworkError as error:
        if error.slug in _NOT_HERE:
            return Expected(size=None, sha256=None), Trust.NOBODY
        raise
    if data is None or digest is None:
        return Expected(size=None, sha256=None), Trust.NOBODY
    trust, _ = _check_signature(data, place.small(SIGNATURE_NAME, signature.MAX_BYTES), keys, str(place))
    return Expected(size=None, sha256=digest), trust


def _check_signature(data: bytes, seal: bytes | None, keys: Sequence[PublicKey], where: str) -> tuple[Trust, bool]:
    if seal is None:
        return Trust.LISTED, False
    if not keys:
        return Trust.LISTED, True
    name = f"{where}: {SIGNATURE_NAME}"
    signature.verify_signature(data, signature.parse_signature(seal, where=name), keys, where=name)
    return Trust.SIGNED, False


def _merge(listed: dict[str, Expected], found: manifest.Manifest, place: Place) -> None:
    for file in found.files:
        other = listed.get(file.path)
        if other is not None and other.sha256 != file.sha256:
            raise _contradiction(place, file.path, str(other.sha256), file.sha256)
        listed[file.path] = Expected(size=file.size, sha256=file.sha256)


def _package(listed: Mapping[str, Expected], place: Place) -> str:
    found = sorted(path for path in listed if path.endswith(PACKAGE_SUFFIX) and portable_path_fault(path) is None)
    meant = [path for path in found if path == RELEASE_NAME] or found
    if len(meant) == 1:
        return meant[0]
    if not meant:
        raise PackageError(
            "release-no-package", f"{place} holds no package (*{PACKAGE_SUFFIX})", hint="check the source"
        )
    names = ", ".join(printable(path) for path in meant[:10])
    raise PackageError(
        "release-no-package",
        f"{place} holds {len(meant)} packages, expected one or {RELEASE_NAME}: {names}",
        hint="name the one that you want by its URL or path",
    )


def _notices(place: Place, listed: Mapping[str, Expected]) -> dict[str, bytes]:
    names = [path for path in sorted(listed) if _NOTICE.fullmatch(path) and path_fault(path) is None]
    found = {}
    for name in names[:_MAX_NOTICES]:
        data = place.small(name, _MAX_SMALL)
        if data is None:
            raise PackageError(
                "release-incomplete", f"{place} lists {name} and does not have it", hint="use another source"
            )
        _require_digest(place, name, data, listed[name])
        found[name] = data
    return found


def _require_digest(place: Place, name: str, data: bytes, expected: Expected | None) -> None:
    wanted = "no entry" if expected is None else str(expected.sha256)
    digest = sha256(data).hexdigest()
    if digest != wanted:
        raise _contradiction(place, name, wanted, digest)


def _contradiction(place: Place, name: str, wanted: str, found: str) -> PackageError:
    return PackageError(
        "release-contradiction",
        f"{place}: {printable(name)} has SHA-256 {found}, {checksums.FILE_NAME} has {wanted}",
        hint="the release is damaged or half uploaded; try again later or use another source",
    )


def _repository_info(fields: Fields) -> tuple[dict[str, Expected], str]:
    """Files and commit from the Hub's description of a repository, which has many keys that do not matter here."""
    commit = fields.text("sha", pattern=_COMMIT)
    files = {}
    for index, entry in enumerate(fields.array("siblings", limit=_MAX_LISTED)):
        item = Fields(entry, f"siblings[{index}]")
        path = item.take("rfilename")
        if not isinstance(path, str):
            raise invalid("siblings", "a name is no text")
        size = item.integer("size", high=MAX_COUNT) if item.has("size") else None
        digest = None
        if item.has("lfs"):
            large = item.fields("lfs")
            digest = large.text("sha256", pattern=_DIGEST) if large.has("sha256") else None
        if path_fault(path) is None:
            files[path] = Expected(size=size, sha256=digest)
    return files, commit
