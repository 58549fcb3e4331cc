"""What a release holds: its lists are read and checked first, then the package is chosen from them.

The lists are small and capped, and are judged by `launcher.integrity.claims` as those of a release on this machine are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final, Protocol
from urllib.parse import quote

from launcher.download.fetch import Expected
from launcher.download.sources import PACKAGE_SUFFIX, RELEASE_NAME, HubSource
from launcher.download.transport import Retries, Transport
from launcher.errors import MindnanoError, NetworkError, PackageError
from launcher.integrity import checksums, manifest, signature
from launcher.integrity.claims import Claims, SignatureState, read_claims
from launcher.integrity.release_files import path_fault, portable_path_fault, printable, read_capped
from launcher.integrity.signature import PublicKey
from launcher.integrity.strict_json import MAX_COUNT, Fields, invalid, parse_object

_SUMS: Final = (checksums.FILE_NAME, checksums.PUBLIC_FILE_NAME)
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
        signed: name of the model and version of the release, where a signature says them.
    """

    package: str
    expected: Expected
    small: Mapping[str, bytes]
    trust: Trust
    unchecked: bool = False
    signed: tuple[str, str] | None = None


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
    small = _lists(place, with_manifest=True)
    claims = _judge(place, small, keys)
    if claims is None:
        return _unlisted(place)
    if claims.unlisted_manifest:
        del small[manifest.FILE_NAME]
    listed = {path: Expected(size=claims.sizes.get(path), sha256=digest) for path, digest in claims.digests.items()}
    if manifest.FILE_NAME in claims.digests:
        _require_digest(place, manifest.FILE_NAME, small.get(manifest.FILE_NAME), claims.digests[manifest.FILE_NAME])
    package = _package(listed, place)
    expected = listed[package]
    if expected.size is None:
        known = (place.names() or {}).get(package)
        expected = replace(expected, size=None if known is None else known.size)
    named = claims.manifest if claims.signed is not None else None
    return Release(
        package=package,
        expected=expected,
        small=small | _notices(place, claims),
        trust=_trust(claims),
        unchecked=claims.state is SignatureState.NO_KEY,
        signed=None if named is None else (named.model, named.release),
    )


def read_single(place: Place, name: str, keys: Sequence[PublicKey]) -> Release:
    """A single file, with what a list of checksums beside it says; many servers have none.

    Raises:
        TrustError: a signature does not hold.
        NetworkError: the list cannot be had.
    """
    alone = Release(package=name, expected=Expected(size=None, sha256=None), small={}, trust=Trust.NOBODY)
    try:
        claims = _judge(place, _lists(place, with_manifest=False), keys)
    except PackageError:  # a page in place of a list vouches for nothing
        return alone
    except NetworkError as error:
        if error.slug in _NOT_HERE:
            return alone
        raise
    if claims is None or name not in claims.digests:
        return alone
    return replace(
        alone,
        expected=Expected(size=None, sha256=claims.digests[name]),
        trust=_trust(claims),
        unchecked=claims.state is SignatureState.NO_KEY,
    )


def _lists(place: Place, *, with_manifest: bool) -> dict[str, bytes]:
    """The lists of a release by name: the first list of checksums that is there, its signature, the manifest."""
    found = {}
    for name in _SUMS:
        data = place.small(name, checksums.MAX_BYTES)
        if data is None:
            continue
        found[name] = data
        seal = place.small(name + signature.SUFFIX, signature.MAX_BYTES)
        if seal is not None:
            found[name + signature.SUFFIX] = seal
        break
    described = place.small(manifest.FILE_NAME, manifest.MAX_BYTES) if with_manifest else None
    if described is not None:
        found[manifest.FILE_NAME] = described
    return found


def _judge(place: Place, lists: Mapping[str, bytes], keys: Sequence[PublicKey]) -> Claims | None:
    """What the lists claim, judged in a folder of their own."""
    with TemporaryDirectory(prefix="mindnano-lists-") as staging:
        for name, data in lists.items():
            (Path(staging) / name).write_bytes(data)
        try:
            return read_claims(Path(staging), keys)
        except MindnanoError as error:
            message = error.message.replace(f"{staging}/", "")
            raise type(error)(error.slug, message, hint=error.hint).about(place) from error


def _trust(claims: Claims) -> Trust:
    return Trust.SIGNED if claims.state is SignatureState.VALID else Trust.LISTED


def _unlisted(place: Place) -> Release:
    listed = dict(place.names() or {})
    if not listed:
        raise PackageError(
            "release-unlisted",
            f"{place} has neither {manifest.FILE_NAME} nor {checksums.FILE_NAME}",
            hint=f"name the package itself: .../FILE{PACKAGE_SUFFIX}",
        )
    package = _package(listed, place)
    return Release(package=package, expected=listed[package], small={}, trust=Trust.NOBODY)


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


def _notices(place: Place, claims: Claims) -> dict[str, bytes]:
    names = [path for path in sorted(claims.digests) if _NOTICE.fullmatch(path)]
    found = {}
    for name in names[:_MAX_NOTICES]:
        data = place.small(name, _MAX_SMALL)
        found[name] = _require_digest(place, name, data, claims.digests[name])
    return found


def _require_digest(place: Place, name: str, data: bytes | None, expected: str) -> bytes:
    if data is None:
        raise PackageError(
            "release-incomplete", f"{place} lists {name} and does not have it", hint="use another source"
        )
    digest = sha256(data).hexdigest()
    if digest != expected:
        raise PackageError(
            "release-contradiction",
            f"{place}: {name} has SHA-256 {digest}, expected {expected} by the list",
            hint="the release is damaged or half uploaded; try again later or use another source",
        )
    return data


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
