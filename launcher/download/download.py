"""`--download`: finds out what a source offers, gets it, proves it, and only then gives it its name."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self, TextIO

from launcher.download.fetch import Expected, Fetch, Reporting
from launcher.download.hub import HubPlace, LocalFolder, Place, Release, Trust, WebFolder, read_release, read_single
from launcher.download.model_store import model_folder
from launcher.download.part_file import PartFile, write_atomically
from launcher.download.sources import HubSource, PathSource, Source, UrlSource, hub_source, is_offline, parse_source
from launcher.download.transport import Retries, Surroundings, Transport
from launcher.engine import Package
from launcher.errors import Cancelled, MindnanoError, NetworkError, PackageError, TrustError, UsageError
from launcher.integrity.claims import METADATA
from launcher.integrity.hashing import sha256_file
from launcher.integrity.publisher import Publisher, read_publisher
from launcher.integrity.release_memory import ReleaseMemory
from launcher.integrity.signature import SUFFIX
from launcher.messages import Catalogue
from launcher.options.parse import Options
from launcher.progress import Progress, format_bytes, format_seconds
from launcher.system import SystemView


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """What a source offers.

    Attributes:
        source: where it comes from, as people may see it.
        target: the file that it becomes.
        size: bytes, None where nobody said.
        free: bytes that are free where it goes, None where that is unknown.
    """

    source: str
    target: Path
    size: int | None
    free: int | None


def run_download(
    options: Options,
    environ: Mapping[str, str],
    texts: Catalogue,
    system: SystemView,
    *,
    surroundings: Surroundings | None = None,
    publisher: Publisher | None = None,
) -> int:
    """`--download [SOURCE]`: prints the path of the package on stdout, everything else on stderr.

    Raises:
        UsageError, PackageError, ResourceError, NetworkError, BusyError, TrustError, Cancelled: why there is none.
    """
    with Download(options, environ, texts, system, surroundings=surroundings, publisher=publisher) as download:
        print(download.run())
    return 0


def wanted_source(options: Options, environ: Mapping[str, str], publisher: Publisher) -> Source:
    """The source that the options name, or the publisher's repository.

    Raises:
        UsageError: it is none, or none is named and this build has no publisher.
        PackageError: it is a path where nothing is.
    """
    plain_http = options.sha256 is not None
    if options.operand is not None:
        return parse_source(options.operand, environ, plain_http=plain_http)
    if publisher.repository is None:
        raise UsageError(
            "source-missing",
            "no source is named, and this build has no publisher's repository",
            hint="--download ORG/NAME, --download https://.../FILE.l3r, or --download FOLDER",
        )
    return hub_source(publisher.repository, None, environ, plain_http=plain_http)


class Download:
    """One download. A context manager: keeps connections open between `offer` and `run`."""

    def __init__(
        self,
        options: Options,
        environ: Mapping[str, str],
        texts: Catalogue,
        system: SystemView,
        *,
        surroundings: Surroundings | None = None,
        publisher: Publisher | None = None,
        err: TextIO | None = None,
    ) -> None:
        """Names the source; touches no network.

        Raises:
            UsageError, PackageError: as `wanted_source`.
            NetworkError: the source is in the network, which is not to be used.
        """
        self._publisher = read_publisher() if publisher is None else publisher
        self._source = wanted_source(options, environ, self._publisher)
        if not isinstance(self._source, PathSource) and (options.offline or is_offline(environ)):
            raise NetworkError(
                "network-offline",
                f"{self._source} is in the network, and --offline or HF_HUB_OFFLINE forbids it",
                hint="copy the release from another machine and give its folder: --download FOLDER",
            )
        self._sha256 = options.sha256
        self._authorities = options.cacert
        self._folder = model_folder(options, environ)
        self._environ = environ
        self._texts = texts
        self._system = system
        self._surroundings = Surroundings() if surroundings is None else surroundings
        self._err = sys.stderr if err is None else err
        self._open = ExitStack()
        self._transport: Transport | None = None
        self._release: Release | None = None
        self._place: Place | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._open.close()

    def offer(self) -> Offer:
        """Asks the source what it has.

        Raises:
            NetworkError, PackageError, TrustError: it has nothing that could be used.
        """
        release = self._look()
        target = self._target(release)
        space = self._system.host.space(str(target.parent))
        return Offer(
            source=str(self._source),
            target=target,
            size=release.expected.size,
            free=None if space is None else space.free,
        )

    def run(self) -> Path:
        """Gets the package and what belongs beside it; returns its path.

        Raises:
            NetworkError, PackageError, ResourceError, BusyError, TrustError, UsageError: it cannot be had.
            Cancelled: it was interrupted; what is here stays for the next run.
        """
        part: PartFile | None = None
        try:
            release = self._look()
            target = self._target(release)
            self._say("download-from", source=self._source, path=target)
            part = PartFile(target)
            with part:
                self._get(release, part)
        except KeyboardInterrupt as interrupt:
            kept = "" if part is None or not part.size else f"; {format_bytes(part.size)} are kept in {part.path}"
            raise Cancelled(
                "download-stopped", f"the download was stopped{kept}", hint="run the same command to continue"
            ) from interrupt
        self._say_trust(release)
        return target

    def _get(self, release: Release, part: PartFile) -> None:
        target = part.target
        local = self._local_package(release)
        if local is not None and target.exists() and local.samefile(target):
            raise UsageError("download-same", f"{local} is where it would be copied to", hint=f"--model {local}")
        self._require_no_loss_of_trust(release, target.parent)
        if self._is_here(release.expected, target):
            self._write_small(release, target.parent)
            self._say("download-already", path=target)
            return
        fetch = Fetch(part, release.expected, self._system, self._reporting())
        if local is not None:
            fetch.copy(local)
            where = str(local)
        else:
            if part.size:
                self._say("download-resume", done=format_bytes(part.size))
            fetch.download(self._web(), self._url(release))
            where = str(self._source)
        fetch.prove(where, self._verify_contents if release.trust is Trust.NOBODY else None)
        # First what belongs beside it, so that a package is never without.
        self._write_small(release, target.parent)
        part.publish()
        if release.signed is not None:
            ReleaseMemory.of(self._environ).remember(*release.signed)

    def _look(self) -> Release:
        if self._release is None:
            found = self._find()
            self._release = found if self._sha256 is None else _with_given(found, self._sha256)
        return self._release

    def _find(self) -> Release:
        source, keys = self._source, self._publisher.keys
        if isinstance(source, HubSource):
            self._place = HubPlace(source, self._web(), self._retries())
        elif isinstance(source, UrlSource):
            base = source.url.partition("?")[0]
            base = base if source.is_folder else base.rpartition("/")[0] + "/"
            self._place = WebFolder(base, self._web(), self._retries())
        else:
            self._place = LocalFolder(source.path if source.path.is_dir() else source.path.parent)
        single = _single(source)
        if single is not None:
            return read_single(self._place, single, keys)
        found = read_release(self._place, keys)
        if found.signed is not None:
            ReleaseMemory.of(self._environ).require_not_older(*found.signed)
        return found

    def _target(self, release: Release) -> Path:
        """A release has a folder of its own, for the lists that belong to it; a single file has none."""
        source = self._source
        if isinstance(source, HubSource):
            folder = self._folder / source.folder
        elif _single(source) is not None:
            folder = self._folder
        else:
            name = source.name if isinstance(source, UrlSource) else source.path.resolve().name
            folder = self._folder / (name.lstrip(".-") or "release")
        return folder / Path(release.package).name

    def _local_package(self, release: Release) -> Path | None:
        return self._place.folder / release.package if isinstance(self._place, LocalFolder) else None

    def _url(self, release: Release) -> str:
        if isinstance(self._source, UrlSource) and not self._source.is_folder:
            return self._source.url
        assert isinstance(self._place, WebFolder)
        return self._place.url(release.package)

    def _is_here(self, expected: Expected, target: Path) -> bool:
        """Whether the target has the expected bytes already.

        Raises:
            UsageError: it is there, and nothing says whether it has them.
        """
        if not target.is_file():
            return False
        if expected.sha256 is None:
            raise UsageError(
                "download-exists",
                f"{target} exists, and nothing says whether it is the same file",
                hint="give --sha256 with the digest that it should have, or move it away first",
            )
        size = target.stat().st_size
        if expected.size not in {None, size}:
            return False
        label = self._texts("download-label-check", name=target.name)
        with target.open("rb") as file, Progress(label, size, stream=self._err, texts=self._texts) as progress:

            def report(done: int, _total: int) -> bool:
                progress.update(done)
                return False

            return sha256_file(file.fileno(), progress=report).digest == expected.sha256

    def _verify_contents(self, path: Path) -> None:
        label = self._texts("download-label-verify", name=path.name)
        with (
            Package(path) as package,
            Progress(label, path.stat().st_size, stream=self._err, texts=self._texts) as progress,
        ):
            package.verify(lambda done, _: progress.update(done))
            progress.update(path.stat().st_size)

    def _require_no_loss_of_trust(self, release: Release, folder: Path) -> None:
        """Refuses to put a release that nobody signed in the place of one that is signed.

        Raises:
            TrustError: it would.
        """
        if _single(self._source) is not None or release.trust in {Trust.SIGNED, Trust.GIVEN}:
            return
        if self._publisher.keys and any((folder / name).exists() for name in METADATA if name.endswith(SUFFIX)):
            raise TrustError(
                "release-unsigned",
                f"the release in {folder} is signed, the one of {self._source} is not",
                hint=f"use another source; if you do want this one, remove {folder} first",
            )

    def _write_small(self, release: Release, folder: Path) -> None:
        for name, data in release.small.items():
            write_atomically(folder / name, data)
        if _single(self._source) is not None:
            return
        # Lists that an earlier release had and this one has not would be taken for those of this one.
        for name in METADATA - release.small.keys():
            with suppress(OSError):
                (folder / name).unlink()

    def _web(self) -> Transport:
        if self._transport is None:
            hub = self._source if isinstance(self._source, HubSource) else None
            self._transport = self._open.enter_context(
                Transport(
                    self._environ,
                    self._surroundings,
                    hub=hub,
                    plain_http=self._sha256 is not None,
                    authorities=self._authorities,
                )
            )
        return self._transport

    def _retries(self) -> Retries:
        return Retries(self._surroundings, self._say_retry)

    def _reporting(self) -> Reporting:
        def start(work: str, name: str, total: int) -> Progress:
            return Progress(
                self._texts(f"download-label-{work}", name=name), total, stream=self._err, texts=self._texts
            )

        return Reporting(start=start, retry=self._say_retry, restart=self._say_restart)

    def _say_retry(self, error: MindnanoError, pause: float) -> None:
        self._say("download-retry", reason=error.message, pause=format_seconds(pause))

    def _say_restart(self, slug: str) -> None:
        self._say("download-restart", reason=self._texts(slug))

    def _say_trust(self, release: Release) -> None:
        self._say(f"download-trust-{release.trust.value}")
        if release.unchecked:
            self._say("download-unchecked")

    def _say(self, slug: str, /, **facts: object) -> None:
        print(self._texts(slug, **facts), file=self._err, flush=True)


def _single(source: Source) -> str | None:
    """Name of the file where a source is a single one, None where it is a release."""
    if isinstance(source, UrlSource) and not source.is_folder:
        return source.name
    if isinstance(source, PathSource) and not source.path.is_dir():
        if not source.path.is_file():
            raise PackageError("package-unreadable", f"{source.path} is neither a file nor a folder")
        return source.path.name
    return None


def _with_given(release: Release, digest: str) -> Release:
    """The release with the digest of `--sha256` in place of one that its own lists say.

    Raises:
        TrustError: they say another one.
    """
    listed = release.expected.sha256
    if listed is not None and listed != digest:
        raise TrustError(
            "digest-differs",
            f"the source lists {release.package} with SHA-256 {listed}, --sha256 expects {digest}",
            hint="do not use this source, or correct --sha256",
        )
    trust = release.trust if release.trust is Trust.SIGNED else Trust.GIVEN
    return replace(release, expected=Expected(size=release.expected.size, sha256=digest), trust=trust)
