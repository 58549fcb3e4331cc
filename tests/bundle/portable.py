"""The portable program of this checkout, as `mindnano bundle` made it: found in the cache, never built by a test.

Compiling takes minutes, and every change of the launcher asks for it, so tests take what is there. Continuous
integration builds both targets first; there, a missing one is a failure.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from bundle import assemble, pipeline, smoke, zig
from bundle.assemble import Freight
from bundle.emulator import CPU, EmulatorMissing, emulator
from bundle.stages import plan
from bundle.store import Store
from bundle.sysroot import SysrootMissing, sysroot
from tests.support.availability import unavailable
from tests.support.demo import DEMO

HOST = zig.host_target()
TARGETS = ("x86_64", "aarch64")
QUESTION = ("--demo", "--think", "off", "--temperature", "0", smoke.QUESTION)


@cache
def result(target: str, stage: str = "assemble") -> Path:
    """The result folder of a stage for a program with the built-in model and without librknnrt."""
    if not DEMO.is_file():
        unavailable("the built-in model is not packed; scripts/test packs it")
    stages = pipeline.stages(target, Freight(runtime=None, demo=DEMO))
    found = Store.of_user().find(plan([stages[stage]])[-1])
    if found is None:
        unavailable(f"not built: mindnano bundle --target {target} --without-rknn-runtime")
    return found


def program(target: str = HOST) -> Path:
    """The finished program."""
    return result(target) / assemble.NAME


def texts(target: str) -> Mapping[str, Mapping[str, str]]:
    """What the program printed when it was tried after the build, by system and command."""
    return smoke.texts(result(target, "smoke"))


def command(path: Path, target: str = HOST, release: str = "bookworm") -> list[str]:
    """The words that start a copy of the program on this machine."""
    if target == HOST:
        return [str(path)]
    try:
        return [str(emulator()), "-cpu", CPU, "-L", str(sysroot(release)), str(path)]
    except (EmulatorMissing, SysrootMissing) as error:
        unavailable(f"no {target} system: {error.message}")


def run(
    path: Path,
    *words: str,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
    prefix: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Runs the program with exactly this environment."""
    return subprocess.run(
        [*prefix, str(path), *words],
        env=dict(environ or {}),
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def copied(folder: Path) -> Path:
    """The program alone in a folder, as a user has it. A second name for the file where the file system allows."""
    target = folder / assemble.NAME
    source = program()
    try:
        os.link(source, target)
    except OSError:
        target.write_bytes(source.read_bytes())
        target.chmod(0o755)
    return target


def version_of(document: str) -> str:
    """The version in what `--version --json` printed."""
    return str(json.loads(document)["program_version"])
