"""The inventory of a whole portable file as the build hands it over, with digests that stand for real ones."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from bundle.origins import archive_origins
from bundle.sources import load_sources
from notices.collect import Inventory, Origin, PayloadFile
from notices.compilation import Compilation, Module, read_report
from notices.components import Component, normalised_sha256
from notices.linked import Archive, ObjectFile

REPORT: Final = Path(__file__).with_name("nuitka") / "report.xml"
"""Written by Nuitka 4.3.3 for a program of three lines; command line, search path and times are taken out."""

ROCKCHIP_TEXT: Final = b"Terms of a stand-in for librknnrt.\n"
SUPPLIED: Final = {("librknnrt", "LICENSE"): ROCKCHIP_TEXT}

ARCHIVES: Final[Mapping[str, tuple[str, ...]]] = {
    "libpython3.13.a": ("getbuildinfo.o", "obmalloc.o", "blake2b_impl.o", "blake2s_impl.o", "Hacl_Hash_MD5.o"),
    "libmpdec.a": ("basearith.o",),
    "libHacl_Hash_SHA2.a": ("Hacl_Hash_SHA2.o",),
    "libexpat.a": ("xmlparse.o",),
    "libz.a": ("adler32.o", "inflate.o"),
    "libffi.a": ("prep_cif.o",),
    "libssl.a": ("libssl-lib-ssl_lib.o",),
    "libcrypto.a": ("libcrypto-lib-sha512.o",),
    "libling3.a": ("5b6ef9c7.o", "1df0b630.o"),
    "libc_nonshared.a": ("atexit.o",),
    "libcompiler_rt.a": ("compiler_rt_zcu.o",),
}
OBJECTS: Final = (
    "Scrt1.o",
    "start.o",
    "l3_module.o",
    "msgspec_core.o",
    "msgspec_module.o",
    "__constants.o",
    "__loader.o",
    "module.launcher.cli.o",
    "CompiledFunctionType.o",
    "MainProgram.o",
)
PACKAGES: Final = {
    "anyio": "anyio",
    "charset-normalizer": "charset_normalizer",
    "certifi": "certifi",
    "click": "click",
    "h11": "h11",
    "idna": "idna",
    "jinja2": "jinja2",
    "llguidance": "llguidance",
    "markupsafe": "markupsafe",
    "msgspec": "msgspec",
    "prometheus-client": "prometheus_client",
    "prompt-toolkit": "prompt_toolkit",
    "requests": "requests",
    "starlette": "starlette",
    "typing-extensions": "typing_extensions",
    "urllib3": "urllib3",
    "uvicorn": "uvicorn",
    "wcwidth": "wcwidth",
}
VERSIONS: Final = {
    "anyio": "4.16.0",
    "certifi": "2026.10.19.post1",
    "charset-normalizer": "3.5.3",
    "click": "8.5.1",
    "h11": "0.16.0",
    "idna": "3.20",
    "jinja2": "3.1.6",
    "llguidance": "1.6.1",
    "markupsafe": "3.0.4",
    "msgspec": "0.23.0",
    "nuitka": "4.3.3",
    "prometheus-client": "0.26.0",
    "prompt-toolkit": "3.0.53",
    "requests": "2.34.2",
    "starlette": "1.10.0",
    "typing-extensions": "4.16.0",
    "urllib3": "2.8.0",
    "uvicorn": "0.54.0",
    "wcwidth": "0.9.4",
    "ziglang": "0.17.1",
}
PAYLOAD: Final = ("models/demo.l3r", "lib/librknnrt.so", "lib/llguidance.whl", "certs/cacert.pem")


def digest(name: str) -> str:
    """A SHA-256 that no two names share."""
    return hashlib.sha256(name.encode()).hexdigest()


def module(name: str, *distributions: str, stdlib: bool = False) -> Module:
    """A compiled module."""
    return Module(name=name, kind="CompiledPythonModule", stdlib=stdlib, distributions=distributions)


def compilation() -> Compilation:
    """What Nuitka would report: ours, every package and some of the standard library, beside the real report's."""
    real = read_report(REPORT)
    modules = {entry.name: entry for entry in real.modules}
    modules |= {name: module(name) for name in ("launcher", "launcher.cli")}
    for name, package in PACKAGES.items():
        modules |= {word: module(word, name) for word in (package, f"{package}.part")}
    modules |= {name: module(name, stdlib=True) for name in ("argparse", "asyncio.events")}
    return Compilation(
        version=real.version,
        modules=tuple(sorted(modules.values(), key=lambda entry: entry.name)),
        metadata=("idna", "prompt-toolkit"),
        distributions={name: VERSIONS[name] for name in PACKAGES},
    )


def origins() -> dict[str, Origin]:
    """What was taken for each pin."""
    found = archive_origins(load_sources())
    for name, version in VERSIONS.items():
        file = f"{name}-{version}-py3-none-any.whl"
        found[f"pypi:{name}"] = Origin(version=version, file=file, sha256=digest(file))
    found["rknn-runtime"] = Origin(version="2.3.2", file="librknnrt.so", sha256=digest("lib/librknnrt.so"))
    found["project"] = Origin(version="0.1.0")
    return found


def inventory(*, without: tuple[str, ...] = ()) -> Inventory:
    """A whole build, except parts with the given names."""
    parts = compilation()
    modules = tuple(entry for entry in parts.modules if entry.name.partition(".")[0] not in without)
    return Inventory(
        target="aarch64",
        archives=tuple(
            Archive(name=name, sha256=digest(name), members=members)
            for name, members in ARCHIVES.items()
            if name not in without
        ),
        objects=tuple(ObjectFile(name=name, sha256=digest(name)) for name in OBJECTS if name not in without),
        compilation=Compilation(
            version=parts.version,
            modules=modules,
            metadata=tuple(name for name in parts.metadata if PACKAGES[name] not in without),
            distributions=parts.distributions,
        ),
        payload=tuple(PayloadFile(name=name, sha256=digest(name)) for name in PAYLOAD if name not in without),
        origins=origins(),
    )


def with_known_terms(components: tuple[Component, ...]) -> tuple[Component, ...]:
    """The components, with ROCKCHIP_TEXT as the terms that are expected of whoever hands over librknnrt's."""

    def changed(one: Component) -> Component:
        texts = [
            dataclasses.replace(text, supplied_sha256=normalised_sha256(ROCKCHIP_TEXT))
            if text.supplied_sha256
            else text
            for text in one.texts
        ]
        return dataclasses.replace(one, texts=tuple(texts))

    return tuple(changed(one) for one in components)
