"""Results of stages on disk: found by key, put in place at once, forgotten when newer ones have come.

Below the cache folder, `bundle/` holds

    <label>-<key16>/            a complete result; `.stage.json` in it says what it was made from
    partial/<label>-<key16>/    a stage at work; a result is renamed out of here, so nothing half-made is ever found
    logs/<label>-<key16>.log    what the commands of a stage printed
    locks/<label>               held while the stage is made

Of each stage the three results that were used last are kept; older ones go when a new one has been made.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bundle.stages import Step
from engine.fetch import cache_root

KEPT = 3
RECORD = ".stage.json"
_KEY_DIGITS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The folder of all results."""

    root: Path

    @classmethod
    def of_user(cls) -> Store:
        """The store in the cache folder of the user, or in MINDNANO_CACHE."""
        return cls(root=cache_root().absolute() / "bundle")

    def result(self, step: Step) -> Path:
        """Where the result of a step is once it is made."""
        return self.root / step.entry

    def partial(self, step: Step) -> Path:
        """Where a step is made."""
        return self.root / "partial" / step.entry

    def log(self, step: Step) -> Path:
        """The log of a step."""
        return self.root / "logs" / f"{step.entry}.log"

    def find(self, step: Step) -> Path | None:
        """The result of a step if it is there; notes that it was used."""
        folder = self.result(step)
        if not folder.is_dir():
            return None
        with suppress(PermissionError):  # a store of somebody else, who keeps count of its use
            os.utime(folder)
        return folder

    @contextmanager
    def locked(self, step: Step, waiting: Callable[[], None]) -> Iterator[int]:
        """Keeps other builds away from the stage; gives the descriptor that holds the lock.

        Commands of the stage inherit it, so the lock is free only when they have ended too, even after a `kill -9` of
        the program that started them. `waiting` is called where somebody else holds it.
        """
        path = self.root / "locks" / step.stage.label
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                waiting()
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield descriptor
        finally:
            os.close(descriptor)

    def fresh_partial(self, step: Step) -> Path:
        """An empty folder to make the step in. The lock is held, so what other builds left behind is dead."""
        folder = self.partial(step)
        folder.parent.mkdir(parents=True, exist_ok=True)
        for left in self._entries(folder.parent, step.stage.label):
            shutil.rmtree(left)
        folder.mkdir()
        return folder

    def keep(self, step: Step, out: Path, record: Mapping[str, Any]) -> Path:
        """Puts a finished result in its place and forgets old ones of the same stage."""
        text = json.dumps({"parts": dict(step.parts), **record}, indent=1, sort_keys=True)
        (out / RECORD).write_text(text, encoding="utf-8")
        target = self.result(step)
        out.rename(target)
        self._prune(step)
        return target

    def record(self, step: Step) -> Mapping[str, Any]:
        """What was noted when the step was made."""
        return _read_record(self.result(step))

    def why_missing(self, step: Step) -> str:
        """How a step differs from the newest result of the same stage, in a few words."""
        entries = self._by_use(step)
        if not entries:
            return "never made here"
        parts = _read_record(entries[0]).get("parts", {})
        names = sorted(name for name in parts.keys() | step.parts.keys() if parts.get(name) != step.parts.get(name))
        return f"changed: {', '.join(names)}"

    def _prune(self, step: Step) -> None:
        for old in self._by_use(step)[KEPT:]:
            shutil.rmtree(old, ignore_errors=True)
            (self.root / "logs" / f"{old.name}.log").unlink(missing_ok=True)

    def _by_use(self, step: Step) -> list[Path]:
        """Results of the stage, the last used first."""
        entries = self._entries(self.root, step.stage.label)
        return sorted(entries, key=lambda path: path.stat().st_mtime_ns, reverse=True)

    @staticmethod
    def _entries(folder: Path, label: str) -> list[Path]:
        pattern = f"{label}-{'[0-9a-f]' * _KEY_DIGITS}"
        return [path for path in folder.glob(pattern) if path.is_dir()]


def _read_record(folder: Path) -> Mapping[str, Any]:
    try:
        record = json.loads((folder / RECORD).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}
