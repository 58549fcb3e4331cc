"""What `--verify` found: computed once, shown as text or as JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from launcher.errors import MindnanoError, PackageError
from launcher.integrity import manifest
from launcher.integrity.claims import Claims, SignatureState
from launcher.integrity.release_files import printable
from launcher.messages import Catalogue, Language
from launcher.progress import format_bytes

SCHEMA = "mindnano-infer.verify"
VERSION = 1
_SHOWN_EXTRAS = 20


class Reason(Enum):
    """Why a listed file was not hashed."""

    LINK_LEAVES_FOLDER = "link-leaves-folder"
    LINK_LOOP = "link-loop"
    NOT_A_REGULAR_FILE = "not-a-regular-file"
    CHANGED_WHILE_READ = "changed-while-read"
    NO_PERMISSION = "no-permission"
    READ_ERROR = "read-error"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChangedFile:
    """A file that is not what it should be. Sizes in bytes; the expected one is None where no manifest says it."""

    path: str
    expected_sha256: str
    actual_sha256: str
    expected_size: int | None
    actual_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableFile:
    """A listed file that could not be hashed."""

    path: str
    reason: Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """Everything that was found in one folder.

    Attributes:
        folder: the release.
        claims: what was checked against.
        intact: how many files are as claimed.
        hashed_bytes: how much was hashed.
        missing, changed, unreadable: listed files that are not as claimed, sorted by path.
        absent: programs that are listed and not there; a model is complete without them, and none is downloaded.
        extra: files that nothing lists, sorted by path.
        all_extra: whether `extra` is complete; looking for more stops at a limit.
        strict: whether warnings count as failures.
    """

    folder: Path
    claims: Claims
    intact: int
    hashed_bytes: int
    missing: tuple[str, ...]
    absent: tuple[str, ...]
    changed: tuple[ChangedFile, ...]
    unreadable: tuple[UnreadableFile, ...]
    extra: tuple[str, ...]
    all_extra: bool
    strict: bool

    @property
    def damaged(self) -> bool:
        """Whether a listed file is not as claimed."""
        return bool(self.missing or self.changed or self.unreadable)

    @property
    def warnings(self) -> tuple[str, ...]:
        """Slugs of the catalogue, in a fixed order."""
        claims = self.claims
        found = {
            "verify-warning-no-list": claims.sources == (manifest.FILE_NAME,),
            "verify-warning-unsigned": claims.state is SignatureState.NONE,
            "verify-warning-no-key": claims.state is SignatureState.NO_KEY,
            "verify-warning-unlisted-manifest": claims.unlisted_manifest,
            "verify-warning-tolerated": bool(claims.tolerated),
            "verify-warning-absent": bool(self.absent),
            "verify-warning-extra": bool(self.extra),
        }
        return tuple(slug for slug, holds in found.items() if holds)

    @property
    def exit_code(self) -> int:
        """0, or 4 when a file is not as claimed, or with `strict` when there is a warning."""
        failed = self.damaged or (self.strict and bool(self.warnings))
        return PackageError.exit_code if failed else 0

    def document(self) -> dict[str, object]:
        """The JSON document; `launcher/schemas/verify.json` describes it."""
        claims = self.claims
        described = claims.manifest
        texts = Catalogue(Language.ENGLISH)
        return {
            "schema": SCHEMA,
            "version": VERSION,
            "ok": self.exit_code == 0,
            "exit_code": self.exit_code,
            "folder": str(self.folder),
            "checked_against": list(claims.sources),
            "release": None if described is None else {"model": described.model, "version": described.release},
            "signature": {
                "state": claims.state.value,
                "key": None if claims.signed is None else claims.signed.key.name,
                "use": None if claims.signed is None else claims.signed.key.use.value,
                "comment": None if claims.signed is None else claims.signed.comment,
            },
            "files": len(claims.digests),
            "intact": self.intact,
            "hashed_bytes": self.hashed_bytes,
            "missing": list(self.missing),
            "absent": list(self.absent),
            "changed": [
                {
                    "path": file.path,
                    "expected_sha256": file.expected_sha256,
                    "actual_sha256": file.actual_sha256,
                    "expected_size": file.expected_size,
                    "actual_size": file.actual_size,
                }
                for file in self.changed
            ],
            "unreadable": [{"path": file.path, "reason": file.reason.value} for file in self.unreadable],
            "extra": list(self.extra),
            "all_extra": self.all_extra,
            "warnings": [{"slug": slug, "text": self._warning(slug, texts)} for slug in self.warnings],
            "error": None,
        }

    def text(self, texts: Catalogue) -> str:
        """The report for a person."""
        lines = [self._title(texts), self._signature(texts)]
        lines += self._listed("verify-missing", self.missing, texts)
        if self.changed:
            lines.append(texts("verify-changed", count=len(self.changed)))
        for file in self.changed:
            lines.append(f"  {printable(file.path)}")
            for slug, digest, size in (
                ("verify-expected", file.expected_sha256, file.expected_size),
                ("verify-found", file.actual_sha256, file.actual_size),
            ):
                lines.append("    " + texts(slug, sha256=digest, size="?" if size is None else size))
        if self.unreadable:
            lines.append(texts("verify-unreadable", count=len(self.unreadable)))
        for entry in self.unreadable:
            lines.append(f"  {printable(entry.path)}: {texts(f'verify-reason-{entry.reason.value}')}")
        lines += self._listed("verify-extra", self.extra[:_SHOWN_EXTRAS], texts)
        if len(self.extra) > _SHOWN_EXTRAS or not self.all_extra:
            lines.append("  …")
        lines += [texts("verify-warning", text=self._warning(slug, texts)) for slug in self.warnings]
        slug = "verify-damaged" if self.damaged else "verify-intact"
        hashed = format_bytes(self.hashed_bytes)
        lines.append(texts(slug, intact=self.intact, files=len(self.claims.digests), size=hashed))
        if self.damaged:
            led_out = any(file.reason is Reason.LINK_LEAVES_FOLDER for file in self.unreadable)
            lines.append(texts("verify-links-next" if led_out else "verify-damaged-next"))
        elif self.exit_code:
            lines.append(texts("verify-strict"))
        return "\n".join(lines)

    def _title(self, texts: Catalogue) -> str:
        sources = ", ".join(self.claims.sources)
        described = self.claims.manifest
        folder = printable(str(self.folder))
        if described is None:
            return texts("verify-title", folder=folder, sources=sources)
        return texts(
            "verify-title-release",
            model=described.model,
            release=described.release,
            folder=folder,
            sources=sources,
        )

    def _signature(self, texts: Catalogue) -> str:
        signed = self.claims.signed
        if signed is None:
            return texts(f"verify-signature-{self.claims.state.value}")
        use = texts(f"verify-key-{signed.key.use.value}")
        return texts("verify-signature-valid", key=signed.key.name, use=use, comment=signed.comment)

    def _listed(self, slug: str, paths: tuple[str, ...], texts: Catalogue) -> Iterator[str]:
        if paths:
            count = len(self.extra) if slug == "verify-extra" else len(paths)
            yield texts(slug, count=count)
        for path in paths:
            yield f"  {printable(path)}"

    def _warning(self, slug: str, texts: Catalogue) -> str:
        kinds = ", ".join(kind.value for kind in self.claims.tolerated)
        absent = ", ".join(printable(path) for path in self.absent)
        return texts(slug, count=len(self.extra), absent=absent, source=self.claims.sources[0], kinds=kinds)


def failure_document(folder: Path, error: MindnanoError) -> dict[str, object]:
    """The JSON document where there is nothing to report but an error; the same schema describes it."""
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "ok": False,
        "exit_code": error.exit_code,
        "folder": str(folder),
        "error": {"slug": error.slug, "message": error.message, "hint": error.hint},
    }
