"""`mindnano publish`: a verified release becomes one commit in a Hugging Face repository, shown before it is made."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import sha1, sha256
from pathlib import Path
from typing import Any, Final

from launcher.errors import NetworkError, PackageError, TrustError, UsageError
from launcher.integrity import checksums
from launcher.integrity.manifest import FILE_NAME as MANIFEST
from launcher.integrity.release_files import printable
from launcher.integrity.signature import SUFFIX
from release.upload.hub import Hub, RemoteFile, open_hub
from release.upload.plan import Commit, LocalFile, sort_others

_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_BRANCH: Final = re.compile(r"[A-Za-z0-9][\w./-]{0,199}", re.ASCII)
_COMMIT: Final = re.compile(r"[0-9a-f]{40}")
# What the hub stores beside git, as its documentation has it.
_LARGE: Final = 10_000_000
_SAMPLE: Final = 8192
_SHOWN: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishOptions:
    """What to publish where.

    Attributes:
        repository: ORG/NAME.
        message: of the commit; None makes one of the manifest's model and version.
        delete: whether files that are not of a release are deleted too; those of an earlier release always are.
        leave: whether they may stay, though a download of the repository then does not pass `mindnano verify`.
        create: whether a missing repository is made, `private` or not.
        parent: the commit that the branch must be at; None takes the one that is there.
        confirmed: whether anything is changed at all.
    """

    folder: Path
    repository: str
    branch: str = "main"
    message: str | None = None
    delete: bool = False
    leave: bool = False
    create: bool = False
    private: bool = False
    parent: str | None = None
    confirmed: bool = False


def publish(options: PublishOptions) -> Commit:
    """Verifies the release, plans the commit, and makes it where `confirmed`.

    Raises:
        UsageError: a malformed name, nobody is logged in, or the repository has files that are not of a release.
        PackageError, TrustError: the release is not what it should be.
        NetworkError: the hub cannot be reached, refuses, or its branch has moved.
    """
    if not _REPOSITORY.fullmatch(options.repository):
        raise UsageError("publish-options", f"--repo is {options.repository!r}, expected ORG/NAME")
    if not _BRANCH.fullmatch(options.branch):
        raise UsageError("publish-options", f"--branch is {options.branch!r}, expected a name such as main")
    if options.private and not options.create:
        hint = "A repository that is there keeps its visibility; change that on its page."
        raise UsageError("publish-options", "--private needs --create", hint=hint)
    if options.delete and options.leave:
        raise UsageError("publish-options", "--delete and --leave say the opposite of each other", hint="Give one.")
    if options.parent is not None and not _COMMIT.fullmatch(options.parent):
        raise UsageError("publish-options", f"--parent is {options.parent!r}, expected 40 hexadecimal digits")
    require_verified(options.folder)
    files = public_files(options.folder)
    hub = open_hub(os.environ)
    if options.confirmed:
        hub.require_token()
    commit = _plan(options, files, hub)
    if not options.confirmed or commit.is_empty:
        return commit
    if commit.left and not options.leave:
        shown = ", ".join(map(printable, commit.left[:_SHOWN])) + (", ..." if len(commit.left) > _SHOWN else "")
        raise UsageError(
            "publish-foreign",
            f"{options.repository} has {len(commit.left)} files that are not of a release ({shown}); with them a"
            " download of the repository does not pass mindnano verify",
            hint="Add --delete to delete them in the same commit, or --leave to let them stay. Nothing was sent.",
        )
    return _make(options, commit, hub)


def require_verified(folder: Path) -> None:
    """The release's own verification, the same as `mindnano verify DIR`.

    Raises:
        PackageError: something is wrong; what it is stands on stderr.
        TrustError: that is the signature.
    """
    from launcher.integrity.publisher import read_publisher
    from release.folder.verify import VerifyOptions, verify

    result = verify(VerifyOptions(folder=folder, keys=read_publisher().keys))
    if result.exit_code != 0:
        print(result.to_text(), file=sys.stderr)
        hint = "Make the release anew with mindnano finalize. Nothing was sent."
        kind = TrustError if result.exit_code == TrustError.exit_code else PackageError
        raise kind("publish-unverified", f"{folder} is not what was released", hint=hint)


def public_files(folder: Path) -> tuple[LocalFile, ...]:
    """The files that SHA256SUMS.PUBLIC lists, the list, and its signature where there is one, by name.

    Raises:
        PackageError: a file is missing or unreadable.
    """
    listed = checksums.read_checksums(folder / checksums.PUBLIC_FILE_NAME)
    if listed is None:
        raise PackageError(
            "publish-no-list", f"{folder} has no {checksums.PUBLIC_FILE_NAME}", hint="mindnano finalize writes it."
        )
    names = {*listed.digests, checksums.PUBLIC_FILE_NAME}
    signature = checksums.PUBLIC_FILE_NAME + SUFFIX
    if (folder / signature).is_file():
        names.add(signature)
    return tuple(_local(folder, name, listed.digests.get(name)) for name in sorted(names))


def _local(folder: Path, name: str, digest: str | None) -> LocalFile:
    path = folder / name
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            sample = file.read(_SAMPLE)
        storage = "lfs" if size > _LARGE or _is_binary(sample, whole=size <= _SAMPLE) else "regular"
        return LocalFile(
            path=name,
            size=size,
            sha256=digest or sha256(path.read_bytes()).hexdigest(),
            storage=storage,
            # Large files are compared by their SHA-256 alone.
            blob="" if size > _LARGE else sha1(b"blob %d\0" % size + path.read_bytes()).hexdigest(),
        )
    except OSError as error:
        raise PackageError("publish-unreadable", f"cannot read {path}: {error.strerror}") from error


def _is_binary(sample: bytes, *, whole: bool) -> bool:
    if b"\0" in sample:
        return True
    try:
        sample.decode()
    except UnicodeDecodeError as error:
        # The sample may end within a character.
        return whole or error.start < len(sample) - 3
    return False


def _plan(options: PublishOptions, files: tuple[LocalFile, ...], hub: Hub) -> Commit:
    parent = hub.head(options.repository, options.branch)
    if parent is None and not options.create:
        raise NetworkError(
            "publish-repository",
            f"{options.repository} is not at {hub.endpoint}, or this login may not see it",
            hint="Check the name and HF_TOKEN, or add --create to make the repository.",
        )
    if options.parent not in (None, parent):
        raise _moved(options, f"its {options.branch} is at {parent or 'nothing'}, expected {options.parent}")
    remote: Mapping[str, RemoteFile] = {} if parent is None else hub.files(options.repository, parent)
    known = [file for file in files if file.path in remote]
    deleted, left = sort_others(remote, [file.path for file in files], delete=options.delete)
    return Commit(
        endpoint=hub.endpoint,
        repository=options.repository,
        branch=options.branch,
        parent=parent,
        message=options.message or _message(options.folder),
        added=tuple(file for file in files if file.path not in remote),
        changed=tuple(file for file in known if not file.equals(remote[file.path])),
        unchanged=tuple(file for file in known if file.equals(remote[file.path])),
        deleted=tuple(deleted),
        left=tuple(left),
    )


def _message(folder: Path) -> str:
    try:
        document: Any = json.loads((folder / MANIFEST).read_bytes())
        return f"Release {document['model']} {document['release']}"
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError("publish-options", f"{MANIFEST} names no release", hint="Give --message.") from error


def _make(options: PublishOptions, commit: Commit, hub: Hub) -> Commit:
    parent = commit.parent
    if parent is None:
        hub.create(options.repository, private=options.private)
        parent = hub.head(options.repository, options.branch)
        if parent is None:
            raise NetworkError("publish-repository", f"{options.repository} was made and cannot be found")
    made = hub.commit(
        options.repository,
        options.branch,
        parent,
        message=commit.message,
        files={file.path: (options.folder / file.path, file.sha256) for file in (*commit.added, *commit.changed)},
        deleted=commit.deleted,
    )
    if made is None:
        raise _moved(options, f"its {options.branch} has moved on from {parent} since it was looked at")
    fields = {name: getattr(commit, name) for name in Commit.__dataclass_fields__}
    return Commit(**{**fields, "parent": parent, "made": made, "dry_run": False})


def _moved(options: PublishOptions, what: str) -> NetworkError:
    hint = "Run it without --yes and look again. Nothing was committed."
    return NetworkError("publish-moved", f"{options.repository}: {what}", hint=hint)
