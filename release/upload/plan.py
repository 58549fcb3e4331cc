"""What the one commit of a release does, or did: files by what becomes of them, as text and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final

from launcher.errors import MindnanoError
from launcher.integrity.claims import METADATA
from launcher.integrity.release_files import printable
from launcher.payload.carried import NOTICES
from launcher.progress import format_bytes
from release.folder.files import is_release_file
from release.upload.hub import RemoteFile

SCHEMA: Final = "mindnano.publish"
VERSION: Final = 1
_HUBS_OWN: Final = frozenset({".gitattributes"})
"""Without it, large files would become ordinary ones; no verification minds it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalFile:
    """A file to publish. `storage` is `lfs` above 10 MB and for what is no text, else `regular`."""

    path: str
    size: int
    sha256: str
    storage: str
    blob: str

    def equals(self, remote: RemoteFile) -> bool:
        """Whether the hub has the same bytes."""
        return remote.sha256 == self.sha256 if remote.sha256 is not None else remote.blob == self.blob


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """What the commit does, or did. `parent` is None for a repository that is not there yet.

    `left` are files of somebody else's that stay. With any of them a download of the repository does not pass
    `mindnano verify`, which counts them as extra. `made` is the new commit, None where there is none.
    """

    endpoint: str
    repository: str
    branch: str
    parent: str | None
    message: str
    added: tuple[LocalFile, ...]
    changed: tuple[LocalFile, ...]
    unchanged: tuple[LocalFile, ...]
    deleted: tuple[str, ...]
    left: tuple[str, ...]
    made: str | None = None
    dry_run: bool = True

    @property
    def is_empty(self) -> bool:
        """Whether nothing would change."""
        return not (self.added or self.changed or self.deleted)

    def to_json(self) -> str:
        """One JSON document with `schema` and `version`, which `release/folder/schemas/publish.json` describes."""
        document = {"schema": SCHEMA, "version": VERSION, "ok": True, "exit_code": 0, **asdict(self), "error": None}
        return json.dumps(document, indent=1, ensure_ascii=False)

    def to_text(self) -> str:
        """For a reader: everything that the commit consists of."""
        lines = [
            f"repository  {self.repository} at {self.endpoint}",
            f"branch      {self.branch}",
            f"parent      {self.parent or 'none: the repository is not there yet'}",
            f"message     {self.message}",
            "",
        ]
        for word, files in (("add", self.added), ("change", self.changed), ("keep", self.unchanged)):
            lines += [
                f"{word:<7} {format_bytes(file.size):>9}  {file.storage:<7}  {file.sha256}  {file.path}"
                for file in files
            ]
        lines += [f"delete  {printable(path)}" for path in self.deleted]
        lines += [f"leave   {printable(path)} (not of a release)" for path in self.left]
        sent = sum(file.size for file in (*self.added, *self.changed))
        lines += ["", f"{format_bytes(sent)} to send"]
        if self.left:
            lines.append(
                f"with the {len(self.left)} left, a download of the repository does not pass mindnano verify;"
                " choose: --delete takes them away, --leave lets them stay"
            )
        if self.made is not None:
            lines.append(f"committed as {self.made}")
        elif self.is_empty:
            lines.append("nothing to do: the repository holds this release")
        elif self.dry_run:
            where = "" if self.parent is None else f" --parent {self.parent}"
            lines.append(f"nothing was changed; to make this commit, add --yes{where}")
        return "\n".join(lines)


def failure_json(repository: str, error: MindnanoError) -> str:
    """The document where there is no commit to show but an error; the same schema describes it."""
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "ok": False,
        "exit_code": error.exit_code,
        "repository": repository,
        "error": {"slug": error.slug, "message": error.message, "hint": error.hint},
    }
    return json.dumps(document, indent=1, ensure_ascii=False)


def sort_others(remote: Iterable[str], published: Iterable[str], *, delete: bool) -> tuple[list[str], list[str]]:
    """What becomes of files that only the repository has.

    Those of an earlier release go, since they would be extra, or, as a signature, not hold any more.

    Args:
        remote: paths in the repository.
        published: paths that the commit brings.
        delete: whether files of somebody else's go too.

    Returns:
        Paths to delete, and those to leave.
    """
    others = sorted(set(remote) - set(published) - _HUBS_OWN)
    deleted = [path for path in others if delete or _is_ours(path)]
    return deleted, [path for path in others if path not in set(deleted)]


def _is_ours(path: str) -> bool:
    """Whether a release, of another version or a whole one, has a file of this name.

    A package of another name may be another model: whoever mistakes the repository should not lose it.
    """
    if path.endswith(".l3r"):
        return False
    return path in METADATA or path.startswith(NOTICES) or ("/" not in path and is_release_file(path))
