"""Python distributions that the portable file takes: those the launcher imports, and Nuitka, which compiles it.

Versions and digests are those of `requirements/run.txt` and `requirements/nuitka.txt`. pip fetches the files with the
settings that its user has, and accepts no file of another digest.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import tarfile
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from bundle.errors import BundleError
from bundle.stages import Stage
from bundle.workspace import Workspace

RUN_LOCK: Final = Path(__file__).parents[1] / "requirements" / "run.txt"
NUITKA_LOCK: Final = RUN_LOCK.with_name("nuitka.txt")

FILES: Final = "files"
"""Folder of a result with the files as they were fetched."""
SITE: Final = "site"
"""Folder of a result with the modules."""

PURE: Final = ("certifi", "charset-normalizer", "idna", "jinja2", "prompt-toolkit", "requests", "urllib3", "wcwidth")
# It has wheels for one processor each; they differ in the compiled part only, which stays out.
COMPILED: Final = ("markupsafe",)
PACKAGES: Final = (*PURE, *COMPILED)

_ANY: Final = ("--python-version=3.13", "--platform=any", "--implementation=py", "--abi=none")
_ONE: Final = ("--python-version=3.13", "--platform=manylinux2014_x86_64", "--implementation=cp", "--abi=cp313")
_LEFT_OUT: Final = (".so", ".c", ".pyi", ".pyc")
# What pip obeys beside its files: its own settings, and where certificates and proxies are.
_PIP_ENVIRONMENT: Final = re.compile(
    r"PIP_\w+|HOME|XDG_\w+_HOME|SSL_CERT_FILE|SSL_CERT_DIR|REQUESTS_CA_BUNDLE|(HTTPS?|ALL|NO)_PROXY", re.IGNORECASE
)
_PIN: Final = re.compile(r"(?P<name>[a-z0-9-]+)==(?P<version>[^\s;]+)")
_HASH: Final = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    """A distribution of one version, and the SHA-256 of every file that it may come as."""

    name: str
    version: str
    digests: tuple[str, ...]

    def line(self) -> str:
        """The pin as a line of a requirements file."""
        return " ".join([f"{self.name}=={self.version}", *(f"--hash=sha256:{digest}" for digest in self.digests)])


def read_lock(path: Path) -> dict[str, Pin]:
    """The pins of a lock file by name. A name that is pinned per Python version has its last pin.

    Raises:
        BundleError: the file cannot be read, or a pin has no digest.
    """
    try:
        text = path.read_text(encoding="utf-8").replace("\\\n", " ")
    except OSError as error:
        raise BundleError("lock-unreadable", f"{path} cannot be read: {error.strerror}") from error
    pins: dict[str, Pin] = {}
    for line in text.splitlines():
        found = _PIN.match(line)
        if found is None:
            continue
        digests = tuple(sorted(_HASH.findall(line)))
        if not digests:
            raise BundleError("lock-invalid", f"{path.name} pins {found['name']} without a digest")
        pins[found["name"]] = Pin(name=found["name"], version=found["version"], digests=digests)
    return pins


def packages() -> Stage:
    """The packages that the launcher imports: wheels in `files/`, their modules without compiled parts in `site/`."""
    pins = _pins(RUN_LOCK, PACKAGES)

    def run(workspace: Workspace) -> None:
        _fetch(workspace, [pins[name] for name in PURE], ("--only-binary=:all:", *_ANY))
        _fetch(workspace, [pins[name] for name in COMPILED], ("--only-binary=:all:", *_ONE))
        site = workspace.out / SITE
        for wheel in _files(workspace, pins):
            _unpack_wheel(wheel, site)

    return Stage(
        name="python-packages",
        target=None,
        run=run,
        results=(FILES, f"{SITE}/jinja2/__init__.py"),
        inputs={name: pin.line() for name, pin in pins.items()},
        modules=(__name__,),
    )


def nuitka() -> Stage:
    """Nuitka: its source archive in `files/`, its modules in `site/`."""
    pins = _pins(NUITKA_LOCK, ("nuitka",))

    def run(workspace: Workspace) -> None:
        # The file is only taken apart, nothing of it is built; so the tools of this Python do.
        _fetch(workspace, list(pins.values()), ("--no-binary=:all:", "--no-build-isolation"))
        for archive in _files(workspace, pins):
            _unpack_source(archive, workspace.out / SITE)

    return Stage(
        name="nuitka-program",
        target=None,
        run=run,
        results=(FILES, f"{SITE}/nuitka/__main__.py"),
        inputs={name: pin.line() for name, pin in pins.items()},
        modules=(__name__,),
    )


def _pins(lock: Path, names: Sequence[str]) -> Mapping[str, Pin]:
    pins = read_lock(lock)
    missing = [name for name in names if name not in pins]
    if missing:
        raise BundleError("lock-invalid", f"{lock.name} does not pin {', '.join(missing)}")
    return {name: pins[name] for name in names}


def _fetch(workspace: Workspace, pins: Sequence[Pin], options: Sequence[str]) -> None:
    wanted = workspace.work / f"{pins[0].name}.txt"
    wanted.write_text("".join(f"{pin.line()}\n" for pin in pins), encoding="utf-8")
    words = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--no-input", *options]
    folder = os.environ.get("MINDNANO_SOURCES")
    if folder:
        words.append(f"--find-links={Path(folder).expanduser().absolute()}")
    words += [f"--dest={workspace.out / FILES}", f"--requirement={wanted}"]
    settings = {name: value for name, value in os.environ.items() if _PIP_ENVIRONMENT.fullmatch(name)}
    try:
        workspace.command(words, environment=settings, what=f"fetching {', '.join(pin.name for pin in pins)}")
    except BundleError as error:
        hint = "see what pip says; it takes files out of the folder that MINDNANO_SOURCES names as well"
        raise BundleError(error.slug, error.message, hint=hint) from error


def _files(workspace: Workspace, pins: Mapping[str, Pin]) -> list[Path]:
    """What was fetched, each file known by its digest."""
    files = sorted((workspace.out / FILES).iterdir())
    known = {digest for pin in pins.values() for digest in pin.digests}
    for path in files:
        if hashlib.sha256(path.read_bytes()).hexdigest() not in known:
            raise BundleError("distribution-digest", f"{path.name} is none of the pinned files")
    if len(files) != len(pins):
        raise BundleError("distribution-digest", f"{len(files)} files were fetched for {len(pins)} pins")
    return files


def _unpack_wheel(wheel: Path, site: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith(("/", *_LEFT_OUT)):
                _write(site, name, archive.read(name))


def _unpack_source(source: Path, site: Path) -> None:
    """The package out of a source archive, with its licence texts, one folder below the top."""
    with tarfile.open(source) as archive:
        for member in archive:
            _, _, name = member.name.partition("/")
            stream = archive.extractfile(member)
            if stream is not None and name.startswith(("nuitka/", "LICENSE", "NOTICE")):
                _write(site, name, stream.read())


def _write(site: Path, name: str, content: bytes) -> None:
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts:
        raise BundleError("distribution-layout", f"a distribution holds {name}, which leads out of it")
    target = site / place
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
