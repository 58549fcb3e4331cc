"""Where a model can come from: a Hugging Face repository, a URL, a file or a folder.

Read from text without touching the network. Secrets are never part of a source's name, so it can be shown.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import SplitResult, quote, unquote, urlsplit

from launcher.errors import PackageError, UsageError
from launcher.integrity.release_files import path_fault, portable_path_fault, printable, read_capped

PACKAGE_SUFFIX: Final = ".l3r"
RELEASE_NAME: Final = "ling3-tiny-w4.l3r"
"""The released package; where there are several packages, this one is meant."""
PUBLIC_ENDPOINT: Final = "https://huggingface.co"
_ENDPOINT: Final = "HF_ENDPOINT"
DEFAULT_REVISION: Final = "main"
_REPOSITORY: Final = re.compile(
    r"(?P<owner>[A-Za-z0-9][A-Za-z0-9_.-]{0,95})/(?P<name>[A-Za-z0-9_][A-Za-z0-9_.-]{0,95})(?:@(?P<revision>[^@\s]+))?",
    re.ASCII,
)
_REVISION: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]{0,199}", re.ASCII)
_HOST: Final = re.compile(r"(?:[\w.-]+|\[[0-9A-Fa-f:.]+(?:%[\w.~-]+)?\])(?::[0-9]*)?")
_TOKEN: Final = re.compile(r"[!-~]{1,4096}", re.ASCII)
_TOKEN_BYTES: Final = 4096
_EXAMPLES: Final = "ORG/NAME[@revision], https://.../FILE.l3r, https://.../FOLDER/, or a file or folder on this machine"


@dataclass(frozen=True, slots=True, kw_only=True)
class HubSource:
    """A repository on Hugging Face or on a mirror of it.

    Attributes:
        repository: ``ORG/NAME``.
        revision: a branch, a tag or a commit.
        endpoint: scheme and host, without a slash at the end.
        token: for private repositories; None where there is none. It is shown nowhere.
    """

    repository: str
    revision: str
    endpoint: str
    token: str | None

    def __str__(self) -> str:
        return f"{self.page}@{self.revision}"

    def __repr__(self) -> str:
        return f"HubSource({self})"

    @property
    def page(self) -> str:
        """The page on which a licence is read and accepted."""
        return f"{self.endpoint}/{self.repository}"

    @property
    def folder(self) -> str:
        """Name of the folder that the release gets."""
        return self.repository.replace("/", "--")


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlSource:
    """A package file, or the folder of a release, on any web server."""

    url: str

    def __str__(self) -> str:
        return shown_url(self.url)

    @property
    def is_folder(self) -> bool:
        """Whether it is a folder: the path ends with a slash."""
        return urlsplit(self.url).path.endswith("/")

    @property
    def name(self) -> str:
        """Last part of the path, or the host where there is none."""
        parts = urlsplit(self.url)
        return PurePosixPath(unquote(parts.path)).name or (parts.hostname or "")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSource:
    """A package file or a release folder on this machine."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)


Source = HubSource | UrlSource | PathSource


def parse_source(text: str, environ: Mapping[str, str], *, plain_http: bool = False) -> Source:
    """What a text names.

    Args:
        plain_http: whether http is allowed beyond this machine, because the caller knows the digest of what comes.

    Raises:
        UsageError: it names nothing, names two things, or asks for an unprotected transfer.
        PackageError: it names a path where nothing is.
    """
    if not text or text != text.strip() or not text.isprintable():
        raise _unknown(text)
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
        return _from_url(text, environ, plain_http=plain_http)
    match = _REPOSITORY.fullmatch(text)
    if match is not None and not text.endswith(PACKAGE_SUFFIX):
        if match["revision"] is None and Path(text).exists():
            raise UsageError(
                "source-ambiguous",
                f"{text} is a path on this machine and could be a repository too",
                hint=f"write ./{text} for the path, or {text}@{DEFAULT_REVISION} for the repository",
            )
        return hub_source(f"{match['owner']}/{match['name']}", match["revision"], environ, plain_http=plain_http)
    path = Path(text).expanduser()
    if not path.exists():
        looks_local = text.startswith((".", "/", "~")) or "/" in text or text.endswith(PACKAGE_SUFFIX)
        if not looks_local:
            raise _unknown(text)
        raise PackageError("package-missing", f"{path} does not exist", hint=f"a source is {_EXAMPLES}")
    if not path.is_dir() and path.suffix != PACKAGE_SUFFIX:
        raise UsageError("source-unknown", f"{path} is neither a package (*{PACKAGE_SUFFIX}) nor a folder")
    return PathSource(path=path)


def hub_source(
    repository: str, revision: str | None, environ: Mapping[str, str], *, plain_http: bool = False
) -> HubSource:
    """A repository at the endpoint and with the token of the environment (HF_ENDPOINT, HF_TOKEN, HF_HOME).

    Raises:
        UsageError: repository, revision, endpoint or token are not of the right form.
    """
    match = _REPOSITORY.fullmatch(repository)
    wanted = DEFAULT_REVISION if revision is None else revision
    if match is None or match["revision"] is not None or ".." in repository:
        raise _unknown(repository)
    if _REVISION.fullmatch(wanted) is None or ".." in wanted:
        raise UsageError("source-unknown", f"{wanted!r} is no name of a revision", hint=f"a source is {_EXAMPLES}")
    endpoint = environ.get(_ENDPOINT, "").strip().rstrip("/") or PUBLIC_ENDPOINT
    parts = _checked(endpoint, plain_http=plain_http, what=_ENDPOINT)
    if parts.path or parts.query or parts.fragment:
        raise _no_endpoint(f"{_ENDPOINT} is {endpoint}, expected scheme and host")
    return HubSource(repository=repository, revision=wanted, endpoint=endpoint, token=hub_token(environ))


def hub_token(environ: Mapping[str, str]) -> str | None:
    """HF_TOKEN, or the token that the Hugging Face tools keep in HF_TOKEN_PATH or HF_HOME; None where there is none.

    Raises:
        UsageError: it holds characters that no token has.
        PackageError: the file cannot be read.
    """
    token = environ.get("HF_TOKEN", "").strip()
    where = "HF_TOKEN"
    if not token:
        cache = environ.get("XDG_CACHE_HOME") or str(_home(environ) / ".cache")
        home = environ.get("HF_HOME") or str(Path(cache) / "huggingface")
        path = Path(environ.get("HF_TOKEN_PATH") or str(Path(home) / "token")).expanduser()
        where = str(path)
        token = (read_capped(path, _TOKEN_BYTES) or b"").decode(errors="replace").strip()
    if not token:
        return None
    if _TOKEN.fullmatch(token) is None:
        raise UsageError("token-invalid", f"{where} holds something that is no token", hint="copy the token again")
    return token


def is_offline(environ: Mapping[str, str]) -> bool:
    """Whether HF_HUB_OFFLINE forbids the network."""
    return environ.get("HF_HUB_OFFLINE", "").strip().lower() in {"1", "true", "yes", "on"}


def is_loopback(host: str) -> bool:
    """Whether a host is this machine by its name alone."""
    name = host.strip("[]").lower().rstrip(".")
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name.partition("%")[0]).is_loopback
    except ValueError:
        return False


def has_plain_host(parts: SplitResult) -> bool:
    """Whether the host is a name or an address, so that everybody reads the same one out of the URL.

    Others end a host at a backslash, where `urlsplit` does not: ``https://127.0.0.1\\.example.com`` would be judged as
    one machine and asked at another.
    """
    return _HOST.fullmatch(parts.netloc) is not None


def shown_url(url: str) -> str:
    """A URL without user, query and fragment, which may hold secrets."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    scheme = f"{parts.scheme}://" if parts.scheme else ""
    return printable(f"{scheme}{host}{parts.path}")


def same_origin(one: str, other: str) -> bool:
    """Whether two URLs have the same scheme, host and port."""
    return _origin(one) == _origin(other)


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url)
    usual = {"https": 443, "http": 80}.get(parts.scheme)
    return parts.scheme, (parts.hostname or "").lower(), parts.port or usual


def _home(environ: Mapping[str, str]) -> Path:
    return Path(environ["HOME"]) if environ.get("HOME") else Path.home()


def _from_url(text: str, environ: Mapping[str, str], *, plain_http: bool) -> Source:
    parts = _checked(text, plain_http=plain_http, what="the source")
    page = _hub_page(parts, environ, plain_http=plain_http)
    if page is not None:
        return page
    url = parts._replace(fragment="").geturl()
    source = UrlSource(url=url)
    if source.is_folder:
        if parts.query:
            raise UsageError("source-unknown", f"{source} is a folder and cannot have a query", hint="leave out ?...")
        if (path_fault(source.name) is not None and source.name != "..") or not source.name.isprintable():
            raise UsageError("source-unknown", f"the last part of {source} can be no name of a folder")
        return source
    if not source.name.endswith(PACKAGE_SUFFIX) or portable_path_fault(source.name) is not None:
        raise UsageError(
            "source-unknown",
            f"{source} is neither a package (*{PACKAGE_SUFFIX}) nor a folder",
            hint="the URL of a folder ends with /",
        )
    return source


def _hub_page(parts: SplitResult, environ: Mapping[str, str], *, plain_http: bool) -> Source | None:
    """The page of a repository or of a file in it, as people copy it from a browser; None for any other URL."""
    url = parts.geturl()
    endpoint = environ.get(_ENDPOINT, "").strip().rstrip("/") or PUBLIC_ENDPOINT
    if not any(same_origin(url, known) for known in (endpoint, PUBLIC_ENDPOINT)):
        return None
    names = [unquote(name) for name in parts.path.strip("/").split("/")]
    if len(names) == 2 or (len(names) >= 4 and names[2] == "tree"):
        revision = "/".join(names[3:]) or None
        return hub_source("/".join(names[:2]), revision, environ, plain_http=plain_http)
    if len(names) >= 5 and names[2] == "blob":
        path = quote("/".join([*names[:2], "resolve", *names[3:]]))
        return UrlSource(url=f"{parts.scheme}://{parts.netloc}/{path}")
    return None


def _checked(url: str, *, plain_http: bool, what: str) -> SplitResult:
    """The parts of a URL that may be asked.

    Raises:
        UsageError: no http(s), no host, a user or password inside, or http to another machine.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise UsageError("source-unknown", f"{what} is no URL: {error}", hint=f"a source is {_EXAMPLES}") from error
    if parts.scheme not in {"http", "https"} or not parts.hostname or port == 0:
        problem = f"{what} is {shown_url(url)}, expected https and a host"
        if what == _ENDPOINT:
            raise _no_endpoint(problem)
        raise UsageError("source-unknown", problem, hint=f"a source is {_EXAMPLES}")
    if "@" in parts.netloc:
        raise UsageError(
            "source-unknown", f"{what} holds a user name or password", hint="leave it out; use HF_TOKEN for a token"
        )
    if not has_plain_host(parts):
        raise UsageError("source-unknown", f"{what} is {shown_url(url)}, whose host is no name and no address")
    if parts.scheme == "http" and not plain_http and not is_loopback(parts.hostname):
        raise UsageError(
            "source-insecure",
            f"{shown_url(url)} would be fetched without protection (http)",
            hint="use https, or give --sha256 with a digest that you trust",
        )
    return parts


def _no_endpoint(problem: str) -> UsageError:
    return UsageError("endpoint-invalid", problem, hint=f"e.g. {PUBLIC_ENDPOINT}")


def _unknown(text: str) -> UsageError:
    return UsageError("source-unknown", f"{printable(text)!r} is no source of a model", hint=f"a source is {_EXAMPLES}")
