"""Compiles the launcher with Nuitka to objects for one target.

Nuitka runs on the static Python of this machine, whatever the target is, and calls the compiler through
`nuitka_cc.py`. Its own link is only the proof that all belongs together: `link` takes the objects.

    objects/*.o       what it compiled, and its run-time library
    constants.bin     constants and bytecode, which one of the objects holds
    report.xml        which modules are in it and where they come from
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bundle import python_packages, zig
from bundle.cpython import VERSION
from bundle.errors import BundleError
from bundle.stages import Stage
from bundle.workspace import Workspace

HERE: Final = Path(__file__).parent
LAUNCHER: Final = HERE.parent / "launcher"
MAIN: Final = "mindnano_infer"

OBJECTS: Final = "objects"
CONSTANTS: Final = "constants.bin"
REPORT: Final = "report.xml"

# Modules of the standard library that nothing in the program uses: other protocols, tools for programmers, and starting
# Python in another process, which a program of one file cannot do.
_LEFT_OUT: Final = (
    # What stands in for modules that are inside the interpreter.
    "_pydatetime",
    "_pydecimal",
    "_pyio",
    "antigravity",
    "bdb",
    "cProfile",
    "cmd",
    "code",
    "codeop",
    "compileall",
    "concurrent.futures.process",
    "curses",
    "dbm",
    "doctest",
    "ensurepip",
    "filecmp",
    "fileinput",
    "ftplib",
    "imaplib",
    "lib2to3",
    "mailbox",
    "modulefinder",
    "multiprocessing.dummy",
    "multiprocessing.forkserver",
    "multiprocessing.heap",
    "multiprocessing.managers",
    "multiprocessing.pool",
    "multiprocessing.popen_fork",
    "multiprocessing.popen_forkserver",
    "multiprocessing.popen_spawn_posix",
    "multiprocessing.popen_spawn_win32",
    "multiprocessing.queues",
    "multiprocessing.resource_sharer",
    "multiprocessing.resource_tracker",
    "multiprocessing.shared_memory",
    "multiprocessing.sharedctypes",
    "multiprocessing.spawn",
    "multiprocessing.synchronize",
    "pdb",
    "pickletools",
    "poplib",
    "profile",
    "pstats",
    "py_compile",
    "pyclbr",
    "rlcompleter",
    "sched",
    "shelve",
    "smtplib",
    "sqlite3",
    "symtable",
    "tabnanny",
    "this",
    "trace",
    "unittest",
    "venv",
    "webbrowser",
    "xmlrpc",
    "zipapp",
)
# Modules of packages that are imported by names that the program composes.
_BY_NAME: Final = (
    "anyio._backends._asyncio",
    "uvicorn.lifespan.off",
    "uvicorn.lifespan.on",
    "uvicorn.loops.asyncio",
    "uvicorn.protocols.http.h11_impl",
)
# Modules of packages for what the program does not do: other event loops and protocols, and tools for programmers.
_UNUSED: Final = (
    "anyio._backends._trio",
    "anyio.pytest_plugin",
    "click.shell_completion",
    "click.testing",
    "prometheus_client.bridge",
    "prometheus_client.django",
    "prometheus_client.multiprocess",
    "prometheus_client.twisted",
    "uvicorn.loops.auto",
    "uvicorn.loops.uvloop",
    "uvicorn.loops.zuvloop",
    "uvicorn.protocols.http.auto",
    "uvicorn.protocols.http.auto_zttp_impl",
    "uvicorn.protocols.http.httptools_impl",
    "uvicorn.protocols.websockets",
    "uvicorn.supervisors.watchfilesreload",
)
_OPTIONS: Final = (
    "--mode=standalone",
    "--static-libpython=yes",
    "--lto=no",
    "--python-flag=no_site,isolated,no_docstrings,no_asserts",
    "--noinclude-default-mode=nofollow",
    f"--nofollow-import-to={','.join((*_LEFT_OUT, *_UNUSED))}",
    "--include-package=launcher",
    *(f"--include-module={name}" for name in _BY_NAME),
    # It would change `sys.executable` and start Python in other processes, which a program of one file cannot do.
    "--disable-plugins=multiprocessing",
    # It asks for its own version.
    "--include-distribution-metadata=prompt_toolkit",
    "--report-diffable",
    # Nothing is asked of any server.
    "--update-check=never",
)
# Nuitka would patch the program that it links. Nobody takes that one, and the finished file may never be patched.
_PATCHELF: Final = "#!/bin/sh\necho patchelf 0.18.0\n"


def stage(
    target: str,
    *,
    packages: tuple[Stage, ...],
    nuitka: Stage,
    host_python: Stage,
    target_python: Stage,
) -> Stage:
    """The stage for a target, from the packages, Nuitka, and the Python of this machine and of the target."""
    runtimes = tuple({runtime.label: runtime for runtime in (host_python, target_python)}.values())
    digests = {name: _digest(path.read_bytes()) for name, path in _program_files().items()}

    def run(workspace: Workspace) -> None:
        zig.install(workspace, target)
        host = workspace.need(host_python.label) / "python"
        _install_compiler(workspace, host, workspace.need(target_python.label) / "python")
        application = workspace.work / "program"
        _copy_program(application, digests)
        shutil.copy(HERE / "nuitka_plugin.py", workspace.work / "plugin.py")
        # Nuitka runs in a folder below `work`, so all names can be relative: they end up in its report.
        words: list[str | Path] = [host / "bin" / f"python{VERSION}", "-m", "nuitka", *_OPTIONS]
        # Its name says for which machine Python was configured, and it tells where it was built.
        words += [f"--nofollow-import-to={_sysconfig_data(host)}", f"--jobs={workspace.jobs}"]
        words += ["--user-plugin=../plugin.py", "--output-dir=../compiled", f"--report=../{REPORT}"]
        words += [f"--output-filename={MAIN}", f"{MAIN}.py"]
        sites = (workspace.need(stage.name) / python_packages.SITE for stage in (nuitka, *packages))
        environment = {
            "CC": str(workspace.work / "bin" / "zig"),
            "NUITKA_CACHE_DIR": str(workspace.work / "nuitka-cache"),
            # Columns are shown beside a line of source, and the program holds no source.
            "PYTHONNODEBUGRANGES": "1",
            "PYTHONPATH": ":".join(map(str, sites)),
        }
        workspace.command(words, folder=application, environment=environment, what="compiling the launcher")
        _collect(workspace, workspace.work / "compiled" / f"{MAIN}.build")

    return Stage(
        name="nuitka",
        target=target,
        run=run,
        results=(OBJECTS, f"{OBJECTS}/__constants.o", CONSTANTS, REPORT),
        # Comments count: the numbers of lines are part of the compiled program.
        inputs={**zig.inputs(target), "host": zig.host_target(), **digests},
        modules=(__name__, "bundle.nuitka_cc", "bundle.nuitka_plugin", "bundle.python_packages", "bundle.zig"),
        needs=(*packages, nuitka, *runtimes),
    )


def _program_files() -> Mapping[str, Path]:
    modules = {f"launcher/{path.relative_to(LAUNCHER)}": path for path in LAUNCHER.rglob("*.py")}
    return {**modules, f"{MAIN}.py": HERE / "program.py"}


def _copy_program(folder: Path, digests: Mapping[str, str]) -> None:
    """Copies the program's modules, which must be those that the stage was planned with."""
    files = _program_files()
    contents = {name: path.read_bytes() for name, path in files.items()}
    if {name: _digest(content) for name, content in contents.items()} != digests:
        raise BundleError("program-changed", "the launcher's files changed while the build ran", hint="build again")
    for name, content in contents.items():
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content)


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _install_compiler(workspace: Workspace, host: Path, target: Path) -> None:
    programs = workspace.work / "bin"
    settings = {
        "cc": str(programs / zig.CC),
        "zig": str(zig.zig_program()),
        "paths": [[str(real), str(target)] for real in dict.fromkeys((host, host.resolve()))],
    }
    (programs / "zig.json").write_text(json.dumps(settings), encoding="utf-8")
    text = (HERE / "nuitka_cc.py").read_text(encoding="utf-8")
    scripts = {"zig": f"#!{sys.executable} -IS\n{text}", "patchelf": _PATCHELF}
    for name, content in scripts.items():
        script = programs / name
        script.write_text(content, encoding="utf-8")
        script.chmod(0o755)


def _sysconfig_data(python: Path) -> str:
    return next((python / "lib" / f"python{VERSION}").glob("_sysconfigdata_*.py")).stem


def _collect(workspace: Workspace, build: Path) -> None:
    """Takes the objects and checks that the constants in them are those of this compilation.

    Raises:
        BundleError: they are not; a compiler with a cache that does not see what `#embed` includes links old ones.
    """
    constants = build / "blobs" / "__constant.bin"
    objects = sorted(build.rglob("*.o"))
    target = workspace.out / OBJECTS
    target.mkdir()
    for path in objects:
        shutil.copyfile(path, target / path.name)
    if len(list(target.iterdir())) != len(objects):
        raise BundleError("nuitka-layout", "Nuitka compiled two objects of one name")
    shutil.copyfile(constants, workspace.out / CONSTANTS)
    # The same whatever it was told about jobs and folders.
    report = (workspace.work / REPORT).read_text(encoding="utf-8")
    neutral = re.sub(r"<command_line>.*?</command_line>", "", report, flags=re.DOTALL)
    (workspace.out / REPORT).write_text(neutral, encoding="utf-8")
    blob = constants.read_bytes()
    if not any(blob in path.read_bytes() for path in target.glob("__constants*.o")):
        raise BundleError("nuitka-constants", "the compiled constants are not those of this compilation")
