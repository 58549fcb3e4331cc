"""An emulator that runs aarch64 programs on any machine: qemu's user-mode emulation.

Where no emulator is installed, it is taken out of the system's own package archive without being installed, so no
rights are needed, and kept in the cache.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from bundle.errors import BundleError
from engine.fetch import cache_root, file_sha256

CPU = "cortex-a76"
# The second holds the emulator where the first has become an empty shell around it.
_PACKAGES = {"qemu-user-static": "usr/bin/qemu-aarch64-static", "qemu-user": "usr/bin/qemu-aarch64"}


class EmulatorMissing(BundleError):
    """There is no emulator, and none can be had; the message says why."""

    def __init__(self, reason: str) -> None:
        """Takes the reason as text."""
        super().__init__("emulator-missing", reason)


@cache
def emulator() -> Path:
    """The emulator on PATH, in the cache, or freshly taken from the package archive.

    Raises:
        EmulatorMissing: none of them has it.
    """
    for name in ("qemu-aarch64-static", "qemu-aarch64"):
        found = shutil.which(name)
        if found is not None:
            return Path(found)
    folder = cache_root() / "qemu"
    for cached in sorted(folder.glob("qemu-aarch64-*")):
        if cached.name == f"qemu-aarch64-{file_sha256(cached)[:16]}":
            return cached
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix="apt-") as scratch:
        binary = _from_archive(Path(scratch))
        target = folder / f"qemu-aarch64-{file_sha256(binary)[:16]}"
        binary.replace(target)
    return target


def _from_archive(scratch: Path) -> Path:
    for tool in ("apt-get", "dpkg"):
        if shutil.which(tool) is None:
            raise EmulatorMissing(f"qemu-aarch64-static is not installed, and there is no {tool} to get it with")
    lists = scratch / "lists"
    private = [f"Dir::Cache={scratch / 'cache'}", "APT::Sandbox::User=root"]
    updated = [*private, f"Dir::State::Lists={lists}"]
    for folder in (lists / "partial", scratch / "cache" / "archives" / "partial"):
        folder.mkdir(parents=True)
    reasons = []
    # The lists that the system has may be missing or out of date; a private copy of fresh ones is the second try.
    for settings in (private, updated):
        if settings is updated:
            _apt(updated, "update", folder=scratch)
        for package, place in _PACKAGES.items():
            failure = _apt(settings, "download", package, folder=scratch)
            if failure is not None:
                reasons.append(failure)
                continue
            for archive in scratch.glob(f"{package}_*.deb"):
                subprocess.run(["dpkg", "-x", archive, scratch / package], check=True, capture_output=True)
            binary = scratch / package / place
            if binary.is_file() and not binary.is_symlink():
                return binary
            reasons.append(f"{package} holds no {place}")
    raise EmulatorMissing("; ".join(dict.fromkeys(reasons)))


def _apt(settings: list[str], *words: str, folder: Path) -> str | None:
    """Runs apt-get with private folders; None where it succeeded, else the reason."""
    options = [part for setting in settings for part in ("-o", setting)]
    command = ["apt-get", "-q", *options, *words]
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if result.returncode == 0:
        return None
    errors = [line for line in result.stderr.splitlines() if line.startswith("E:")]
    return " ".join(errors) or f"apt-get {words[0]} ended with {result.returncode}"
