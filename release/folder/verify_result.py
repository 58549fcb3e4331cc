"""What `mindnano verify` found: check by check, as text and as JSON, which `schemas/verify.json` describes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launcher.errors import MindnanoError, PackageError, TrustError
from launcher.integrity.release_files import printable

SCHEMA: Final = "mindnano.release-verify"
VERSION: Final = 1
CHECKS: Final = (
    "signature",
    "sums",
    "files",
    "manifest",
    "program",
    "licences",
    "sbom",
    "card",
    "base-model",
    "provenance",
    "package",
    "known-answer",
)
"""All checks, in the order in which they are shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One check: the fact where nothing is wrong, else what is, one sentence each. None of both: not done.

    `doubtful` is a fact that a reader should know before he trusts the release, such as that nobody has signed it.
    """

    name: str
    fact: str
    faults: tuple[str, ...] = ()
    doubtful: bool = False

    @property
    def state(self) -> str:
        """`ok`, `warn`, `fail`, or `skip` where another check's failure leaves nothing to look at."""
        if self.faults:
            return "fail"
        return ("warn" if self.doubtful else "ok") if self.fact else "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyResult:
    """A whole release.

    Attributes:
        folder: where it is.
        model, version: what its manifest calls it, None where that cannot be read.
        complete: whether every file of the release is meant to be there, or the flat set alone.
        checks: in the order of CHECKS.
    """

    folder: Path
    model: str | None
    version: str | None
    complete: bool
    checks: tuple[Check, ...]

    @property
    def exit_code(self) -> int:
        """0, 8 where the signature is not as it must be, else 4 where anything is wrong. A warning changes nothing."""
        wrong = {check.name for check in self.checks if check.faults}
        if "signature" in wrong:
            return TrustError.exit_code
        return PackageError.exit_code if wrong else 0

    def to_json(self) -> str:
        """One JSON document with `schema` and `version`."""
        document = {
            "schema": SCHEMA,
            "version": VERSION,
            "ok": self.exit_code == 0,
            "exit_code": self.exit_code,
            "folder": str(self.folder),
            "release": None if self.model is None else {"model": self.model, "version": self.version},
            "set": "complete" if self.complete else "public",
            "checks": [
                {"name": check.name, "state": check.state, "fact": check.fact, "faults": list(check.faults)}
                for check in self.checks
            ],
            "error": None,
        }
        return json.dumps(document, indent=2, ensure_ascii=False)

    def to_text(self) -> str:
        """A line for each check, and below it what is wrong."""
        title = "a release" if self.model is None else f"{self.model} {self.version}"
        kind = "" if self.complete else ", the flat set"
        lines = [f"{printable(title)} in {printable(str(self.folder))}{kind}"]
        width = max(map(len, CHECKS))
        for check in self.checks:
            lines.append(f"  {check.state:<4}  {check.name:<{width}}  {printable(check.fact)}".rstrip())
            lines += [f"        - {printable(fault)}" for fault in check.faults]
        wrong = sum(len(check.faults) for check in self.checks)
        doubts = ", ".join(check.name for check in self.checks if check.state == "warn")
        good = "complete and as released" + (f"; warned of: {doubts}" if doubts else "")
        lines.append(f"not what was released: {wrong} found" if wrong else good)
        return "\n".join(lines)


def failure_json(folder: Path, error: MindnanoError) -> str:
    """The document where nothing could be checked; the same schema describes it."""
    document = {
        "schema": SCHEMA,
        "version": VERSION,
        "ok": False,
        "exit_code": error.exit_code,
        "folder": str(folder),
        "error": {"slug": error.slug, "message": error.message, "hint": error.hint},
    }
    return json.dumps(document, indent=2, ensure_ascii=False)
