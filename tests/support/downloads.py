"""Runs the real download with real options, short waits and a folder of its own."""

from __future__ import annotations

import io
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass, field, replace
from hashlib import sha256
from pathlib import Path
from random import Random

from launcher.download.download import run_download
from launcher.download.transport import Surroundings
from launcher.host import RealHost, Space
from launcher.integrity.checksums import format_checksums
from launcher.integrity.publisher import Publisher
from launcher.messages import Catalogue, Language
from launcher.options.parse import parse
from launcher.system import SystemView
from tests.support.fault_server import FaultServer
from tests.support.releases import manifest_of

NAME = "ling3-tiny-w4.l3r"
NOBODY = Publisher(repository=None, keys=())


def random_bytes(count: int, seed: int = 1) -> bytes:
    """The same bytes every time."""
    return Random(seed).randbytes(count)


def digest(data: bytes) -> str:
    """SHA-256 in hexadecimal."""
    return sha256(data).hexdigest()


def release(
    package: bytes, *, name: str = NAME, version: str = "1.0", extra: Mapping[str, bytes] = {}
) -> dict[str, bytes]:
    """The files of a release: the package, a binary that nobody downloads, a notice, and the lists."""
    files = {name: package, "mindnano-infer": b"program", "NOTICE": b"notice\n", **extra}
    files["MANIFEST.json"] = manifest_of(files, release=version).to_json()
    files["SHA256SUMS"] = format_checksums({path: digest(data) for path, data in files.items()})
    return files


class SmallDisk(RealHost):
    """A machine with this many bytes free."""

    def __init__(self, free: int) -> None:
        self._free = free

    def space(self, path: str) -> Space | None:
        return Space(total=1 << 40, free=self._free)


@dataclass(slots=True, kw_only=True)
class Bench:
    """A place to download to. `waits` has every pause that a retry asked for."""

    folder: Path
    environ: dict[str, str] = field(default_factory=dict)
    publisher: Publisher = NOBODY
    system: SystemView = field(default_factory=SystemView)
    surroundings: Surroundings = field(default_factory=Surroundings)
    waits: list[float] = field(default_factory=list)
    out: str = ""
    err: str = ""

    def __post_init__(self) -> None:
        self.environ.setdefault("HOME", str(self.folder / "home"))
        self.surroundings = replace(
            self.surroundings, connect_seconds=10.0, read_seconds=10.0, tries=4, sleep=self.waits.append
        )

    def get(self, source: str | None, *words: str) -> Path:
        """Downloads, and returns the path that was printed; `out` and `err` keep what was written."""
        given = [
            "--download",
            *([] if source is None else [source]),
            "--model-dir",
            str(self.folder / "models"),
            *words,
        ]
        options = parse(given, self.environ, files=())
        out, err = io.StringIO(), io.StringIO()
        try:
            with redirect_stdout(out), redirect_stderr(err):
                code = run_download(
                    options,
                    self.environ,
                    Catalogue(Language.ENGLISH),
                    self.system,
                    surroundings=self.surroundings,
                    publisher=self.publisher,
                )
        finally:
            self.out, self.err = out.getvalue(), err.getvalue()
        assert code == 0
        return Path(self.out.rstrip("\n"))

    def names(self) -> list[str]:
        """Every file below the model folder."""
        root = self.folder / "models"
        return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


PACKAGE = random_bytes(300_000)
REPOSITORY = "some-org/some-model"
COMMIT = "c0ffee" * 6 + "abcd"


def serve(server: FaultServer, files: dict[str, bytes], folder: str = "/release/") -> None:
    for path, data in files.items():
        server.add(folder + path, data)
