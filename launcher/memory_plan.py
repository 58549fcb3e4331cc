"""What a whole process needs for a conversation: the engine's plan, and the program around it.

The engine knows its own bytes exactly. What Python and its modules take is measured where the plan is made and
completed by a few constants, which `tests/unit/test_memory_measured.py` measures again; docs/memory.md has the method.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol, Self

from launcher.engine_types import EngineOptions, MemoryPlan, ModelConfig, PlanTerm, SessionOptions
from launcher.system import SystemView

RUNTIME_TERM: Final = "runtime"
PROMPT_TERM: Final = "prompt_text"
GRAMMAR_TERM: Final = "grammar"
# Measured on x86-64 with CPython 3.11, see docs/memory.md.
_PROGRAM: Final = 25 << 20  # resident once the launcher is imported; only where this process cannot be measured
_LINE_EDITOR: Final = 10 << 20  # what a chat on a terminal imports and `--list-contexts` does not
_WORKING: Final = 1 << 20  # stacks of threads, arenas, file buffers
_SAMPLER_BYTES: Final = 16  # for each id of the tokenizer
_GRAMMAR_BYTES: Final = 800  # for each id: the vocabulary as the library for constrained replies keeps it
_PROMPT_BYTES: Final = 128  # for each token of a full context: text, ids, the engine's copy of them


class PlanPort(Protocol):
    """What planning needs of `launcher.engine.Package`."""

    config: ModelConfig

    def plan(self, engine: EngineOptions, session: SessionOptions) -> MemoryPlan: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Resident memory of this process in bytes: now, and the most so far."""

    resident: int
    peak: int


def read_usage(system: SystemView) -> Usage | None:
    """From /proc/self/status; None where it does not say."""
    found = {}
    for line in (system.read("/proc/self/status") or "").splitlines():
        name, _, value = line.partition(":")
        words = value.split()
        if name in {"VmRSS", "VmHWM"} and words and _is_number(words[0]):
            found[name] = int(words[0]) * 1024
    if len(found) < 2:
        return None
    return Usage(resident=found["VmRSS"], peak=found["VmHWM"])


def _is_number(word: str) -> bool:
    return word.isascii() and word.isdigit() and len(word) <= 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """The program without package and session: what is resident, and whether more is still to be imported; bytes.

    `constrains`: it will also hold what constrained replies need.
    """

    resident: int
    to_import: int
    constrains: bool = False

    @classmethod
    def typical(cls) -> Self:
        """For a process that cannot be measured."""
        return cls(resident=_PROGRAM, to_import=_LINE_EDITOR)

    @classmethod
    def measured(cls, system: SystemView, *, complete: bool) -> Self:
        """This process as it is, before it loads a package. `complete`: everything is imported already."""
        usage = read_usage(system)
        if usage is None:
            return cls.typical()
        return cls(resident=usage.resident, to_import=0 if complete else _LINE_EDITOR)

    def terms(self, config: ModelConfig, context: int) -> tuple[PlanTerm, ...]:
        """The program's terms of a plan: what it always needs, and what it needs for `context` tokens of text."""
        idle = self.resident + self.to_import + _WORKING
        full = idle + config.token_count * _SAMPLER_BYTES
        prompt = context * _PROMPT_BYTES
        grammar = config.token_count * _GRAMMAR_BYTES
        constraining = (PlanTerm(name=GRAMMAR_TERM, bytes=grammar, idle=grammar, full=grammar),)
        return (
            PlanTerm(name=RUNTIME_TERM, bytes=full, idle=idle, full=full),
            PlanTerm(name=PROMPT_TERM, bytes=prompt, idle=0, full=prompt),
            *(constraining if self.constrains else ()),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessPlan:
    """Every term of a process with its sums in bytes: resident after loading, and when the context is full.

    `mapped` is how much of it is the package, which processes share and the kernel may read again.
    """

    terms: tuple[PlanTerm, ...]
    idle: int
    full: int
    mapped: int


def plan_process(package: PlanPort, engine: EngineOptions, session: SessionOptions, runtime: Runtime) -> ProcessPlan:
    """The engine's plan with the program around it.

    Raises:
        UsageError, PackageError: options that the package or the engine cannot serve.
    """
    plan = package.plan(engine, session)
    around = runtime.terms(package.config, session.context)
    return ProcessPlan(
        terms=(*plan.terms, *around),
        idle=plan.idle_bytes + sum(term.idle for term in around),
        full=plan.full_bytes + sum(term.full for term in around),
        mapped=plan.mapped_bytes,
    )
