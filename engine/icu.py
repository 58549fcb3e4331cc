"""ICU, of which the engine needs one thing: the general category of a code point.

`u_charType` and its table are a single source file of ICU, compiled from a pinned release and linked statically.
The release is the one whose Unicode version (16.0) the regular expressions of the `tokenizers` library follow; a test
compares the two for every code point.
"""

import shutil
import subprocess
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from engine.errors import BuildError
from engine.fetch import Archive, Report, cache_root, obtain, replace_folder

VERSION = "76.1"
ARCHIVE = Archive(
    names=("icu4c-76_1-src.tgz", "icu_76.1.orig.tar.gz"),
    sha256="dfacb46bfe4747410472ce3e1144bf28a102feeaa4e3875bac9b4c6cf30f4f3e",
    size=27_437_767,
    url="https://github.com/unicode-org/icu/releases/download/release-76-1/icu4c-76_1-src.tgz",
    pool="pool/main/i/icu/icu_76.1.orig.tar.gz",
)

_RETRY_AFTER_S = 3600.0

_DEFINES = ("-DU_STATIC_IMPLEMENTATION", "-DU_DISABLE_RENAMING=1")
_CXX_FLAGS = ("-std=c++17", "-fno-exceptions", "-fno-rtti", "-DU_COMMON_IMPLEMENTATION", *_DEFINES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Icu:
    """What the build needs to know of ICU.

    `include` is the folder of its headers, `flags` go to the C file that calls it, `sources` are compiled as C++ with
    `source_flags`, `link` are further words for the linker, `identity` changes whenever any of it does.
    """

    identity: str
    include: Path
    flags: tuple[str, ...]
    sources: tuple[Path, ...]
    source_flags: tuple[str, ...]
    link: tuple[str, ...]
    licence: Path | None


def prepare(report: Report, *, host: bool) -> Icu:
    """ICU from its pinned source; where that cannot be had, a host build may use the system's own.

    Raises BuildError where there is neither.
    """
    folder = cache_root() / f"icu-{VERSION}-{ARCHIVE.sha256[:16]}"
    if not folder.is_dir():
        system = _system_icu() if host else None
        failed = folder.with_name(f"{folder.name}.unreachable")
        try:
            if system is not None and _is_recent(failed):
                return system
            _unpack(obtain(ARCHIVE, report), folder)
        except BuildError as error:
            if system is None:
                raise
            report(error.message)
            report(f"using the system's {system.identity} instead: a character whose class changed between its version")
            report("of Unicode and 16.0 may be tokenized in another way than by the pinned release")
            failed.parent.mkdir(parents=True, exist_ok=True)
            failed.touch()
            return system
    common = folder / "common"
    return Icu(
        identity=f"icu {VERSION} {ARCHIVE.sha256}",
        include=common,
        flags=_DEFINES,
        sources=(common / "uchar.cpp",),
        source_flags=_CXX_FLAGS,
        link=(),
        licence=folder / "LICENSE",
    )


def _is_recent(marker: Path) -> bool:
    """Whether the last attempt to fetch failed less than an hour ago, so that a rebuild need not wait for the next."""
    return marker.is_file() and time.time() - marker.stat().st_mtime < _RETRY_AFTER_S


def _unpack(archive: Path, folder: Path) -> None:
    """Takes the headers, the one source file and the licence out of the archive."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f"{folder.name}.", suffix=".partial", dir=folder.parent))
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                place = _place(PurePosixPath(member.name))
                stream = tar.extractfile(member) if place is not None and member.isfile() else None
                if place is None or stream is None:
                    continue
                target = fresh / place
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(stream.read())
        for needed in ("LICENSE", "common/uchar.cpp", "common/unicode/uchar.h"):
            if not (fresh / needed).is_file():
                raise BuildError(f"{archive} holds no {needed}")
        replace_folder(fresh, folder)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)


def _place(name: PurePosixPath) -> PurePosixPath | None:
    """Where a member of the archive goes, or None where it is not needed."""
    if name == PurePosixPath("icu/LICENSE"):
        return PurePosixPath("LICENSE")
    if not name.is_relative_to("icu/source/common"):
        return None
    inner = name.relative_to("icu/source")
    if ".." in inner.parts:
        return None
    return inner if name.suffix == ".h" or name.name == "uchar.cpp" else None


def _system_icu() -> Icu | None:
    """The installed ICU with its headers, as pkg-config knows it."""
    try:
        version = _pkg_config("--modversion")
        include = Path(_pkg_config("--variable=includedir"))
        library = Path(_pkg_config("--variable=libdir")) / f"libicuuc.so.{version.split('.')[0]}"
    except (OSError, subprocess.CalledProcessError):
        return None
    if not library.is_file() or not (include / "unicode" / "uchar.h").is_file():
        return None
    return Icu(
        identity=f"ICU {version} ({library})",
        include=include,
        flags=(),
        sources=(),
        source_flags=(),
        link=(str(library),),
        licence=None,
    )


def _pkg_config(question: str) -> str:
    command = ["pkg-config", question, "icu-uc"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
