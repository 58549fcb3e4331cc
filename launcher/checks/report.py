"""What `--check` found: computed once, then shown as text, as JSON or as a text for a bug report."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from launcher.messages import Catalogue, Language


class Status(Enum):
    """How a finding counts: only `fail` can make the machine not ready."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    SKIP = "skip"


class Group(Enum):
    """What a finding is about. The value is its name in JSON; `exit_code` is what a failure there exits with."""

    BOARD = "board"
    CPU = "cpu"
    NPU = "npu"
    RUNTIME = "runtime"
    LIBC = "libc"
    MEMORY = "memory"
    LIMITS = "limits"
    STORAGE = "storage"
    PACKAGE = "package"
    NETWORK = "network"

    @property
    def exit_code(self) -> int:
        """3 device, 4 package, 5 memory or disk, 7 port: the classes of launcher/errors.py."""
        return _EXIT_CODES[self]


_EXIT_CODES = {
    Group.BOARD: 3,
    Group.CPU: 3,
    Group.NPU: 3,
    Group.RUNTIME: 3,
    Group.LIBC: 3,
    Group.MEMORY: 5,
    Group.LIMITS: 5,
    Group.STORAGE: 5,
    Group.PACKAGE: 4,
    Group.NETWORK: 7,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the report.

    Attributes:
        group: what it is about.
        status: how it counts.
        slug: stable name. ``check-SLUG`` in the catalogues says the fact (and the reason, for warn, fail and skip);
            ``check-SLUG-next``, where it exists, says the next step, as a command where there is one.
        facts: what the texts are filled with; they are in the JSON document as they are.
        blocking: whether a failure makes the machine not ready. A failure of the NPU does not where the CPU computes.
        exit_code: what a blocking failure exits with; None for that of the group.
        private: names of facts that must not stand in a bug report (paths with names, addresses).
    """

    group: Group
    status: Status
    slug: str
    facts: Mapping[str, object] = field(default_factory=dict)
    blocking: bool = True
    exit_code: int | None = None
    private: frozenset[str] = frozenset()

    def text(self, texts: Catalogue) -> str:
        """The fact for a person, on one line; what a terminal would obey instead of showing is marked."""
        return one_line(texts(f"check-{self.slug}", **self._shown(texts)))

    def next_step(self, texts: Catalogue) -> str:
        """What to do about it, or an empty string."""
        slug = f"check-{self.slug}-next"
        return one_line(texts(slug, **self._shown(texts))) if texts.has(slug) else ""

    def _shown(self, texts: Catalogue) -> Mapping[str, object]:
        """The facts; an error among them speaks the language of the texts."""
        if not {"error", "message", "hint"} <= set(self.facts):
            return self.facts
        slug, message, hint = (str(self.facts[name]) for name in ("error", "message", "hint"))
        message, hint = texts.failure(slug, message, hint)
        return {**self.facts, "message": message, "hint": hint}

    def redacted(self) -> Finding:
        """The same finding without private facts."""
        hidden = {name: "…" if name in self.private else value for name, value in self.facts.items()}
        return replace(self, facts=hidden)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All findings, in the order of the groups.

    Attributes:
        findings: the lines.
        backend: ``cpu`` or ``npu``: what will compute.
        largest_context: tokens; None without a package that opens.
        strict: warnings count as failures.
    """

    findings: tuple[Finding, ...]
    backend: str
    largest_context: int | None
    strict: bool = False

    @property
    def exit_code(self) -> int:
        """0 when ready, else that of the first failure."""
        for finding in self.findings:
            failed = finding.status is Status.FAIL and (finding.blocking or self.strict)
            if failed or (self.strict and finding.status is Status.WARN):
                return finding.group.exit_code if finding.exit_code is None else finding.exit_code
        return 0

    @property
    def ready(self) -> bool:
        """Whether it can run."""
        return self.exit_code == 0

    def document(self) -> dict[str, object]:
        """The JSON document; `launcher/schemas/check.json` describes it. Texts in it are English."""
        texts = Catalogue(Language.ENGLISH)
        return {
            "schema": "mindnano-infer.check",
            "version": 2,
            "ready": self.ready,
            "exit_code": self.exit_code,
            "strict": self.strict,
            "backend": self.backend,
            "largest_context": self.largest_context,
            "findings": [
                {
                    "group": finding.group.value,
                    "status": finding.status.value,
                    "slug": finding.slug,
                    "blocking": finding.blocking,
                    "fact": finding.text(texts),
                    "next": finding.next_step(texts),
                    "facts": dict(finding.facts),
                }
                for finding in self.findings
            ],
        }

    def text(self, texts: Catalogue) -> str:
        """The report for a person: a line per finding, its next step below it, the verdict at the end."""
        lines = []
        for finding in self.findings:
            lines.append(f"{finding.status.value:<4}  {finding.group.value:<8} {finding.text(texts)}")
            step = finding.next_step(texts)
            if step:
                lines.append(" " * 15 + texts("check-next", text=step))
        return "\n".join([*lines, "", *self._verdict(texts)])

    def _verdict(self, texts: Catalogue) -> Iterable[str]:
        largest = texts("unknown") if self.largest_context is None else _show_tokens(self.largest_context)
        yield texts("check-ready", ready=texts("yes" if self.ready else "no"))
        yield texts("check-largest", context=largest)
        yield texts("check-backend", backend=self.backend)


def _show_tokens(count: int) -> str:
    return f"{count // 1024}K" if count % 1024 == 0 else str(count)


def one_line(text: str) -> str:
    """The text with a mark for every character that is not printable: facts come from files that anybody may write."""
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in text)


def ok(group: Group, slug: str, /, **facts: object) -> Finding:
    """A line that is as it should be."""
    return Finding(group=group, status=Status.OK, slug=slug, facts=facts)


def warn(group: Group, slug: str, /, **facts: object) -> Finding:
    """A line that works, but not as well as it could."""
    return Finding(group=group, status=Status.WARN, slug=slug, facts=facts)


def fail(group: Group, slug: str, /, **facts: object) -> Finding:
    """A line that stops the program."""
    return Finding(group=group, status=Status.FAIL, slug=slug, facts=facts)


def skip(group: Group, slug: str, /, **facts: object) -> Finding:
    """A line that could not be looked at, or that does not apply here; its text says why."""
    return Finding(group=group, status=Status.SKIP, slug=slug, facts=facts)
