"""The hub, as publishing needs it, through `huggingface_hub`."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Final

from launcher.errors import MindnanoError, NetworkError, PackageError, UsageError

DEFAULT_ENDPOINT: Final = "https://huggingface.co"
_MOVED: Final = (409, 412)
_SHOWN: Final = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteFile:
    """A file in a repository: its git blob, and for a large one its SHA-256."""

    blob: str
    sha256: str | None


def open_hub(environ: Mapping[str, str]) -> Hub:
    """The hub that HF_ENDPOINT names, with the login of HF_TOKEN or of the hub's own tool.

    Raises:
        UsageError: `huggingface_hub` is not installed, or HF_ENDPOINT is no address.
    """
    try:
        import huggingface_hub
    except ImportError as error:
        raise UsageError(
            "publish-library",
            "publishing needs huggingface_hub, which is not installed",
            hint="Install it: pip install 'mindnano-infer[publish]'",
        ) from error
    endpoint = environ.get("HF_ENDPOINT", "").strip().rstrip("/") or DEFAULT_ENDPOINT
    if not endpoint.startswith(("https://", "http://")) or "@" in endpoint or not endpoint.isprintable():
        raise UsageError(
            "endpoint-invalid",
            "HF_ENDPOINT is no address, or holds more than one: a login belongs into HF_TOKEN",
            hint=f"Set it to one such as {DEFAULT_ENDPOINT}, or unset it.",
        )
    token = huggingface_hub.get_token()
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        # Libraries would show it, as something that cannot be sent.
        raise UsageError(
            "token-invalid",
            "the token of HF_TOKEN, or the one that was saved, has characters that no token has",
            hint="Copy it again from the hub's settings, as one word of letters and digits.",
        )
    if not sys.stderr.isatty():
        import_module("huggingface_hub.utils").disable_progress_bars()  # the module declares no exports
    return Hub(endpoint, token)


class Hub:
    """One login at one endpoint."""

    def __init__(self, endpoint: str, token: str | None) -> None:
        from huggingface_hub import HfApi

        self.endpoint = endpoint
        self._token = token
        self._api = HfApi(endpoint=endpoint, token=token or False, library_name="mindnano")

    def require_token(self) -> None:
        """Raises:
        UsageError: nobody is logged in.
        """
        if self._token is None:
            raise UsageError(
                "publish-token",
                "found no login, expected HF_TOKEN or a token that was saved",
                hint="Set HF_TOKEN to a token with write access, or run: hf auth login",
            )

    def head(self, repository: str, branch: str) -> str | None:
        """The commit that a branch is at; None where the repository is not there.

        Raises:
            NetworkError: the branch is not there, or the hub cannot be asked.
        """
        from huggingface_hub.errors import RepositoryNotFoundError

        with self._errors(f"look at {repository}"):
            try:
                found = self._api.repo_info(repository, revision=branch).sha
            except RepositoryNotFoundError as error:
                # The hub also answers 401 so, which with a token means that the token is not valid.
                if error.response.status_code == 401 and self._token is not None:
                    raise
                return None
        return _commit(found, f"look at {repository}")

    def files(self, repository: str, commit: str) -> dict[str, RemoteFile]:
        """Everything in a commit, by path."""
        from huggingface_hub.hf_api import RepoFile

        with self._errors(f"list {repository}"):
            return {
                entry.path: RemoteFile(blob=entry.blob_id, sha256=None if entry.lfs is None else entry.lfs.sha256)
                for entry in self._api.list_repo_tree(repository, recursive=True, revision=commit)
                if isinstance(entry, RepoFile)
            }

    def create(self, repository: str, *, private: bool) -> None:
        """Makes a model repository."""
        with self._errors(f"make {repository}"):
            self._api.create_repo(repository, private=private, repo_type="model")

    def commit(
        self,
        repository: str,
        branch: str,
        parent: str,
        *,
        message: str,
        files: Mapping[str, tuple[Path, str]],
        deleted: Sequence[str],
    ) -> str | None:
        """Uploads and commits; the new commit, or None where the branch is no longer at `parent`.

        Raises:
            PackageError: a file is not the one that was verified, or the hub does not accept the card.
            NetworkError: it failed; nothing was committed.
        """
        from huggingface_hub import CommitOperationAdd, CommitOperationDelete

        operations: list[Any] = [CommitOperationDelete(path_in_repo=path, is_folder=False) for path in deleted]
        for path, (place, digest) in files.items():
            operation = CommitOperationAdd(path_in_repo=path, path_or_fileobj=place)
            if operation.upload_info.sha256.hex() != digest:
                message = f"{place} changed after it was verified"
                raise PackageError("publish-changed", message, hint="Nothing was sent. Run it again.")
            operations.append(operation)
        with self._errors(f"upload to {repository}"):
            try:
                done = self._api.create_commit(
                    repository,
                    operations,
                    commit_message=message,
                    revision=branch,
                    parent_commit=parent,
                    num_threads=2,
                )
            except Exception as error:
                if _status(error) in _MOVED:
                    return None
                raise
        return _commit(done.oid, f"see what became of {repository}")

    @contextmanager
    def _errors(self, what: str) -> Iterator[None]:
        """Turns everything that the library raises into an error of ours, without the token."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the library, about metadata that its own answer describes better
                yield
        except MindnanoError:
            raise
        except Exception as error:
            raise self._error(what, error) from error

    def _error(self, what: str, error: Exception) -> MindnanoError:
        status = _status(error)
        said = " ".join(str(_root(error)).split())
        if self._token:
            said = said.replace(self._token, "***")
        said = said[:_SHOWN] or type(error).__name__
        if any("Invalid metadata in README.md" in str(each) for each in _chain(error)):
            return PackageError("publish-card", f"{self.endpoint} does not accept the card: {said}")
        if status == 401:
            return NetworkError(
                "publish-refused",
                f"{self.endpoint} does not know this login (401): cannot {what}",
                hint="Set HF_TOKEN to a valid token with write access, or run: hf auth login",
            )
        if status == 403:
            return NetworkError(
                "publish-refused",
                f"{self.endpoint} does not permit this (403): cannot {what}",
                hint="The token needs write access to this repository. Nothing was committed.",
            )
        if status is not None:
            hint = "Nothing was committed. Run it again later." if status >= 500 or status == 429 else ""
            return NetworkError(
                "publish-failed", f"cannot {what}: {self.endpoint} answered {status}: {said}", hint=hint
            )
        return NetworkError(
            "publish-unreachable",
            f"cannot {what}: {said}",
            hint="Check the network and HF_ENDPOINT. Run it without --yes to see where the repository is.",
        )


def _commit(found: object, what: str) -> str:
    if not isinstance(found, str) or not re.fullmatch(r"[0-9a-f]{40}", found):
        raise NetworkError(
            "publish-answer",
            f"cannot {what}: the hub names the commit {found!r:.80}, expected 40 hexadecimal digits",
            hint="Check HF_ENDPOINT. Run it without --yes to see where the repository is.",
        )
    return found


def _chain(error: BaseException) -> Iterator[BaseException]:
    found: BaseException | None = error
    while found is not None:
        yield found
        found = found.__cause__


def _root(error: Exception) -> BaseException:
    """What the library wraps in errors of its own, where that is an answer; else the innermost error."""
    from huggingface_hub.errors import HfHubHTTPError

    chain = list(_chain(error))
    return next((each for each in chain if isinstance(each, HfHubHTTPError)), chain[-1])


def _status(error: BaseException) -> int | None:
    from huggingface_hub.errors import HfHubHTTPError

    for each in _chain(error):
        if isinstance(each, HfHubHTTPError):
            return int(each.response.status_code)
    return None
