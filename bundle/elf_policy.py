"""Judges ELF files by the rules of elf_policy.toml. Files are read, never run.

Where each rule comes from: ELF gABI 4.1 (types, segments, dynamic tags), the GNU extensions in the Linux Standard Base
(symbol versions, PT_GNU_STACK, PT_GNU_RELRO).
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from elftools.common.exceptions import ELFError
from elftools.elf.dynamic import DynamicSegment
from elftools.elf.elffile import ELFFile
from elftools.elf.gnuversions import GNUVerNeedSection
from elftools.elf.segments import InterpSegment

from bundle.errors import BundleError

RULES_FILE: Final = Path(__file__).with_suffix(".toml")
SCHEMA: Final = "mindnano.elf-report"
VERSION: Final = 1

_EXECUTE: Final = 1
_WRITE: Final = 2
_DF_TEXTREL: Final = 0x4
_DF_BIND_NOW: Final = 0x8
_DF_1_NOW: Final = 0x1
_SYMBOL_VERSION: Final = re.compile(r"([A-Z][A-Z0-9_]*?)_(\d+(?:\.\d+)*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRules:
    """Machine (a name of the ELF standard), path of the dynamic linker, largest page of its kernels in bytes."""

    machine: str
    interpreter: str
    page: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What a kind of file may be. `versions` maps a family of symbol versions to the highest one that is allowed."""

    types: tuple[str, ...]
    interpreter: bool
    needed: tuple[str, ...]
    versions: Mapping[str, str]
    run_path: bool
    relro: bool
    bind_now: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The content of elf_policy.toml; `budget` is in bytes."""

    targets: Mapping[str, TargetRules]
    policies: Mapping[str, Policy]
    budget: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfFacts:
    """What a file says of itself. `versions` are the symbol versions that it asks of others."""

    machine: str
    bits: int
    little_endian: bool
    type: str
    interpreter: str
    needed: tuple[str, ...]
    versions: tuple[str, ...]
    run_paths: tuple[str, ...]
    executable_stack: bool
    writable_code: bool
    relro: bool
    bind_now: bool
    text_relocations: bool
    page: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A broken rule: its name, what was found and what was expected."""

    rule: str
    found: str
    expected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ElfReport:
    """A file, the policy it was held against, what it is, and the rules that it breaks."""

    name: str
    policy: str
    target: str
    facts: ElfFacts
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        """Whether no rule is broken."""
        return not self.findings

    def text(self) -> str:
        """The report for people."""
        facts = self.facts
        newest = ", ".join(f"{family} {version}" for family, version in sorted(newest_versions(facts.versions).items()))
        loader = facts.interpreter or "nobody"
        lines = [
            f"{self.name}: {'passes' if self.passed else 'breaks'} policy {self.policy} for {self.target}",
            f"  {facts.bits}-bit {facts.machine} {facts.type}, pages of {facts.page}, loaded by {loader}",
            f"  needs {', '.join(facts.needed) or 'nothing'}; versions up to {newest or 'none'}",
        ]
        lines += [f"  {one.rule}: found {one.found}; expected {one.expected}" for one in self.findings]
        return "\n".join(lines)

    def document(self) -> dict[str, object]:
        """The report for programs."""
        return {"schema": SCHEMA, "version": VERSION, "passed": self.passed, **asdict(self)}


def load_rules(path: Path = RULES_FILE) -> Rules:
    """The rules in a file.

    Raises:
        BundleError: it cannot be read, or a rule is missing, unknown or of another type.
    """
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
        if document.pop("version") != VERSION:
            raise ValueError(f"version {VERSION} is expected")
        rules = Rules(
            targets={name: TargetRules(**table) for name, table in document.pop("targets").items()},
            policies={name: _policy(table) for name, table in document.pop("policies").items()},
            budget={name: round(float(size) * 1e6) for name, size in document.pop("budget").items()},
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise BundleError("policy-invalid", f"{path}: {error!r}") from error
    if document:
        raise BundleError("policy-invalid", f"{path}: nothing is called {', '.join(document)}")
    return rules


def _policy(table: Mapping[str, Any]) -> Policy:
    return Policy(**{**table, "types": tuple(table["types"]), "needed": tuple(table["needed"])})


def read_facts(path: Path) -> ElfFacts:
    """What an ELF file says of itself.

    Raises:
        BundleError: it is none, or contradicts itself.
    """
    try:
        with path.open("rb") as stream:
            return _facts(ELFFile(stream))
    except (ELFError, ValueError, KeyError, AttributeError, TypeError, IndexError) as error:
        raise BundleError("elf-unreadable", f"{path} cannot be read as an ELF file: {error!r}") from error


def _facts(elf: Any) -> ElfFacts:
    segments = list(elf.iter_segments())
    dynamic = [segment for segment in segments if isinstance(segment, DynamicSegment)]
    tags: list[Any] = [tag for segment in dynamic for tag in segment.iter_tags()]
    flags = _number(tags, "DT_FLAGS")
    loads = [segment for segment in segments if segment["p_type"] == "PT_LOAD"]
    stacks = [segment for segment in segments if segment["p_type"] == "PT_GNU_STACK"]
    both = _EXECUTE | _WRITE
    return ElfFacts(
        machine=str(elf["e_machine"]),
        bits=int(elf.elfclass),
        little_endian=bool(elf.little_endian),
        type=str(elf["e_type"]),
        interpreter=next((s.get_interp_name() for s in segments if isinstance(s, InterpSegment)), ""),
        needed=tuple(tag.needed for tag in tags if tag.entry.d_tag == "DT_NEEDED"),
        versions=_versions(elf, tags),
        run_paths=tuple(
            getattr(tag, "rpath" if tag.entry.d_tag == "DT_RPATH" else "runpath")
            for tag in tags
            if tag.entry.d_tag in ("DT_RPATH", "DT_RUNPATH")
        ),
        # Without the segment the kernel makes the stack executable.
        executable_stack=not stacks or any(segment["p_flags"] & _EXECUTE for segment in stacks),
        writable_code=any(segment["p_flags"] & both == both for segment in loads),
        relro=any(segment["p_type"] == "PT_GNU_RELRO" for segment in segments),
        bind_now=bool(flags & _DF_BIND_NOW or _number(tags, "DT_FLAGS_1") & _DF_1_NOW or _has(tags, "DT_BIND_NOW")),
        text_relocations=bool(flags & _DF_TEXTREL or _has(tags, "DT_TEXTREL")),
        page=min((int(segment["p_align"]) for segment in loads), default=0),
    )


def _has(tags: Iterable[Any], name: str) -> bool:
    return any(tag.entry.d_tag == name for tag in tags)


def _number(tags: Iterable[Any], name: str) -> int:
    return next((int(tag.entry.d_val) for tag in tags if tag.entry.d_tag == name), 0)


def _versions(elf: Any, tags: Sequence[Any]) -> tuple[str, ...]:
    sections = [section for section in elf.iter_sections() if isinstance(section, GNUVerNeedSection)]
    if _has(tags, "DT_VERNEED") and not sections:
        raise ValueError("symbol versions are needed, but no section lists them")
    return tuple(
        sorted({entry.name for section in sections for _, entries in section.iter_versions() for entry in entries})
    )


def check(
    path: Path, policy: str, target: str, *, forbidden: Sequence[bytes] = (), rules: Rules | None = None
) -> ElfReport:
    """Holds a file against a policy.

    Args:
        path: the file; it may be packed.
        policy: name of the policy.
        target: x86_64 or aarch64.
        forbidden: byte strings that may stand nowhere in the file, such as paths of the machine that built it.
        rules: by default those of elf_policy.toml.

    Raises:
        BundleError: the file is no ELF file, or there is no such policy or target.
    """
    rules = rules or load_rules()
    if policy not in rules.policies or target not in rules.targets:
        raise BundleError("policy-unknown", f"there is no policy {policy} for {target}")
    facts = read_facts(path)
    wanted, machine = rules.policies[policy], rules.targets[target]
    findings = [
        *_identity(facts, wanted, machine),
        *_dependencies(facts, wanted),
        *_hardening(facts, wanted),
        *_strings(path.read_bytes(), forbidden),
    ]
    return ElfReport(name=path.name, policy=policy, target=target, facts=facts, findings=tuple(findings))


def _identity(facts: ElfFacts, policy: Policy, target: TargetRules) -> Iterable[Finding]:
    if facts.machine != target.machine:
        yield Finding(rule="machine", found=facts.machine, expected=target.machine)
    if facts.bits != 64 or not facts.little_endian:
        order = "little" if facts.little_endian else "big"
        yield Finding(rule="class", found=f"{facts.bits} bit, {order} endian", expected="64 bit, little endian")
    if facts.type not in policy.types:
        yield Finding(rule="type", found=facts.type, expected=" or ".join(policy.types))
    interpreter = target.interpreter if policy.interpreter else ""
    if facts.interpreter != interpreter:
        yield Finding(rule="interpreter", found=facts.interpreter or "none", expected=interpreter or "none")
    if facts.page % target.page != 0 or facts.page == 0:
        yield Finding(rule="page", found=str(facts.page), expected=f"a multiple of {target.page}")


def _dependencies(facts: ElfFacts, policy: Policy) -> Iterable[Finding]:
    foreign = [name for name in facts.needed if name not in policy.needed]
    if foreign:
        yield Finding(rule="needed", found=", ".join(foreign), expected=f"only {', '.join(policy.needed)}")
    for version in facts.versions:
        parsed = _SYMBOL_VERSION.fullmatch(version)
        limit = policy.versions.get(parsed[1]) if parsed else None
        if parsed is None or limit is None:
            yield Finding(rule="version", found=version, expected=f"versions of {', '.join(policy.versions)}")
        elif _numbers(parsed[2]) > _numbers(limit):
            yield Finding(rule="version", found=version, expected=f"at most {parsed[1]}_{limit}")
    if facts.run_paths and not policy.run_path:
        yield Finding(rule="run-path", found=", ".join(facts.run_paths), expected="none")


def _hardening(facts: ElfFacts, policy: Policy) -> Iterable[Finding]:
    if facts.executable_stack:
        yield Finding(rule="stack", found="an executable stack", expected="one that is not")
    if facts.writable_code:
        yield Finding(rule="writable-code", found="a segment that is both", expected="writable or executable segments")
    if facts.text_relocations:
        yield Finding(rule="text-relocations", found="some", expected="none")
    if policy.relro and not facts.relro:
        yield Finding(rule="relro", found="no PT_GNU_RELRO", expected="one")
    if policy.bind_now and not facts.bind_now:
        yield Finding(rule="bind-now", found="lazy binding", expected="all symbols bound at the start")


def _strings(data: bytes, forbidden: Sequence[bytes]) -> Iterable[Finding]:
    for text in forbidden:
        place = data.find(text)
        if place >= 0:
            end = place + len(text)
            shown = bytes(data[max(0, place - 20) : end + 60]).decode("ascii", "replace")
            printable = "".join(character if character.isprintable() else "." for character in shown)
            yield Finding(
                rule="string", found=f"{printable!r} at {place}", expected=f"no {text.decode(errors='replace')}"
            )


def newest_versions(versions: Iterable[str]) -> dict[str, str]:
    """The highest version of each family: `{"GLIBC": "2.28"}`."""
    newest: dict[str, str] = {}
    for version in versions:
        parsed = _SYMBOL_VERSION.fullmatch(version)
        if parsed and _numbers(parsed[2]) > _numbers(newest.get(parsed[1], "0")):
            newest[parsed[1]] = parsed[2]
    return newest


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))
