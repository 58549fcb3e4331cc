"""Where models are on this machine, and which one is meant when none is named."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Protocol

from launcher.download.sources import PACKAGE_SUFFIX, RELEASE_NAME
from launcher.errors import PackageError, UsageError

_PROGRAM: Final = "mindnano-infer"


class StoreOptions(Protocol):
    """The options that say where models are."""

    @property
    def model(self) -> Path | None:
        """A package that is named, None where none is."""

    @property
    def model_dir(self) -> Path | None:
        """The model folder, None for the usual one."""


def model_folder(options: StoreOptions, environ: Mapping[str, str]) -> Path:
    """`--model-dir`, or ``mindnano/models`` in the user's data folder (XDG_DATA_HOME)."""
    if options.model_dir is not None:
        return options.model_dir.expanduser()
    data = Path(environ.get("XDG_DATA_HOME", ""))
    if not data.is_absolute():  # as the XDG specification asks
        home = Path(environ["HOME"]) if environ.get("HOME") else Path.home()
        data = home / ".local" / "share"
    return data / "mindnano" / "models"


def find_model(options: StoreOptions, environ: Mapping[str, str], *, program: Path | None = None) -> Path | None:
    """The package to run: the named one, else the one beside the program, else the one in the model folder.

    In a folder the released file name is meant, or else the only package there.

    Args:
        program: the program's file; by default that of this process.

    Returns:
        None where there is no package: this is a first start.

    Raises:
        UsageError: there are several and none is meant.
    """
    if options.model is not None:
        return options.model
    beside = program_file() if program is None else program
    if beside is not None:
        found = _only(_packages(beside.parent))
        if found is not None:
            return found
    folder = model_folder(options, environ)
    return _only(path for place in (folder, *_folders(folder)) for path in _packages(place))


def program_file() -> Path | None:
    """The file of this program where it runs as `mindnano-infer`, None under a plain Python."""
    try:
        running = Path("/proc/self/exe").readlink()
    except OSError:
        running = Path()
    for path in (running, Path(sys.argv[0] if sys.argv else "")):
        if path.name.startswith(_PROGRAM):
            return Path(os.path.realpath(path))
    return None


def model_missing(folder: Path) -> PackageError:
    """The error for a start without a model; it names the three ways to go on."""
    return PackageError(
        "model-missing",
        f"there is no model beside the program or in {folder}",
        hint=f"--download [SOURCE] fetches one, --model FILE{PACKAGE_SUFFIX} names one, --demo runs the built-in one",
    )


def _packages(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.glob(f"*{PACKAGE_SUFFIX}") if path.is_file())
    except OSError:
        return []


def _folders(folder: Path) -> list[Path]:
    try:
        return sorted(path for path in folder.iterdir() if path.is_dir())
    except OSError:
        return []


def _only(paths: Iterable[Path]) -> Path | None:
    found = list(paths)
    meant = [path for path in found if path.name == RELEASE_NAME] or found
    if len(meant) > 1:
        raise UsageError(
            "model-ambiguous",
            f"there are {len(meant)} models: {', '.join(str(path) for path in meant[:10])}",
            hint="name one with --model",
        )
    return meant[0] if meant else None
