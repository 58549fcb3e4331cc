"""All stages of the portable file and how they hang together."""

from __future__ import annotations

from pathlib import Path

from bundle import (
    assemble,
    c_libraries,
    cpython,
    link,
    msgspec_core,
    nuitka,
    python_packages,
    python_runtime,
    smoke,
    zig,
)
from bundle.assemble import Freight
from bundle.sources import load_sources
from bundle.stages import Stage
from engine.fetch import cache_root

NO_FREIGHT = Freight(runtime=None, demo=None)


def stages(target: str, freight: Freight = NO_FREIGHT) -> dict[str, Stage]:
    """The stages of a target by the names that the command line gives them, in the order in which they run."""
    sources = load_sources()
    host = zig.host_target()

    def python(where: str, build_python: Stage | None) -> dict[str, Stage]:
        made = {
            "zlib": c_libraries.zlib(where, sources),
            "libffi": c_libraries.libffi(where, sources),
            "openssl": c_libraries.openssl(where, sources),
        }
        made["cpython"] = cpython.stage(
            where,
            sources["cpython"],
            zlib=made["zlib"],
            libffi=made["libffi"],
            openssl=made["openssl"],
            build_python=build_python,
        )
        made["python_runtime"] = python_runtime.stage(
            where, cpython=made["cpython"], libraries=(made["zlib"], made["libffi"], made["openssl"])
        )
        return made

    native = python(host, None)
    made = native if target == host else python(target, native["cpython"])
    packages = python_packages.packages()
    llguidance = python_packages.llguidance(target)
    msgspec = msgspec_core.stage(target, packages=packages, python=made["python_runtime"])
    compiler = python_packages.nuitka()
    compiled = nuitka.stage(
        target,
        packages=(packages, llguidance),
        nuitka=compiler,
        host_python=native["python_runtime"],
        target_python=made["python_runtime"],
    )
    linked = link.stage(
        target,
        compiled=compiled,
        python=made["python_runtime"],
        cpython=made["cpython"],
        msgspec=msgspec,
        llguidance=llguidance,
    )
    assembled = assemble.stage(
        target,
        linked=linked,
        compiled=compiled,
        packages=packages,
        llguidance=llguidance,
        nuitka=compiler,
        sources=sources,
        freight=freight,
        forbidden=(*foreign_paths(), f"{cache_root().absolute()}/", f"{Path.home()}/"),
    )
    smoked = smoke.stage(target, assembled=assembled, freight=freight)
    return {
        "packages": packages,
        "llguidance": llguidance,
        **made,
        "msgspec": msgspec,
        "nuitka": compiled,
        "link": linked,
        "assemble": assembled,
        "smoke": smoked,
    }


def foreign_paths() -> tuple[str, ...]:
    """Paths of this machine that no result may hold."""
    return (str(zig.zig_program().parent), str(Path(__file__).resolve().parents[1]))
