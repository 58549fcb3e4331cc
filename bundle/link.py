"""Links the program of one target: compiled launcher, engine, start-up check and Python in one ELF file.

    mindnano-infer.elf    the program, without a payload
    linked.json           every static library and object in it, as `linked_parts` reads them

Only this stage depends on the engine's C sources: after a change of them it runs alone, and its compilations are cached
by content.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

from bundle import msgspec_core, python_api, python_packages, zig
from bundle import nuitka as compiler
from bundle.cpython import VERSION
from bundle.errors import BundleError
from bundle.program_parts import NATIVE, SOURCES, ProgramParts, program_parts
from bundle.python_runtime import LIBRARY
from bundle.stages import Stage
from bundle.workspace import Workspace
from engine.build import ENGINE
from notices.linked import Archive, ObjectFile, linked_files, linker_command, read_archive

PROGRAM: Final = "mindnano-infer.elf"
LINKED: Final = "linked.json"

_SYSTEM: Final = ("-ldl", "-lutil", "-lrt", "-lm", "-lpthread")
# The linker's own command shows what zig adds; it is kept apart from what the log gets.
_SPEAKING: Final = '"$@" 2> linker.txt || { status=$?; cat linker.txt; exit $status; }'


def stage(target: str, *, compiled: Stage, python: Stage, cpython: Stage, msgspec: Stage, llguidance: Stage) -> Stage:
    """The stage for a target, from the compiled launcher, Python and compiled packages of that target.

    Of llguidance nothing is linked; the program must have what it will ask for when it is loaded.
    """

    def run(workspace: Workspace) -> None:
        zig.install(workspace, target)
        # By its real path, which is the same each time: compiled objects are found by their command.
        include = workspace.need(python.name).resolve() / "python" / "include" / f"python{VERSION}"
        parts = program_parts(target, include, out=workspace.work / "engine", report=workspace.say)
        folder = workspace.work / "link"
        folder.mkdir()
        objects = sorted((workspace.need(compiled.name) / compiler.OBJECTS).iterdir())
        objects += [workspace.need(msgspec.name) / name for name in msgspec_core.OBJECTS]
        inputs = _named_inputs(folder, parts, objects)
        library = folder / LIBRARY
        library.symlink_to(workspace.need(python.name) / "python" / "lib" / LIBRARY)
        words = [*inputs.link_words(), "-pie", library.name, *_SYSTEM]
        command = ["sh", "-c", _SPEAKING, "sh", zig.CC, "-O3", "-v", *words, "-o", PROGRAM]
        workspace.command(command, folder=folder, what="linking the program")
        program = folder / PROGRAM
        if (workspace.need(compiled.name) / compiler.CONSTANTS).read_bytes() not in program.read_bytes():
            raise BundleError("link-constants", "the linked program does not hold the constants of the compilation")
        python_api.require(program, workspace.need(llguidance.name) / python_packages.LLGUIDANCE_LIBRARY)
        joined = {LIBRARY: _joined(workspace.need(cpython.name) / "archives")}
        record = _record(folder, joined)
        (workspace.out / LINKED).write_text(json.dumps(record, indent=1), encoding="utf-8")
        program.rename(workspace.out / PROGRAM)

    return Stage(
        name="link",
        target=target,
        run=run,
        results=(PROGRAM, LINKED),
        inputs={**zig.inputs(target), **_source_digests()},
        modules=(
            __name__,
            "bundle.program_parts",
            "bundle.python_api",
            "bundle.zig",
            "engine.build",
            "engine.icu",
            "engine.toolchain",
            "notices.linked",
        ),
        needs=(compiled, python, cpython, msgspec, llguidance),
    )


def linked_parts(result: Path) -> tuple[tuple[Archive, ...], tuple[ObjectFile, ...]]:
    """The static libraries and objects of a result of this stage."""
    record = json.loads((result / LINKED).read_text(encoding="utf-8"))
    archives = tuple(Archive(**{**entry, "members": tuple(entry["members"])}) for entry in record["archives"])
    return archives, tuple(ObjectFile(**entry) for entry in record["objects"])


def _named_inputs(folder: Path, parts: ProgramParts, objects: list[Path]) -> ProgramParts:
    """Everything under short names in the folder of the link, so that what the linker prints can be read again."""
    named = {path.name: path for path in objects}
    named |= {f"{source.stem}.o": path for source, path in zip(SOURCES, parts.objects, strict=True)}
    if len(named) != len(objects) + len(parts.objects):
        raise BundleError("link-names", "the compiled launcher and our own parts have objects of one name")
    for name, path in {**named, parts.engine.name: parts.engine}.items():
        (folder / name).symlink_to(path.absolute())
    return ProgramParts(objects=tuple(Path(name) for name in named), engine=Path(parts.engine.name))


def _record(folder: Path, joined: Mapping[str, list[Archive]]) -> Mapping[str, object]:
    words = linker_command((folder / "linker.txt").read_text(encoding="utf-8"), PROGRAM)
    archives, objects = linked_files(words, folder, joined=joined)
    # The engine's library and those that zig makes on the way hold names of this machine's cache, which do not get into
    # the program: of these a digest would say nothing.
    stages = {archive.name for parts in joined.values() for archive in parts}
    named = [archive if archive.name in stages else replace(archive, sha256="") for archive in archives]
    return {"archives": [asdict(archive) for archive in named], "objects": [asdict(entry) for entry in objects]}


def _joined(folder: Path) -> list[Archive]:
    """The libraries that Python's one library was joined from; numbers before their names keep their order."""
    return [read_archive(path, path.name.partition("-")[2]) for path in sorted(folder.iterdir())]


def _source_digests() -> Mapping[str, str]:
    """The C sources of engine and start-up check."""
    digests = {}
    for top in (ENGINE, NATIVE):
        for path in sorted(top.rglob("*")):
            if path.suffix in (".c", ".h", ".S", ".inc"):
                name = f"{top.name}/{path.relative_to(top)}"
                digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests
