"""The C library of a Debian release for aarch64, for programs that run under emulation with a library of that age.

The packages are taken out of the archive by the system's own apt with folders of its own, without being installed, and
kept in the cache.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from bundle.errors import BundleError
from engine.fetch import apt_mirrors, cache_root

# Debian releases by name, with the version of their C library.
GLIBC = {"bullseye": "2.31", "bookworm": "2.36", "trixie": "2.41"}
_PACKAGES = ("libc6", "libgcc-s1")


class SysrootMissing(BundleError):
    """The packages of the release cannot be had; the message says why."""

    def __init__(self, reason: str) -> None:
        """Takes the reason as text."""
        super().__init__("sysroot-missing", reason)


@cache
def sysroot(release: str, packages: Sequence[str] = _PACKAGES) -> Path:
    """The folder to give to the emulator as the root of a Debian release's libraries.

    Raises:
        SysrootMissing: the release is not on the mirrors of this system, or there is no apt.
    """
    folder = cache_root() / "sysroots"
    target = folder / "-".join([release, *packages])
    if target.is_dir():
        return target
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="apt-") as scratch:
        root = Path(scratch) / "root"
        _fill(Path(scratch), root, release, packages)
        try:
            root.rename(target)
        except OSError:
            if not target.is_dir():  # not made by another test run meanwhile
                raise
    return target


def _fill(scratch: Path, root: Path, release: str, packages: Sequence[str]) -> None:
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise SysrootMissing(f"there is no {tool}")
    mirrors = [mirror for mirror in apt_mirrors() if mirror.endswith("/debian")]
    if not mirrors:
        raise SysrootMissing("apt of this system knows no Debian mirror")
    for name in ("lists/partial", "cache/archives/partial", "empty", "debs"):
        (scratch / name).mkdir(parents=True)
    (scratch / "status").touch()
    (scratch / "sources.list").write_text("".join(f"deb {mirror} {release} main\n" for mirror in mirrors))
    settings = {
        "Acquire::Check-Valid-Until": "false",
        "APT::Architecture": "arm64",
        "APT::Architectures": "arm64",
        "APT::Sandbox::User": "root",
        "Dir::Cache": scratch / "cache",
        "Dir::Etc::SourceList": scratch / "sources.list",
        "Dir::Etc::SourceParts": scratch / "empty",
        "Dir::State::Lists": scratch / "lists",
        "Dir::State::status": scratch / "status",
    }
    options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
    for words in (["update"], ["download", *packages]):
        _run(["apt-get", "-q", *options, *words], scratch / "debs")
    for package in sorted((scratch / "debs").glob("*.deb")):
        _run(["dpkg", "-x", str(package), str(root)], scratch)
    loader = root / "lib" / "ld-linux-aarch64.so.1"
    if not loader.exists():
        # Releases with a merged /usr leave the links of the top folder to the base system.
        if (root / "lib").exists() or not (root / "usr" / "lib" / loader.name).exists():
            raise SysrootMissing(f"libc6 of {release} holds no {loader.name}")
        (root / "lib").symlink_to("usr/lib")


def _run(words: Sequence[str], folder: Path) -> None:
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith(("E:", "dpkg"))]
        raise SysrootMissing(" ".join(errors) or f"{words[0]} ended with {done.returncode}")
