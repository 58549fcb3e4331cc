"""One file, from a server or from this machine, into a part: continued where it can be, proven before it is used."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from launcher.download.http_errors import TryAgain, cut, shown_words
from launcher.download.part_file import Origin, PartFile
from launcher.download.sources import shown_url
from launcher.download.transport import Reply, Retries, Transport
from launcher.errors import MindnanoError, NetworkError, PackageError, ResourceError
from launcher.progress import Progress, format_bytes
from launcher.system import SystemView

SPACE_MARGIN: Final = 64 << 20
"""Bytes that stay free beside a download."""
_READ_BYTES: Final = 1 << 20
_SPACE_CHECK_BYTES: Final = 64 << 20
_LEAST_GAIN: Final = 1 << 20
_RANGE: Final = re.compile(r"bytes (\d{1,18})-(\d{1,18})/(\d{1,18}|\*)", re.ASCII)
_UNSATISFIED: Final = re.compile(r"bytes \*/(\d{1,18})", re.ASCII)
_HTML: Final = "text/html"


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """Size in bytes and SHA-256 of a file, each None where nobody said."""

    size: int | None
    sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reporting:
    """How a transfer speaks to people.

    Attributes:
        start: begins the report of a piece of work: ``"download"``, ``"check"`` or ``"copy"``, the file, the bytes.
        retry: says that there is another try, why, and after how many seconds.
        restart: says that the bytes so far are of no use; gets the slug of a message that says why.
    """

    start: Callable[[str, str, int], Progress]
    retry: Callable[[MindnanoError, float], None]
    restart: Callable[[str], None]


class Fetch:
    """The transfer of one file into an open part."""

    def __init__(self, part: PartFile, expected: Expected, system: SystemView, reporting: Reporting) -> None:
        self._part = part
        self._expected = expected
        self._system = system
        self._reporting = reporting
        self._progress: Progress | None = None
        self._resumed = 0
        self._base = 0

    def download(self, transport: Transport, url: str) -> None:
        """Gets the file from a server; every byte counts into the digest, which `prove` compares.

        Raises:
            NetworkError: it cannot be had.
            PackageError: what is offered is not of the expected size.
            ResourceError: the disk is too small.
        """
        retries = Retries(transport.surroundings, self._reporting.retry)
        self._drop_useless(shown_url(url))
        if self._expected.size is not None:
            self._require_space(self._expected.size - self._part.size)
        self._resumed = best = self._part.size
        if best:
            with self._reporting.start("check", self._part.target.name, best) as progress:
                self._part.sha256(progress.advance)
        try:
            while True:
                try:
                    self._attempt(transport, url)
                    return
                except TryAgain as passing:
                    failure = passing
                # Only what no earlier try had reached is a gain: else a server could keep this running for ever.
                if self._part.size >= best + _LEAST_GAIN:
                    best = self._part.size
                    retries.succeed()
                retries.wait(failure)
        finally:
            self._end_progress()

    def copy(self, source: Path) -> None:
        """Copies a file of this machine.

        Raises:
            PackageError: it cannot be read, or is not of the expected size.
            ResourceError: the disk is too small.
        """
        self._part.restart()
        try:
            # O_NONBLOCK: opening a pipe must not wait for a writer.
            with os.fdopen(os.open(source, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
                status = os.fstat(file.fileno())
                if not stat.S_ISREG(status.st_mode):
                    raise PackageError("package-unreadable", f"{source} is not a regular file")
                size = status.st_size
                self._require_size(size, str(source), None)
                self._require_space(size)
                self._part.note(Origin(url=str(source), etag=None, size=size, sha256=self._expected.sha256))
                with self._reporting.start("copy", self._part.target.name, size) as progress:
                    while data := file.read(_READ_BYTES):
                        self._part.append(data)
                        progress.advance(len(data))
                if self._part.size != size:
                    raise PackageError("package-unreadable", f"{source} changed while it was copied")
        except OSError as error:
            raise PackageError(
                "package-unreadable", f"cannot read {source}: {error.strerror}", hint="check the disk"
            ) from error

    def prove(self, source: str, inspect: Callable[[Path], None] | None) -> None:
        """Compares size and digest with what is expected; a file that fails is kept as NAME.bad.

        Args:
            source: where the bytes came from, for the error.
            inspect: looks into a file that nobody vouches for, and raises PackageError; None where somebody does.

        Raises:
            PackageError: the bytes are not those that are expected.
        """
        part, expected = self._part, self._expected
        digest = part.sha256(lambda _count: None)  # every byte went through it as it came
        if expected.size is not None and part.size != expected.size:
            found, wanted = f"{part.size} bytes", f"{expected.size} bytes"
        elif expected.sha256 is not None and digest != expected.sha256:
            found, wanted = f"SHA-256 {digest}", expected.sha256
        else:
            if inspect is not None:
                self._inspect(inspect)
            return
        again = f" ({format_bytes(self._resumed)} were left by an earlier run)" if self._resumed else ""
        bad = part.reject()
        raise PackageError(
            "download-damaged",
            f"{part.target.name} from {source} has {found}, expected {wanted}{again}; kept as {bad}",
            hint="run the same command to start anew; if it fails again, use another source",
        )

    def _inspect(self, inspect: Callable[[Path], None]) -> None:
        try:
            inspect(self._part.path)
        except PackageError as error:
            bad = self._part.reject()
            raise PackageError(
                "download-damaged",
                f"{self._part.target.name} is no sound package: {error.message}; kept as {bad}",
                hint="check the source",
            ) from error

    def _drop_useless(self, url: str) -> None:
        part, expected, origin = self._part, self._expected, self._part.origin
        if part.size == 0:
            return
        slug = ""
        if origin is None:
            slug = "download-restart-unknown"
        elif expected.sha256 != origin.sha256:
            slug = "download-restart-version"
        elif expected.sha256 is None and (origin.url != url or origin.etag is None):
            slug = "download-restart-unproven"
        elif expected.size is not None and part.size > expected.size:
            slug = "download-restart-longer"
        if slug:
            self._restart(slug)

    def _attempt(self, transport: Transport, url: str) -> None:
        part = self._part
        known = self._expected.size if part.origin is None else part.origin.size
        if part.size and part.size == known and self._expected.sha256 is not None:
            return  # `prove` decides
        headers = {}
        if part.size:
            headers["Range"] = f"bytes={part.size}-"
            origin = part.origin
            if origin is not None and origin.etag is not None and origin.url == shown_url(url):
                headers["If-Range"] = origin.etag
        with transport.open(url, headers) as reply:
            if reply.status == 416:
                self._unsatisfied(reply, url)
                return
            total = self._partial(reply, url) if reply.status == 206 else self._whole(reply)
            self._require_size(total, shown_url(url), reply.headers.get("Content-Type"))
            if total is None:
                total = self._expected.size
            self._require_space(None if total is None else total - part.size)
            part.note(Origin(url=shown_url(url), etag=_strong(reply), size=total, sha256=self._expected.sha256))
            self._receive(reply, url, total)

    def _whole(self, reply: Reply) -> int | None:
        if self._part.size:
            self._restart("download-restart-server")
        return reply.length

    def _partial(self, reply: Reply, url: str) -> int | None:
        """Checks a 206 answer; returns the size of the whole file."""
        part = self._part
        text = reply.headers.get("Content-Range", "")
        match = _RANGE.fullmatch(text.strip())
        first, last = (int(match[1]), int(match[2])) if match is not None else (-1, -1)
        total = int(match[3]) if match is not None and match[3] != "*" else None
        sound = part.size > 0 and first == part.size and last >= first and (total is None or last < total)
        if sound and reply.length is not None and reply.length != last - first + 1:
            sound = False
        etag = part.origin.etag if part.origin is not None else None
        if sound and self._expected.sha256 is None and _strong(reply) != etag:
            self._restart("download-restart-version")
            raise cut(urlsplit(url).hostname or "", "the file at the server has changed")
        if not sound:
            wanted = f"bytes {part.size}-"
            if part.size:
                self._restart("download-restart-range")
            raise TryAgain(
                NetworkError(
                    "http-range",
                    f"{shown_url(url)} answers with range {shown_words(text)!r}, expected {wanted}",
                    hint="use another source",
                )
            )
        return part.origin.size if total is None and part.origin is not None else total

    def _unsatisfied(self, reply: Reply, url: str) -> None:
        """A 416 answer: either everything is here already, or the part belongs to a file that is gone."""
        match = _UNSATISFIED.fullmatch(reply.headers.get("Content-Range", "").strip())
        total = int(match[1]) if match is not None else None
        part = self._part
        complete = part.size > 0 and total == part.size and self._expected.size in {None, total}
        if complete and (self._expected.sha256 is not None or _strong(reply) in {None, _etag(part)}):
            return
        if part.size:
            self._restart("download-restart-range")
        raise TryAgain(
            NetworkError(
                "http-range",
                f"{shown_url(url)} has no byte {part.size} (HTTP 416), expected the file",
                hint="use another source",
            )
        )

    def _receive(self, reply: Reply, url: str, total: int | None) -> None:
        part = self._part
        if self._progress is None and total is not None:
            self._base = part.size  # rate and remaining time are about what is still to come
            self._progress = self._reporting.start("download", part.target.name, total - part.size)
        checked = part.size
        while data := reply.read(_READ_BYTES):
            if total is not None and part.size + len(data) > total:
                self._require_size(part.size + len(data), shown_url(url), reply.headers.get("Content-Type"))
                raise cut(urlsplit(url).hostname or "", f"more than {total} bytes came")
            part.append(data)
            if self._progress is not None:
                self._progress.update(part.size - self._base)
            if part.size - checked >= _SPACE_CHECK_BYTES:
                checked = part.size
                self._require_space(None if total is None else total - part.size)
        if total is not None and part.size < total:
            raise cut(urlsplit(url).hostname or "", f"{part.size} of {total} bytes came")

    def _require_size(self, size: int | None, source: str, content_type: str | None) -> None:
        expected = self._expected.size
        page = content_type is not None and content_type.lower().startswith(_HTML)
        if (size is None and not page) or (size is not None and expected in {None, size}):
            return
        found = "no stated size" if size is None else f"{size} bytes"
        wanted = "a package" if expected is None else f"{expected} bytes"
        raise PackageError(
            "download-size",
            f"{source} has {found}, expected {wanted}" + ("; it is a web page" if page else ""),
            hint=(
                "the network may want a login first; open any page in a browser"
                if page
                else "the list of the release and the file do not belong together; use another source"
            ),
        )

    def _require_space(self, needed: int | None) -> None:
        """Refuses before writing what would not fit; the margin alone where the size is unknown."""
        space = self._system.host.space(str(self._part.target.parent))
        if space is None or needed == 0:
            return
        wanted = (needed or 0) + SPACE_MARGIN
        if space.free < wanted:
            raise ResourceError(
                "disk-space",
                f"{self._part.target.parent} has {format_bytes(space.free)} free, expected {format_bytes(wanted)}",
                hint="free some space, or choose another disk with --model-dir",
            )

    def _restart(self, slug: str) -> None:
        self._end_progress()
        self._part.restart()
        self._resumed = 0
        self._reporting.restart(slug)

    def _end_progress(self) -> None:
        if self._progress is not None:
            self._progress.close()
            self._progress = None


def _strong(reply: Reply) -> str | None:
    """The strong validator of an answer; a weak one says nothing about bytes."""
    etag = reply.headers.get("ETag", "").strip()
    return etag if etag.startswith('"') and etag.endswith('"') and 2 < len(etag) < 1024 and etag.isprintable() else None


def _etag(part: PartFile) -> str | None:
    return None if part.origin is None else part.origin.etag
