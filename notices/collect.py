"""What a build consists of, and whose each part is.

Everything that was linked, compiled or packed has exactly one owner among the components, and every component owns
something of the build. Where one of the two does not hold, the notices would be wrong, so it is an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from fnmatch import fnmatchcase
from typing import Final

from notices.compilation import Compilation, Module
from notices.components import FROM_BUILD, PROJECT, Component
from notices.errors import NoticeError
from notices.linked import Archive, ObjectFile

_PYPI: Final = "pypi:"


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What the build took for a pin: version, file, SHA-256 and address as far as known, names of applied patches."""

    version: str
    file: str = ""
    sha256: str = ""
    url: str = ""
    patches: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadFile:
    """A file that the program carries."""

    name: str
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Inventory:
    """A build, part by part.

    Attributes:
        target: processor of the result.
        archives: static libraries that were linked; a library that the build joined is listed as its parts.
        objects: single objects that were linked, start files included.
        compilation: what Nuitka compiled.
        payload: files of the payload except those that are made from this inventory: notices, SBOM and `payload.json`.
        origins: what the build took for each pin, by `Component.source`; `project` is the program itself.
    """

    target: str
    archives: tuple[Archive, ...]
    objects: tuple[ObjectFile, ...]
    compilation: Compilation
    payload: tuple[PayloadFile, ...]
    origins: Mapping[str, Origin]


class Kind(Enum):
    """Kinds of parts; the value is how texts call them."""

    ARCHIVE = "static library"
    MEMBER = "member of a static library"
    OBJECT = "object"
    MODULE = "Python module"
    METADATA = "metadata of a Python distribution"
    PAYLOAD = "file of the payload"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One part of a build. `sha256` is empty where it has no bytes of its own, as compiled modules have none."""

    kind: Kind
    name: str
    sha256: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Owned:
    """A component of a build: version and origin as the build has them, and the parts that are its own, in order."""

    component: Component
    version: str
    origin: Origin
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """The components of a build, by key. `target` is the processor of the result."""

    target: str
    owned: tuple[Owned, ...]

    def __getitem__(self, key: str) -> Owned:
        return next(owned for owned in self.owned if owned.component.key == key)


def assign_owners(inventory: Inventory, components: Sequence[Component]) -> Ownership:
    """Finds the owner of every part.

    Raises:
        NoticeError: parts without an owner, parts with more than one, components of which nothing is in the build,
            modules that another distribution installed than the owner's, or pins that the build says nothing about.
            All of them are listed.
    """
    claims = _Claims(components)
    for part, owners in _claimed(inventory, components):
        claims.settle(part, owners)
    faults = [*claims.faults, *_foreign_modules(inventory.compilation.modules, components)]
    used = {key for key, parts in claims.parts.items() if parts}
    used |= {component.key for component in components if component.within in used}
    faults += [
        f"unused: {component.key} ({component.name}) owns nothing of this build"
        for component in components
        if component.key not in used and not component.optional
    ]
    owned = []
    for component in components:
        if component.key in used:
            version, origin, fault = _resolve(component, inventory)
            faults += [fault] if fault else []
            parts = tuple(claims.parts[component.key])
            owned.append(Owned(component=component, version=version, origin=origin, parts=parts))
    if faults:
        raise NoticeError(
            "notices-ownership",
            "the build and its notices do not fit together:\n  " + "\n  ".join(faults),
            hint="describe what is new in notices/, and remove what is gone",
        )
    return Ownership(target=inventory.target, owned=tuple(owned))


class _Claims:
    """Parts by owner, and what is wrong with them."""

    def __init__(self, components: Sequence[Component]) -> None:
        self.parts: dict[str, list[Part]] = {component.key: [] for component in components}
        self.faults: list[str] = []

    def settle(self, part: Part, owners: Sequence[str]) -> None:
        """Notes the owner of a part, or that it does not have exactly one."""
        if len(owners) == 1:
            self.parts[owners[0]].append(part)
        elif owners:
            self.faults.append(f"disputed: the {part.kind.value} {part.name} belongs to {' and '.join(owners)}")
        else:
            self.faults.append(f"orphan: the {part.kind.value} {part.name} belongs to no component")


def _claimed(inventory: Inventory, components: Sequence[Component]) -> Iterator[tuple[Part, list[str]]]:
    """Every part with the keys of all that claim it, in the order of kinds and names."""

    def owners(claim: Callable[[Component], Iterable[str]], name: str) -> list[str]:
        return [one.key for one in components if any(fnmatchcase(name, pattern) for pattern in claim(one))]

    for archive in sorted(inventory.archives, key=lambda archive: archive.name):
        claimed = 0
        for member in sorted(set(archive.members)):
            name = f"{archive.name}:{member}"
            found = owners(lambda one: one.owns.members, name)
            if found:
                claimed += 1
                yield Part(kind=Kind.MEMBER, name=name), found
        whole = owners(lambda one: one.owns.archives, archive.name)
        if whole or claimed < len(set(archive.members)) or not archive.members:
            yield Part(kind=Kind.ARCHIVE, name=archive.name, sha256=archive.sha256), whole
    for entry in sorted(inventory.objects, key=lambda entry: entry.name):
        part = Part(kind=Kind.OBJECT, name=entry.name, sha256=entry.sha256)
        yield part, owners(lambda one: one.owns.objects, entry.name)
    for module in inventory.compilation.modules:
        yield Part(kind=Kind.MODULE, name=module.name), [one.key for one in components if _owns_module(one, module)]
    for name in inventory.compilation.metadata:
        yield Part(kind=Kind.METADATA, name=name), [one.key for one in components if _distribution(one) == name]
    for file in sorted(inventory.payload, key=lambda file: file.name):
        part = Part(kind=Kind.PAYLOAD, name=file.name, sha256=file.sha256)
        yield part, owners(lambda one: one.owns.payload, file.name)


def _owns_module(component: Component, module: Module) -> bool:
    if module.stdlib:
        return component.owns.stdlib
    return any(
        module.name == name or module.name.startswith(f"{name}.") or fnmatchcase(module.name, name)
        for name in component.owns.python
    )


def _distribution(component: Component) -> str:
    """Name of the distribution that a component is, or an empty string."""
    if component.source == PROJECT:
        return component.key
    return component.source.removeprefix(_PYPI) if component.source.startswith(_PYPI) else ""


def _foreign_modules(modules: Iterable[Module], components: Sequence[Component]) -> Iterator[str]:
    """Modules that bear the name of a component and were installed by something else."""
    for module in modules:
        for component in components:
            name = _distribution(component)
            if not module.distributions or module.stdlib or not _owns_module(component, module):
                continue
            if name not in module.distributions:
                found = " and ".join(module.distributions)
                yield f"foreign: {found} installed the module {module.name}, which belongs to {component.key}"


def _resolve(component: Component, inventory: Inventory) -> tuple[str, Origin, str]:
    """Version and origin of a component, and what is wrong with them."""
    if not component.is_pinned:
        origin = Origin(version=component.version, sha256=component.source_sha256, url=component.source)
        return component.version, origin, ""
    origin = inventory.origins.get(component.source, Origin(version=""))
    if not origin.version:
        return "", origin, f"unknown: the build does not say what it took for {component.source} ({component.key})"
    version = origin.version if component.version == FROM_BUILD else component.version
    described = component.source_version or version
    if described != origin.version:
        fault = f"outdated: {component.key} describes {component.source} {described}; the build has {origin.version}"
        return version, origin, fault
    known = {**inventory.compilation.distributions, "nuitka": inventory.compilation.version}
    compiled = known.get(_distribution(component), origin.version)
    if compiled != origin.version:
        fault = f"outdated: the build took {component.key} {origin.version}; the compilation used {compiled}"
        return version, origin, fault
    return version, origin, ""
