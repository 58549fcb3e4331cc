"""llguidance, whose compiled part the portable program carries inside the wheel that its authors publish.

Nothing is unpacked to disk: the compiled part is inflated, held against the digest in the wheel's own list, placed in
memory and loaded from there. The modules around it are part of the program. In a checkout it is an installed package.
"""

from __future__ import annotations

import base64
import hashlib
import io
import sys
import threading
import zipfile
from collections.abc import Mapping
from types import ModuleType
from typing import Final

from launcher.errors import EngineError
from launcher.payload.carried import LLGUIDANCE, carried
from launcher.payload.file import Payload

COMPILED: Final = "llguidance._lib"
LIBRARY: Final = "llguidance/_lib.abi3.so"

_HINT: Final = "check the program with --verify-self; answers without a schema or a grammar need none of this"
_LOCK: Final = threading.Lock()


def import_llguidance(environ: Mapping[str, str]) -> ModuleType:
    """The package llguidance, loaded at the first call.

    Args:
        environ: names folders to load from where the kernel refuses memory; see `launcher.payload.memory_file`.

    Raises:
        EngineError: its compiled part is not what it should be, or cannot be loaded here.
    """
    with _LOCK:
        payload = carried()
        if payload is not None and COMPILED not in sys.modules:
            _load(carried_library(payload), environ)
        try:
            import llguidance
        except ImportError as error:
            raise EngineError("llguidance-unusable", f"llguidance cannot be used here: {error}", hint=_HINT) from error
        return llguidance


def carried_library(payload: Payload) -> bytes:
    """The compiled part out of the payload's wheel.

    Raises:
        EngineError: the wheel or what is in it is not what the lists say, or the program carries none.
    """
    member = payload.members.get(LLGUIDANCE)
    if member is None:
        raise EngineError("llguidance-absent", "this program carries no llguidance", hint=_HINT)
    wheel = payload.read(LLGUIDANCE)
    if hashlib.sha256(wheel).hexdigest() != member.sha256:
        raise EngineError("llguidance-damaged", f"{LLGUIDANCE} is not what the payload's list says", hint=_HINT)
    return library_in(wheel)


def library_in(wheel: bytes) -> bytes:
    """The compiled part in a wheel, which has the digest that the wheel's own RECORD gives.

    Raises:
        EngineError: it has not, or there is no such part.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
            record = next(name for name in archive.namelist() if name.endswith(".dist-info/RECORD"))
            lines = [line.rsplit(",", 2) for line in archive.read(record).decode().splitlines()]
            expected = next(digest for name, digest, _ in lines if name == LIBRARY)
            library = archive.read(LIBRARY)
    except (zipfile.BadZipFile, KeyError, StopIteration, ValueError) as error:
        raise EngineError("llguidance-damaged", f"{LLGUIDANCE} cannot be read: {error!r}", hint=_HINT) from error
    # PEP 376: URL-safe base 64 without padding.
    found = "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(library).digest()).decode().rstrip("=")
    if found != expected:
        raise EngineError("llguidance-damaged", f"{LIBRARY} has {found}; its wheel says {expected}", hint=_HINT)
    return library


def _load(library: bytes, environ: Mapping[str, str]) -> None:
    """Makes the compiled part known as the module that the package will import."""
    from importlib.machinery import ExtensionFileLoader
    from importlib.util import module_from_spec, spec_from_loader

    from launcher.payload.memory_file import place

    # Once loaded, its pages stay without a descriptor.
    with place(library, "llguidance", environ) as file:
        loader = ExtensionFileLoader(COMPILED, file.path)
        spec = spec_from_loader(COMPILED, loader, origin=file.path)
        assert spec is not None
        try:
            module = module_from_spec(spec)
            loader.exec_module(module)
        except ImportError as error:
            raise EngineError("llguidance-unusable", f"llguidance cannot be loaded: {error}", hint=_HINT) from error
    sys.modules[COMPILED] = module
