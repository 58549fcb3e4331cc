"""Builds the engine with zig cc: a shared library or an archive per target, or a static test program.

    python -m engine.build [--target native|x86_64|aarch64] [--debug] [--sanitize address,undefined] [--out DIR]
    python -m engine.build --kind archive [--target native|x86_64|aarch64]
    python -m engine.build --kind quantizer [--target native|x86_64|aarch64]
    python -m engine.build --kind static-exe --out DIR [--name NAME] FILE.c ...

Every object and every link result is cached by content, so an unchanged tree builds nothing.
"""

import argparse
import hashlib
import os
import shutil
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from engine import icu
from engine.errors import BuildError
from engine.fetch import Report, cache_root
from engine.toolchain import Target, Toolchain, resolve_target, toolchain_for

ROOT = Path(__file__).resolve().parent.parent
ENGINE = ROOT / "engine"
LIBRARY = "libling3.so"
ARCHIVE = "libling3.a"
QUANTIZER = "libling3_quantize.so"

_QUANTIZE = ENGINE / "src" / "quantize"
_PRUNE_AFTER_S = 30 * 24 * 3600.0

_WARNINGS = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-Werror")
# No contraction: a fused multiply-add that one compiler makes and another does not would change results.
_NUMERICS = ("-ffp-contract=off", "-fno-math-errno")
_SECTIONS = ("-fPIC", "-fvisibility=hidden", "-ffunction-sections", "-fdata-sections")
_LINK = ("-Wl,--gc-sections", "-Wl,-z,defs", "-Wl,-z,relro", "-Wl,-z,now", "-Wl,--build-id=none")


@dataclass(frozen=True, slots=True, kw_only=True)
class Build:
    """What to build for, and how. `static` compiles against a static C library, for programs that run anywhere.

    `coverage` makes every basic block of the engine call `__sanitizer_cov_trace_pc`, which the program defines.
    """

    target: Target
    toolchain: Toolchain
    debug: bool = False
    sanitize: tuple[str, ...] = ()
    static: bool = False
    coverage: bool = False

    @property
    def name(self) -> str:
        """Folder name of the results, such as `x86_64` or `aarch64-static-debug`."""
        parts = [self.target.name]
        parts += ["static"] if self.static else []
        parts += ["debug"] if self.debug else []
        parts += ["coverage"] if self.coverage else []
        return "-".join([*parts, *self.sanitize])

    def flags(self) -> tuple[str, ...]:
        """Compiler flags that C and C++ share."""
        optimise = ("-O1", "-g", "-DL3_DEBUG=1") if self.debug or self.sanitize else ("-O3", "-g0")
        # Inlined into the kernels, gcc's checks take minutes to compile.
        calls = ("-fno-inline",) if "address" in self.sanitize else ()
        return (
            *optimise,
            *calls,
            *_NUMERICS,
            *_SECTIONS,
            f"-ffile-prefix-map={ROOT}=.",
            *self.toolchain.sanitizer_flags,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One compilation: a source, the command for it and the key of its result."""

    source: Path
    command: tuple[str, ...]
    key: str


def plan_build(
    target: str = "native", *, debug: bool = False, sanitize: Sequence[str] = (), static: bool = False
) -> Build:
    """Chooses target and compiler. `sanitize` takes `address` and `undefined`.

    Raises BuildError for what does not go together or a compiler that is missing.
    """
    chosen = resolve_target(target)
    names = tuple(sorted(set(sanitize)))
    toolchain = toolchain_for(chosen, sanitize=names, static=static)
    return Build(target=chosen, toolchain=toolchain, debug=debug, sanitize=names, static=static)


def build_library(
    target: str = "native",
    *,
    debug: bool = False,
    sanitize: Sequence[str] = (),
    out: Path | None = None,
    report: Report | None = None,
) -> Path:
    """Builds the engine as a shared library and returns its path, `build/<target>/libling3.so` by default.

    Raises BuildError with the compiler's words where a source does not compile.
    """
    say = report or _print_progress
    build = plan_build(target, debug=debug, sanitize=sanitize)
    objects, link = _engine_objects(build, say)
    words = ["-shared", f"-Wl,-soname,{LIBRARY}", *_LINK, *([] if debug or sanitize else ["-Wl,--strip-debug"])]
    folder = out or ROOT / "build" / build.name
    return _link(build, words, objects, [*link, "-lm", "-lpthread"], folder / LIBRARY, say)


def build_quantizer(
    target: str = "native",
    *,
    debug: bool = False,
    sanitize: Sequence[str] = (),
    out: Path | None = None,
    report: Report | None = None,
) -> Path:
    """Builds the encoder of `ling3_quantize.h`, `build/<target>/libling3_quantize.so` by default; returns its path.

    Raises BuildError with the compiler's words where a source does not compile.
    """
    say = report or _print_progress
    build = plan_build(target, debug=debug, sanitize=sanitize)
    headers = _headers_digest([])
    objects = _compile(build, [_c_unit(build, path, headers, []) for path in quantizer_sources(build.target)], say)
    words = ["-shared", f"-Wl,-soname,{QUANTIZER}", *_LINK, *([] if debug or sanitize else ["-Wl,--strip-debug"])]
    folder = out or ROOT / "build" / build.name
    return _link(build, words, objects, ["-lm"], folder / QUANTIZER, say)


def build_archive(
    target: str = "native", *, debug: bool = False, out: Path | None = None, report: Report | None = None
) -> Path:
    """Builds the engine as an archive for a program that holds it, `build/<target>/libling3.a` by default.

    It carries its part of ICU and needs glibc 2.28, libm and libpthread. Link it with `--whole-archive`, so that the
    functions of `ling3.h` are there for whoever asks at run time. Raises BuildError where a source does not compile
    or ICU's source cannot be had.
    """
    say = report or _print_progress
    build = plan_build(target, debug=debug)
    objects, link = _engine_objects(build, say)
    if link:
        raise BuildError(
            f"an archive cannot hold {' '.join(link)}",
            hint=f"Put {icu.ARCHIVE.names[0]} into a folder and name the folder in MINDNANO_SOURCES.",
        )
    folder = out or ROOT / "build" / build.name
    return _produce(build, [*build.toolchain.archiver, "rcsD"], [*map(str, objects)], folder / ARCHIVE, say)


def build_executable(
    sources: Sequence[Path],
    name: str,
    target: str = "native",
    *,
    static: bool = False,
    debug: bool = False,
    sanitize: Sequence[str] = (),
    coverage: bool = False,
    extra_flags: Sequence[str] = (),
    out: Path | None = None,
    report: Report | None = None,
) -> Path:
    """Builds a program from C files and all of the engine, internal functions included, and returns its path.

    A static program needs nothing of the system it runs on, so an emulator runs one for another architecture.
    With `coverage` the engine, not the program, is instrumented.
    """
    say = report or _print_progress
    build = replace(plan_build(target, debug=debug, sanitize=sanitize, static=static), coverage=coverage)
    objects, link = _engine_objects(build, say)
    headers = _headers_digest([path.parent for path in sources])
    units = [_c_unit(build, path.resolve(), headers, extra_flags) for path in sources]
    objects = [*_compile(build, units, say), *objects]
    words = ["-static"] if static else []
    words += ["-Wl,--gc-sections"]
    folder = out or ROOT / "build" / build.name
    return _link(build, words, objects, [*link, *extra_flags, "-lm", "-lpthread"], folder / name, say)


def build_objects(
    sources: Sequence[Path], target: str = "native", *, extra_flags: Sequence[str] = (), report: Report | None = None
) -> list[Path]:
    """Compiles further C files of a program that holds the engine, by the engine's own rules; the objects, in order.

    Raises BuildError with the compiler's words where one does not compile.
    """
    build = plan_build(target)
    headers = _headers_digest([path.resolve().parent for path in sources])
    units = [_c_unit(build, path.resolve(), headers, extra_flags) for path in sources]
    return _compile(build, units, report or _print_progress)


def _engine_objects(build: Build, report: Report) -> tuple[list[Path], list[str]]:
    host = build.target.name == resolve_target("native").name and not build.static
    unicode_library = icu.prepare(report, host=host)
    headers = _headers_digest([])
    units: list[Unit] = []
    for source in engine_sources(build.target):
        extra = ["-fsanitize-coverage=trace-pc"] if build.coverage else []
        if source.name == "unicode.c":
            extra += ["-isystem", str(unicode_library.include), *unicode_library.flags]
        units.append(_c_unit(build, source, headers + unicode_library.identity, extra))
    for source in unicode_library.sources:
        command = (*build.toolchain.cxx, *build.flags(), *unicode_library.source_flags, "-I", str(source.parent))
        units.append(_unit(build, source, command, unicode_library.identity))
    if not units:
        raise BuildError(f"no C source in {ENGINE / 'src'}")
    return _compile(build, units, report), list(unicode_library.link)


def engine_sources(target: Target) -> list[Path]:
    """The engine's C files for a target: kernels for other instruction sets and the quantiser are left out."""
    return [path for path in _sources(target) if not path.is_relative_to(_QUANTIZE)]


def quantizer_sources(target: Target) -> list[Path]:
    """The C files of the quantiser for a target."""
    return [ENGINE / "src" / "base" / "cpu.c", *(path for path in _sources(target) if path.is_relative_to(_QUANTIZE))]


def _sources(target: Target) -> list[Path]:
    foreign = tuple(f"_{suffix}.c" for suffix in ("avx2", "neon") if suffix != target.simd)
    return [path for path in sorted((ENGINE / "src").rglob("*.c")) if not path.name.endswith(foreign)]


def _headers_digest(folders: Sequence[Path]) -> str:
    digest = hashlib.sha256()
    for folder in (ENGINE / "include", ENGINE / "src", *sorted(set(folders))):
        for path in sorted(folder.rglob("*.h")):
            content = path.read_bytes()
            digest.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode())
            digest.update(content)
    return digest.hexdigest()


def _c_unit(build: Build, source: Path, headers: str, extra: Sequence[str]) -> Unit:
    simd = source.name.endswith(f"_{build.target.simd}.c")
    compiler = build.toolchain.cc_simd if simd else build.toolchain.cc
    includes = ("-I", str(ENGINE / "include"), "-I", str(ENGINE / "src"))
    # Empty, so that a file may say `#define _GNU_SOURCE` itself.
    standard = ("-std=c11", "-D_GNU_SOURCE=")
    command = (*compiler, *standard, *build.flags(), *_WARNINGS, *includes, *extra)
    return _unit(build, source, command, headers)


def _unit(build: Build, source: Path, command: Sequence[str], surroundings: str) -> Unit:
    digest = hashlib.sha256()
    for part in (build.toolchain.identity, *command, surroundings, source.name):
        digest.update(part.encode() + b"\0")
    digest.update(source.read_bytes())
    return Unit(source=source, command=tuple(command), key=digest.hexdigest())


def _compile(build: Build, units: Sequence[Unit], report: Report) -> list[Path]:
    """Objects of all units in order; compiles the missing ones, two at a time where there are two processors."""
    folder = cache_root() / "objects"
    objects = [folder / f"{unit.key}.o" for unit in units]
    missing = [(unit, path) for unit, path in zip(units, objects, strict=True) if not path.is_file()]
    if not missing:
        return objects
    folder.mkdir(parents=True, exist_ok=True)
    _prune(folder)
    done = 0

    def compile_one(job: tuple[Unit, Path]) -> None:
        nonlocal done
        unit, path = job
        partial = path.with_suffix(f".{os.getpid()}.partial.o")
        try:
            build.toolchain.run([*unit.command, "-c", str(unit.source), "-o", str(partial)], f"compile {unit.source}")
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)
        done += 1
        report(f"[{done}/{len(missing)}] {build.name} {unit.source.name}")

    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        for _ in pool.map(compile_one, missing):
            pass
    return objects


def _prune(folder: Path) -> None:
    """Forgets results that are a month old; what is still needed is made again."""
    oldest = time.time() - _PRUNE_AFTER_S
    for path in folder.iterdir():
        try:
            if path.stat().st_mtime < oldest:
                path.unlink()
        except OSError:
            continue  # another build was faster


def _link(
    build: Build, words: Sequence[str], objects: Sequence[Path], libraries: Sequence[str], target: Path, report: Report
) -> Path:
    command = [*build.toolchain.ld, *words]
    return _produce(build, [*command, "-o"], [*map(str, objects), *libraries], target, report)


def _produce(build: Build, command: Sequence[str], inputs: Sequence[str], target: Path, report: Report) -> Path:
    """Runs `command RESULT inputs` unless its result is there or in the cache; puts it in place at once."""
    key = hashlib.sha256("\0".join([build.toolchain.identity, *command, *inputs]).encode()).hexdigest()
    stamp = target.with_name(f".{target.name}.key")
    if target.is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == key:
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    kept = cache_root() / "links" / key
    partial = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        if kept.is_file():
            shutil.copy(kept, partial)
        else:
            report(f"linking {target.name} for {build.name}")
            partial.unlink(missing_ok=True)  # an archive would grow
            build.toolchain.run([*command, str(partial), *inputs], f"link {target.name}")
            kept.parent.mkdir(parents=True, exist_ok=True)
            _prune(kept.parent)
            copy = kept.with_name(f"{key}.{os.getpid()}.partial")
            shutil.copy(partial, copy)
            copy.replace(kept)
        stamp.unlink(missing_ok=True)
        partial.replace(target)
        stamp.write_text(key, encoding="utf-8")
    finally:
        partial.unlink(missing_ok=True)
    return target


def _print_progress(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m engine.build", description="Build the inference engine.")
    parser.add_argument("--target", default="native", choices=("native", "x86_64", "aarch64"))
    parser.add_argument("--kind", default="shared", choices=("shared", "archive", "quantizer", "static-exe"))
    parser.add_argument("--debug", action="store_true", help="assertions, allocation guard and debug information")
    parser.add_argument("--sanitize", default="", metavar="LIST", help="address, undefined or both, with a comma")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the result (default: build/<target>)")
    parser.add_argument("--name", help="name of the program (default: that of the first source)")
    parser.add_argument("sources", nargs="*", type=Path, metavar="FILE.c", help="sources of a static-exe")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line: prints the path of the result on stdout; 1 and the reason on stderr where the build fails."""
    parser = _parser()
    options = parser.parse_args(arguments)
    sanitize = [word for word in options.sanitize.split(",") if word]
    if (options.kind == "static-exe") != bool(options.sources):
        parser.error("C sources are needed for --kind static-exe, and only there")
    try:
        if options.kind == "shared":
            result = build_library(options.target, debug=options.debug, sanitize=sanitize, out=options.out)
        elif options.kind == "archive":
            result = build_archive(options.target, debug=options.debug, out=options.out)
        elif options.kind == "quantizer":
            result = build_quantizer(options.target, debug=options.debug, sanitize=sanitize, out=options.out)
        else:
            name = options.name or options.sources[0].stem
            result = build_executable(
                options.sources,
                name,
                options.target,
                static=True,
                debug=options.debug,
                sanitize=sanitize,
                out=options.out,
            )
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
