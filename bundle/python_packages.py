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

SOURCES: Final = "sources"
"""Folder of a result with C sources, by distribution."""
LLGUIDANCE: Final = "llguidance"
LLGUIDANCE_LIBRARY: Final = "lib/_lib.abi3.so"
"""Where a result of `llguidance` has the compiled part of the distribution."""

PURE: Final = (
    "anyio",
    "certifi",
    "charset-normalizer",
    "click",
    "h11",
    "idna",
    "jinja2",
    "prometheus-client",
    "prompt-toolkit",
    "requests",
    "starlette",
    "typing-extensions",
    "urllib3",
    "uvicorn",
    "wcwidth",
)
# It has wheels for one processor each; they differ in the compiled part only, which stays out.
COMPILED: Final = ("markupsafe",)
# Its source archive holds modules and C sources, which `msgspec_core` compiles.
FROM_SOURCE: Final = ("msgspec",)
PACKAGES: Final = (*PURE, *COMPILED, *FROM_SOURCE)

_ANY: Final = ("--python-version=3.13", "--platform=any", "--implementation=py", "--abi=none")
_ONE: Final = ("--python-version=3.13", "--platform=manylinux2014_x86_64", "--implementation=cp", "--abi=cp313")
_SOURCE: Final = ("--no-binary=:all:", "--no-build-isolation")
_LEFT_OUT: Final = (".so", ".c", ".pyi", ".pyc")
_C_SOURCE: Final = (".c", ".h")
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
    """The packages that the launcher imports, the same for every target.

    Wheels and source archives are in `files/`, modules without compiled parts in `site/`, C sources in `sources/`.
    """
    pins = _pins(RUN_LOCK, PACKAGES)

    def run(workspace: Workspace) -> None:
        _fetch(workspace, [pins[name] for name in PURE], ("--only-binary=:all:", *_ANY))
        _fetch(workspace, [pins[name] for name in COMPILED], ("--only-binary=:all:", *_ONE))
        for name in FROM_SOURCE:
            _fetch(workspace, [pins[name]], _SOURCE, version=pins[name].version)
        site = workspace.out / SITE
        for path in _files(workspace, pins):
            if path.suffix == ".whl":
                _unpack_wheel(path, site)
            else:
                _unpack_source_tree(path, workspace.out)

    return Stage(
        name="python-packages",
        target=None,
        run=run,
        results=(FILES, f"{SITE}/jinja2/__init__.py", f"{SITE}/msgspec/__init__.py", f"{SOURCES}/msgspec/_core.c"),
        inputs={name: pin.line() for name, pin in pins.items()},
        modules=(__name__,),
    )


def llguidance(target: str) -> Stage:
    """llguidance for a target: its wheel in `files/`, its modules in `site/`, its compiled part in `lib/`."""
    pins = _pins(RUN_LOCK, (LLGUIDANCE,))

    def run(workspace: Workspace) -> None:
        options = ("--python-version=3.13", f"--platform=manylinux_2_28_{target}", "--implementation=cp", "--abi=abi3")
        _fetch(workspace, list(pins.values()), ("--only-binary=:all:", *options))
        (wheel,) = _files(workspace, pins)
        _unpack_wheel(wheel, workspace.out / SITE)
        with zipfile.ZipFile(wheel) as archive:
            _write(workspace.out, LLGUIDANCE_LIBRARY, archive.read(f"{LLGUIDANCE}/{Path(LLGUIDANCE_LIBRARY).name}"))

    return Stage(
        name=LLGUIDANCE,
        target=target,
        run=run,
        results=(FILES, f"{SITE}/{LLGUIDANCE}/__init__.py", LLGUIDANCE_LIBRARY),
        inputs={"target": target, **{name: pin.line() for name, pin in pins.items()}},
        modules=(__name__,),
    )


def nuitka() -> Stage:
    """Nuitka: its source archive in `files/`, its modules in `site/`."""
    pins = _pins(NUITKA_LOCK, ("nuitka",))

    def run(workspace: Workspace) -> None:
        # The file is only taken apart, nothing of it is built; so the tools of this Python do.
        _fetch(workspace, list(pins.values()), _SOURCE)
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


def _fetch(workspace: Workspace, pins: Sequence[Pin], options: Sequence[str], *, version: str = "") -> None:
    """Has pip download files. `version` is that of a source archive which would ask a tool that is not here for it."""
    wanted = workspace.work / f"{pins[0].name}.txt"
    wanted.write_text("".join(f"{pin.line()}\n" for pin in pins), encoding="utf-8")
    words = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--no-input", *options]
    folder = os.environ.get("MINDNANO_SOURCES")
    if folder:
        words.append(f"--find-links={Path(folder).expanduser().absolute()}")
    words += [f"--dest={workspace.out / FILES}", f"--requirement={wanted}"]
    settings = {name: value for name, value in os.environ.items() if _PIP_ENVIRONMENT.fullmatch(name)}
    if version:
        # pip wants to know the version that a build would get, though nothing is built.
        told = workspace.work / "distutils.cfg"
        told.write_text(f"[metadata]\nversion = {version}\n", encoding="utf-8")
        settings["DIST_EXTRA_CONFIG"] = str(told)
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


def _unpack_source_tree(source: Path, out: Path) -> None:
    """Modules and C sources out of a source archive that has its packages in the folder `src`."""
    with tarfile.open(source) as archive:
        for member in archive:
            _, _, name = member.name.partition("/src/")
            stream = archive.extractfile(member)
            if stream is None or not name:
                continue
            if name.endswith(_C_SOURCE):
                _write(out / SOURCES, name, stream.read())
            elif not name.endswith(_LEFT_OUT) and ".egg-info/" not in name:
                _write(out / SITE, name, stream.read())


def _write(site: Path, name: str, content: bytes) -> None:
    place = PurePosixPath(name)
    if place.is_absolute() or ".." in place.parts:
        raise BundleError("distribution-layout", f"a distribution holds {name}, which leads out of it")
    target = site / place
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(content)
