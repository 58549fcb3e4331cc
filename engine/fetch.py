"""Source archives that the build needs: found in a folder, in the cache, on the system's package mirror or upstream.

An archive is known by its SHA-256 alone, so it does not matter who serves it.
"""

import hashlib
import http.client
import os
import re
import shutil
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from engine.errors import BuildError, UnreachableError

Report = Callable[[str], None]

_APT_HELPER = Path("/usr/lib/apt/apt-helper")
_CHUNK = 1 << 20
_TIMEOUT_S = 20.0
_PROGRESS_EVERY_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """A source archive.

    `names` are the file names it goes by, `pool` is its place in a Debian or Ubuntu archive, `other_urls` are asked
    where `url` does not have it.
    """

    names: tuple[str, ...]
    sha256: str
    size: int
    url: str
    pool: str
    other_urls: tuple[str, ...] = ()


def cache_root() -> Path:
    """The folder for what can be made again: MINDNANO_CACHE, XDG_CACHE_HOME/mindnano or ~/.cache/mindnano."""
    named = os.environ.get("MINDNANO_CACHE")
    if named:
        return Path(named).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mindnano"


def file_sha256(path: Path) -> str:
    """Lower-case hexadecimal SHA-256 of a file."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def obtain(archive: Archive, report: Report) -> Path:
    """The archive on this machine, its SHA-256 checked.

    Looks into the folder named by MINDNANO_SOURCES, then the cache, then downloads: from the mirrors that the system's
    own apt uses, then from upstream. Raises UnreachableError where none of them has it, BuildError
    where the named folder holds a file of that name with other content.
    """
    named = _from_named_folder(archive)
    if named is not None:
        return named
    cached = cache_root() / "sources" / f"{archive.sha256[:16]}-{archive.names[0]}"
    if cached.is_file():
        if file_sha256(cached) == archive.sha256:
            return cached
        report(f"{cached} does not have its expected content; downloading it again")
        cached.unlink()
    return _download(archive, cached, report)


def _from_named_folder(archive: Archive) -> Path | None:
    folder = os.environ.get("MINDNANO_SOURCES")
    if not folder:
        return None
    for name in archive.names:
        path = Path(folder).expanduser() / name
        if not path.is_file():
            continue
        found = file_sha256(path)
        if found != archive.sha256:
            raise BuildError(
                f"{path} has SHA-256 {found}, expected {archive.sha256}",
                hint="Replace the file, or unset MINDNANO_SOURCES to have it downloaded.",
            )
        return path
    return None


def _download(archive: Archive, target: Path, report: Report) -> Path:
    target.parent.mkdir(parents=True, exist_ok=True)
    failures: list[str] = []
    for url, transfer in _candidates(archive):
        partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
        report(f"downloading {archive.names[0]} ({archive.size / 1e6:.1f} MB) from {url}")
        try:
            transfer(url, partial, archive.size, report)
            found = file_sha256(partial)
            if found == archive.sha256:
                partial.replace(target)
                return target
            failures.append(f"{url}: SHA-256 {found}, expected {archive.sha256}")
        except (OSError, http.client.HTTPException) as error:
            failures.append(f"{url}: {error}")
        finally:
            partial.unlink(missing_ok=True)
    raise UnreachableError(
        f"{archive.names[0]} cannot be downloaded:\n  " + "\n  ".join(failures),
        hint=f"Put the file ({' or '.join(archive.names)}) into a folder and name the folder in MINDNANO_SOURCES.",
    )


Transfer = Callable[[str, Path, int, Report], None]


def _candidates(archive: Archive) -> Iterator[tuple[str, Transfer]]:
    if _APT_HELPER.is_file():
        for mirror in apt_mirrors():
            yield f"{mirror}/{archive.pool}", _transfer_by_apt
    for url in (archive.url, *archive.other_urls):
        yield url, _transfer_by_url


def apt_mirrors(root: Path = Path("/etc/apt")) -> list[str]:
    """Base addresses of the Debian and Ubuntu archives that this system's apt is set up for, without a final slash."""
    texts: list[str] = []
    for path in (root / "sources.list", *sorted((root / "sources.list.d").glob("*"))):
        if path.suffix not in (".list", ".sources"):
            continue
        try:
            texts.append(path.read_text(encoding="utf-8", errors="replace"))
        except OSError:
            continue  # unreadable or gone: one place fewer to ask
    addresses: dict[str, None] = {}
    for line in "\n".join(texts).splitlines():
        if line.lstrip().startswith("#"):
            continue
        for word in line.split():
            for address in _mirror_addresses(word):
                if re.search(r"/(debian|ubuntu|ubuntu-ports)(/|$)", address):
                    addresses.setdefault(address.rstrip("/"))
    return list(addresses)


def _mirror_addresses(word: str) -> list[str]:
    """The addresses that one word of an apt source stands for: itself, or the lines of a local mirror list."""
    if word.startswith(("http://", "https://")):
        return [word]
    if not word.startswith("mirror+file:"):
        return []
    try:
        lines = Path(word.removeprefix("mirror+file:")).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [line.split()[0] for line in lines if line.startswith(("http://", "https://"))]


def _transfer_by_apt(url: str, target: Path, size: int, report: Report) -> None:
    """Downloads with apt's own client, which knows the system's proxies and certificates."""
    command = [str(_APT_HELPER), "-o", "APT::Sandbox::User=root", "-o", f"Acquire::http::Timeout={_TIMEOUT_S:.0f}"]
    command += ["download-file", url, str(target)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        while True:
            try:
                _, stderr = process.communicate(timeout=_PROGRESS_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                if target.exists():
                    report(_progress(target.stat().st_size, size))
    if process.returncode != 0:
        lines = [line for line in stderr.splitlines() if line.startswith("E:")]
        raise OSError("; ".join(lines) or f"apt-helper ended with {process.returncode}")


def _transfer_by_url(url: str, target: Path, size: int, report: Report) -> None:
    request = urllib.request.Request(url, headers={"User-Agent": "mindnano-build"})
    next_report = time.monotonic() + _PROGRESS_EVERY_S
    with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as response, target.open("wb") as stream:
        done = 0
        while chunk := response.read(_CHUNK):
            done += len(chunk)
            if done > size:
                raise OSError(f"more than the expected {size} bytes")
            stream.write(chunk)
            if time.monotonic() >= next_report:
                report(_progress(done, size))
                next_report = time.monotonic() + _PROGRESS_EVERY_S


def _progress(done: int, size: int) -> str:
    return f"  {done / 1e6:.1f} of {size / 1e6:.1f} MB"


def replace_folder(fresh: Path, target: Path) -> None:
    """Puts a finished folder in place at once; where another process was faster, its equal result stays."""
    try:
        fresh.rename(target)
    except OSError:
        if not target.is_dir():
            raise
        shutil.rmtree(fresh)
