"""Stages that take no time, and a program that builds one in a process of its own, to be killed or raced.

    python -m tests.support.toy_stages STORE DIARY COMMAND

builds a stage whose one command is `sh -c COMMAND`, and prints the folder of the result. The stage writes `ran` and a
newline to DIARY each time it runs.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from bundle.runner import Runner
from bundle.stages import Stage
from bundle.store import Store
from bundle.workspace import Workspace

Run = Callable[[Workspace], None]


def toy(name: str = "toy", *, value: str = "1", needs: tuple[Stage, ...] = (), run: Run | None = None) -> Stage:
    """A stage with one named value. It writes the value, and what it needs, to `text`, unless `run` does another."""

    def write(workspace: Workspace) -> None:
        parts = [(workspace.need(need.name) / "text").read_text() for need in needs]
        (workspace.out / "text").write_text("".join([*parts, value]))

    return Stage(
        name=name,
        target=None,
        run=run or write,
        results=("text",),
        inputs={"value": value},
        modules=(),
        needs=needs,
    )


def runner(root: Path, said: list[str] | None = None) -> Runner:
    """A runner in a store of its own; what it says goes to the list."""
    return Runner(store=Store(root=root), say=(said if said is not None else []).append, jobs=1)


def shell(command: str, diary: Path) -> Stage:
    """A stage that notes in the diary that it ran, then runs a shell command in its result folder."""

    def run(workspace: Workspace) -> None:
        with diary.open("a") as stream:
            stream.write("ran\n")
        workspace.command(["/bin/sh", "-c", command], folder=workspace.out, what="shell")

    return toy(run=run)


def main() -> None:
    """Builds the stage that the command line describes."""
    store, diary, command = sys.argv[1:]
    outcomes = runner(Path(store)).build([shell(command, Path(diary))])
    print(outcomes[-1].folder)


if __name__ == "__main__":
    main()
