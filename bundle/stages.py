"""Stages of the build as values, their content keys, and the order in which they run.

A stage is known by its key: a digest over everything that can change its result. The pinned digests of its sources,
named values, the program text of the modules that implement it, the environment of its commands, and the keys of the
stages it needs. Two stages with the same key have the same result, so a result is made once and then found by its key.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from bundle.errors import BundleError
from bundle.sources import Source

if TYPE_CHECKING:
    from bundle.workspace import Workspace

_NAME = re.compile(r"[a-z][a-z0-9-]*")

# Where the programs of the system are, after those of the stage.
SYSTEM_PATH = ("/usr/local/bin", "/usr/bin", "/bin")

# What every command of every stage sees beside its PATH and folders; nothing is taken over from the caller.
ENVIRONMENT: Mapping[str, str] = {
    "LANG": "C",
    "LC_ALL": "C",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONHASHSEED": "0",
    "SOURCE_DATE_EPOCH": "1767225600",  # 2026-01-01T00:00:00Z
    "TZ": "UTC",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stage:
    """One step of the build.

    Attributes:
        name: lower-case words with dashes between them.
        target: the processor it builds for, or None where the result fits all.
        run: makes the results in the folder `out` of the workspace that it is given.
        results: paths below the result folder that exist when the stage has run; others may.
        inputs: named values that decide the result, such as flags and versions.
        modules: names of the modules whose program text decides the result. What starts commands and keeps results is
            not among them: of it, only the environment of commands reaches a result, and that is in every key.
        sources: archives that it unpacks.
        needs: stages whose results it reads.
    """

    name: str
    target: str | None
    run: Callable[[Workspace], None]
    results: tuple[str, ...]
    inputs: Mapping[str, str]
    modules: tuple[str, ...]
    sources: tuple[Source, ...] = ()
    needs: tuple[Stage, ...] = ()

    @property
    def label(self) -> str:
        """Name and target, as folders and messages show them."""
        return self.name if self.target is None else f"{self.name}-{self.target}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """A stage with its key. `parts` names what the key was made from, so that two keys can be compared."""

    stage: Stage
    key: str
    parts: Mapping[str, str]
    needs: tuple[Step, ...]

    @property
    def entry(self) -> str:
        """Name of the result's folder."""
        return f"{self.stage.label}-{self.key[:16]}"


def plan(goals: Iterable[Stage]) -> tuple[Step, ...]:
    """The goals and all they need, each once, every stage after those it needs.

    Raises:
        BundleError: two different stages have one label, or a name is not one.
    """
    steps: dict[str, Step] = {}
    seen: dict[int, Step] = {}

    def visit(stage: Stage) -> Step:
        if id(stage) in seen:
            return seen[id(stage)]
        if not _NAME.fullmatch(stage.name):
            raise BundleError("stage-name", f"{stage.name!r} is no stage name; expected lower-case words and dashes")
        made = _step(stage, tuple(visit(need) for need in stage.needs))
        step = steps.setdefault(stage.label, made)
        if step.key != made.key:
            raise BundleError("stage-twice", f"two different stages are called {stage.label}")
        seen[id(stage)] = step
        return step

    for goal in goals:
        visit(goal)
    return tuple(steps.values())


def _step(stage: Stage, needs: tuple[Step, ...]) -> Step:
    parts = {f"environment {name}": value for name, value in ENVIRONMENT.items()}
    parts["environment PATH"] = ":".join(SYSTEM_PATH)
    parts |= {f"input {name}": value for name, value in stage.inputs.items()}
    modules = {*stage.modules, "bundle.unpack"} if stage.sources else set(stage.modules)
    parts |= {f"module {name}": program_digest(_module_path(name)) for name in modules}
    parts |= {f"source {source.name}": source.digest for source in stage.sources}
    parts |= {f"stage {need.stage.label}": need.key for need in needs}
    parts["results"] = "\n".join(stage.results)
    digest = hashlib.sha256(stage.label.encode())
    for name, value in sorted(parts.items()):
        digest.update(f"\0{len(name)} {name}\0{len(value)} {value}".encode())
    return Step(stage=stage, key=digest.hexdigest(), parts=parts, needs=needs)


def program_digest(path: Path) -> str:
    """SHA-256 of what a Python file does: comments, docstrings and layout leave it unchanged."""
    tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and type(first.value.value) is str:
                first.value.value = ""
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest()


def _module_path(name: str) -> Path:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None:
        raise BundleError("stage-module", f"there is no module {name}")
    return Path(spec.origin)
