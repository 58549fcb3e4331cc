"""busybox for this machine: installed, or taken out of the system's own package archive without being installed."""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from pathlib import Path

from engine.fetch import cache_root
from tests.support.availability import unavailable


def busybox() -> Path:
    """The program; skips or fails the test where it cannot be had."""
    found = shutil.which("busybox")
    if found is not None:
        return Path(found)
    target = cache_root() / "busybox" / "busybox"
    if target.is_file():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        for command in (
            ["apt-get", "-q", "-o", "APT::Sandbox::User=root", "download", "busybox-static"],
            ["dpkg", "-x"],
        ):
            try:
                words = [*command, *map(str, Path(scratch).glob("*.deb")), "."] if command[0] == "dpkg" else command
                done = subprocess.run(words, cwd=scratch, capture_output=True, text=True)
            except OSError as error:
                unavailable(f"busybox is not installed, and there is no {command[0]}: {error}")
            if done.returncode != 0:
                unavailable(f"busybox is not installed and cannot be had: {done.stderr.strip()[-300:]}")
        places = [path for path in Path(scratch).rglob("busybox") if path.is_file() and path.parent.name == "bin"]
        if not places:
            unavailable("the package busybox-static holds no busybox")
        places[0].replace(target)
    return target
