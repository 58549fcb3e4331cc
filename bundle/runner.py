"""Runs stages in order: finds what is cached, makes what is missing, and says what takes how long."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bundle.errors import BundleError
from bundle.sources import fetch
from bundle.stages import Stage, Step, plan
from bundle.store import Store
from bundle.workspace import Workspace, log_tail
from launcher.progress import format_bytes, format_seconds

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a step: its result, the seconds it took now, and whether it was there already."""

    step: Step
    folder: Path
    seconds: float
    cached: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """Makes stages in a store.

    Attributes:
        store: where results are.
        say: takes one line of progress.
        jobs: how many processes a command may start side by side.
        foreign: paths of this machine that no result may hold, beside those of the store itself.
    """

    store: Store
    say: Say
    jobs: int
    foreign: tuple[str, ...] = ()

    def build(self, goals: Iterable[Stage]) -> tuple[Outcome, ...]:
        """Makes the goals and all they need; returns what became of each, in order.

        All missing sources are fetched first, so that a missing network shows before hours of work, not after.

        Raises:
            BundleError: a stage failed; the message holds the end of its log and says where all of it is.
            NetworkError, TrustError: a source cannot be had, or is not the pinned one.
        """
        steps = plan(goals)
        missing = [step for step in steps if self.store.find(step) is None]
        archives = {
            source.name: fetch(source, self.say)
            for source in {source.name: source for step in missing for source in step.stage.sources}.values()
        }
        folders: dict[str, Path] = {}
        outcomes = []
        for number, step in enumerate(steps, start=1):
            needs = {need.stage.label: folders[need.entry] for need in step.needs}
            outcome = self._obtain(step, f"[{number}/{len(steps)}] {step.stage.label}", needs, archives)
            folders[step.entry] = outcome.folder
            outcomes.append(outcome)
        return tuple(outcomes)

    def explain(self, goals: Iterable[Stage]) -> str:
        """The plan as text: each stage with its key, and whether it is cached or why it is not."""
        lines = []
        for step in plan(goals):
            if self.store.result(step).is_dir():
                record = self.store.record(step)
                state = f"cached (made in {record.get('seconds', 0):.0f} s, {format_bytes(record.get('bytes', 0))})"
            else:
                state = self.store.why_missing(step)
            lines.append(f"{step.entry:<44} {state}")
        return "\n".join(lines)

    def _obtain(
        self, step: Step, title: str, needs: Mapping[str, Path], archives: Mapping[str, tuple[Path, ...]]
    ) -> Outcome:
        begin = time.monotonic()
        found = self.store.find(step)
        if found is None:
            with self.store.locked(step, lambda: self.say(f"{title}: waiting for another build of it")) as lock:
                found = self.store.find(step)  # the other build may have made it
                if found is None:
                    return self._make(step, title, needs, archives, lock)
        self.say(f"{title}: cached")
        return Outcome(step=step, folder=found, seconds=time.monotonic() - begin, cached=True)

    def _make(
        self,
        step: Step,
        title: str,
        needs: Mapping[str, Path],
        archives: Mapping[str, tuple[Path, ...]],
        lock: int,
    ) -> Outcome:
        begin = time.monotonic()
        self.say(f"{title}: {self.store.why_missing(step)}; building")
        log = self.store.log(step)
        log.parent.mkdir(parents=True, exist_ok=True)
        partial = self.store.fresh_partial(step)
        try:
            with log.open("wb") as stream:
                workspace = Workspace(
                    step.stage,
                    partial,
                    log=stream,
                    needs=needs,
                    archives={name: found for name, found in archives.items() if _has(step.stage, name)},
                    jobs=self.jobs,
                    keep_open=lock,
                    say=self.say,
                )
                step.stage.run(workspace)
            size = self._check(step, workspace)
            seconds = time.monotonic() - begin
            folder = self.store.keep(step, workspace.out, {"seconds": round(seconds, 1), "bytes": size})
        except BundleError as error:
            raise BundleError(error.slug, _with_log(error.message, log), hint=error.hint) from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        self.say(f"{title}: built in {format_seconds(seconds)}, {format_bytes(size)}")
        return Outcome(step=step, folder=folder, seconds=seconds, cached=False)

    def _check(self, step: Step, workspace: Workspace) -> int:
        """Whether the results are there and free of this machine's paths; returns their size in bytes."""
        for name in step.stage.results:
            if not (workspace.out / name).exists():
                raise BundleError("stage-result", f"{step.stage.label} ended without its result {name}")
        paths = [str(self.store.root), *self.foreign]
        size = 0
        for path in sorted(workspace.out.rglob("*")):
            if path.is_symlink() or not path.is_file():
                continue
            content = path.read_bytes()
            size += len(content)
            leaked = _first_inside(content, paths)
            if leaked is not None:
                place = path.relative_to(workspace.out)
                raise BundleError("path-leak", f"{step.stage.label}: {place} holds {leaked}, a path of this machine")
        return size


def _has(stage: Stage, name: str) -> bool:
    return any(source.name == name for source in stage.sources)


def _first_inside(content: bytes, paths: Sequence[str]) -> str | None:
    return next((path for path in paths if os.fsencode(path) in content), None)


def _with_log(message: str, log: Path) -> str:
    tail = log_tail(log)
    return f"{message}\n{tail}\nThe whole log: {log}" if tail else f"{message}\nThe log: {log}"
