"""Node programs for tests: packages pinned by tests/server/node/package-lock.json, installed once into the cache."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.support.availability import unavailable

FOLDER = Path(__file__).resolve().parents[1] / "server" / "node"
_INSTALL_SECONDS = 600


def node_modules() -> Path:
    """The installed packages; skips or fails the test where Node or the packages cannot be had."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        unavailable("Node is not installed: sudo apt install nodejs npm")
    lock = (FOLDER / "package-lock.json").read_bytes()
    cache = Path(os.environ.get("MINDNANO_CACHE", "") or Path.home() / ".cache" / "mindnano") / "node"
    cache.mkdir(parents=True, exist_ok=True)
    place = cache / hashlib.sha256(lock).hexdigest()[:16]
    with (cache / "lock").open("w") as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)
        if (place / "done").is_file():
            return place / "node_modules"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        for name in ("package.json", "package-lock.json"):
            shutil.copy(FOLDER / name, place / name)
        ran = subprocess.run(
            [npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"],
            cwd=place,
            capture_output=True,
            text=True,
            timeout=_INSTALL_SECONDS,
            check=False,
        )
        if ran.returncode != 0:
            unavailable(f"npm could not install the Node client: {ran.stderr.strip()[-500:]}")
        (place / "done").touch()
    return place / "node_modules"


def run_node(
    script: Path, arguments: Sequence[str], *, folder: Path, seconds: float, environ: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Runs a module of tests/server/node with the installed packages in reach, from `folder`.

    A module finds packages beside itself, so it is copied to `folder`, with a link to the packages.
    """
    (folder / "node_modules").symlink_to(node_modules())
    copy = Path(shutil.copy(script, folder))
    return subprocess.run(
        ["node", str(copy), *arguments],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "TMPDIR": str(folder), **(environ or {})},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
