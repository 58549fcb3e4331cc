"""What the portable program is linked from beside Python and the compiled launcher: engine, start-up check, `_l3`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bundle.errors import BundleError
from engine.build import build_archive, build_objects
from engine.errors import BuildError
from engine.fetch import Report

NATIVE: Final = Path(__file__).with_name("native")
SOURCES: Final = (NATIVE / "start.c", NATIVE / "l3_module.c", NATIVE / "own_path.c")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramParts:
    """Objects of SOURCES, in order, and the archive of the engine."""

    objects: tuple[Path, ...]
    engine: Path

    def link_words(self) -> tuple[str, ...]:
        """Words for `zig cc` or `zig c++`; they stand before libpython, whose functions the objects call.

        The whole engine is linked and its functions are exported, since the launcher finds them by name at run time.
        """
        return (
            *map(str, self.objects),
            "-Wl,--whole-archive",
            str(self.engine),
            "-Wl,--no-whole-archive",
            "-Wl,--export-dynamic",
            "-Wl,--wrap=realpath",
            "-Wl,--gc-sections",
            "-Wl,-z,relro",
            "-Wl,-z,now",
            "-Wl,--build-id=none",
            "-Wl,--strip-all",
            "-lm",
            "-lpthread",
        )


def program_parts(target: str, python_include: Path, *, out: Path, report: Report | None = None) -> ProgramParts:
    """Builds the parts for a target, or finds them in the cache.

    Args:
        target: x86_64 or aarch64.
        python_include: folder of Python.h and the pyconfig.h of the target.
        out: folder for the engine's archive.
        report: gets lines of progress.

    Raises:
        BundleError: a source does not compile, with the compiler's words.
    """
    # Python's headers are not held to our warnings.
    flags = ("-isystem", str(python_include))
    try:
        objects = build_objects(SOURCES, target, extra_flags=flags, report=report)
        engine = build_archive(target, out=out, report=report)
    except BuildError as error:
        raise BundleError("engine-build", error.message, hint=error.hint) from error
    return ProgramParts(objects=tuple(objects), engine=engine)
