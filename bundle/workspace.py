"""What a running stage works with: its folders, its sources, and commands in an environment made from nothing."""

from __future__ import annotations

import ctypes
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from bundle.errors import BundleError
from bundle.sources import Source
from bundle.stages import ENVIRONMENT, SYSTEM_PATH, Stage
from bundle.unpack import unpack
from launcher.progress import format_seconds

Say = Callable[[str], None]

LOG_LINES = 25
# Where files seem to come from, whatever machine built them.
NEUTRAL = "/mindnano"

_TALK_EVERY_S = 15.0
_PR_SET_PDEATHSIG = 1


class Workspace:
    """The place in which one stage runs once.

    Attributes:
        stage: the stage that runs.
        work: scratch folder; `work/needs/<label>` leads to the result of each stage that is needed, so commands that
            run in folders directly below `work` reach it as `../needs/<label>`, by a text that never changes.
        out: becomes the result.
        jobs: how many processes a command may start side by side.
    """

    def __init__(
        self,
        stage: Stage,
        folder: Path,
        *,
        log: BinaryIO,
        needs: Mapping[str, Path],
        archives: Mapping[str, tuple[Path, ...]],
        jobs: int,
        keep_open: int,
        say: Say,
    ) -> None:
        self.stage = stage
        self.work = folder / "work"
        self.out = folder / "out"
        self.jobs = jobs
        self._log = log
        self._archives = archives
        self._keep_open = keep_open
        self._say = say
        for made in (self.work / "needs", self.work / "bin", self.work / "tmp", self.out):
            made.mkdir(parents=True)
        for label, result in needs.items():
            (self.work / "needs" / label).symlink_to(result, target_is_directory=True)

    def need(self, name: str) -> Path:
        """The result folder of the needed stage of that name.

        Raises:
            BundleError: the stage did not say that it needs it, or needs it for several targets.
        """
        labels = [need.label for need in self.stage.needs if name in (need.name, need.label)]
        if len(labels) != 1:
            raise BundleError("stage-need", f"{self.stage.label} needs {len(labels)} stages called {name}")
        return self.work / "needs" / labels[0]

    def unpack(self, source: Source) -> Path:
        """Unpacks a source of the stage to `work/<name>`, its patches applied, and returns that folder."""
        if source not in self.stage.sources:
            raise BundleError("stage-source", f"{self.stage.label} does not name {source.name} among its sources")
        folder = self.work / source.name
        unpack(source, self._archives[source.name], folder, self.command)
        return folder

    def tool(self, name: str) -> Path:
        """A program of the system.

        Raises:
            BundleError: it is not installed.
        """
        found = shutil.which(name, path=os.pathsep.join(SYSTEM_PATH))
        if found is None:
            raise BundleError(
                "tool-missing",
                f"{self.stage.label} needs the program {name}, which is not in {':'.join(SYSTEM_PATH)}",
                hint=f"Install {name} with the system's package manager.",
            )
        return Path(found)

    def say(self, line: str) -> None:
        """One line of progress."""
        self._say(f"  {self.stage.label}: {line}")

    def environment(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment of a command: constants, this workspace's folders, and what the caller adds."""
        folders = {
            "HOME": str(self.work),
            "PATH": os.pathsep.join([str(self.work / "bin"), *SYSTEM_PATH]),
            "TMPDIR": str(self.work / "tmp"),
        }
        return {**ENVIRONMENT, **folders, **(more or {})}

    def command(
        self,
        words: Sequence[str | Path],
        *,
        folder: Path | None = None,
        environment: Mapping[str, str] | None = None,
        stdin: Path | None = None,
        what: str = "",
    ) -> None:
        """Runs a command, its output going to the log. `what` names it in messages.

        Raises:
            BundleError: it failed; the last lines of the log are in the message.
        """
        title = what or Path(words[0]).name
        self._log.write(f"\n$ {' '.join(map(str, words))}\n".encode())
        self._log.flush()
        with (stdin or Path(os.devnull)).open("rb") as given:
            try:
                process = subprocess.Popen(
                    [str(word) for word in words],
                    cwd=folder or self.work,
                    env=self.environment(environment),
                    stdin=given,
                    stdout=self._log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    preexec_fn=_die_with_parent,
                    # The lock of the stage: it is free only when all that the stage started has ended.
                    pass_fds=[self._keep_open],
                )
            except OSError as error:
                raise BundleError("stage-failed", f"{self.stage.label}: cannot start {words[0]}: {error}") from error
        with _stopped_on_error(process):
            code = self._wait(process, title)
        if code != 0:
            ended = f"ended by signal {-code}" if code < 0 else f"ended with {code}"
            raise BundleError("stage-failed", f"{self.stage.label}: {title} {ended}")

    def _wait(self, process: subprocess.Popen[bytes], title: str) -> int:
        begin = time.monotonic()
        while True:
            try:
                return process.wait(timeout=_TALK_EVERY_S)
            except subprocess.TimeoutExpired:
                self.say(f"{title}, {format_seconds(time.monotonic() - begin)}")


@contextmanager
def _stopped_on_error(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Ends the whole process group where waiting for it is interrupted."""
    try:
        yield
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def _die_with_parent() -> None:
    """Runs in the child: the kernel kills it when this program is killed and cannot do so itself."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def log_tail(path: Path, lines: int = LOG_LINES) -> str:
    """The last lines of a log, indented."""
    with path.open("rb") as stream:
        stream.seek(max(0, path.stat().st_size - (1 << 16)))
        text = stream.read().decode(errors="replace")
    return "\n".join(f"  {line.rstrip()}" for line in text.splitlines()[-lines:])
