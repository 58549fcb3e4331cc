"""The model package that the options name: whether it opens, what it is, what it needs here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from launcher.checks.memory import Need
from launcher.checks.report import Finding, Group, Status
from launcher.contexts import show_tokens
from launcher.download.model_store import find_model, model_folder
from launcher.engine import Package
from launcher.engine_library import Library
from launcher.errors import MindnanoError, PackageError, UsageError
from launcher.integrity.claims import SignatureState
from launcher.integrity.verify import VerificationState, require_verified, signature_state, verification_state
from launcher.messages import Catalogue
from launcher.model import (
    DEMO_VARIABLE,
    context_table,
    metadata_of,
    model_name,
    package_path,
    process_plan,
    session_options,
)
from launcher.options.parse import Options
from launcher.payload.carried import demo_package
from launcher.progress import Progress, format_bytes
from launcher.system import SystemView

_WEIGHTS = frozenset({"weights", "mtp_weights"})
_PATH = frozenset({"path", "message"})


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageView:
    """What is known about the package. `path` is None where none is named, `need` where none opens."""

    path: Path | None
    need: Need | None
    findings: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A package: a file, or a window of one."""

    path: Path
    window: tuple[int, int] | None = None

    def size(self) -> int:
        """Bytes of the package.

        Raises:
            OSError: the file is gone.
        """
        return self.path.stat().st_size if self.window is None else self.window[1]


def package_view(
    options: Options, environ: Mapping[str, str], system: SystemView, library: Library | None
) -> PackageView:
    """Opens the package as a conversation would. Only `--check=deep` reads its weights."""
    path: Path | None = None
    try:
        place = _place(options, environ)
        if place is None:
            folder = str(model_folder(options, environ))
            return PackageView(path=None, need=None, findings=(_line(Status.SKIP, "package-none", {"path": folder}),))
        path = place.path
        if library is None:
            unread = _line(Status.SKIP, "package-unread", {"path": str(path)})
            return PackageView(path=path, need=None, findings=(unread,))
        with Package(path, window=place.window, library=library) as package:
            line = _line(Status.OK, "package-mtp" if package.has_mtp else "package", _facts(package, place))
            try:
                need = _need(package, options, system)
            except UsageError as error:  # the package is good, what is asked of it is not
                return PackageView(path=path, need=None, findings=(line, _failure(error)))
            verified = _verification(package, place, environ, options)
            return PackageView(path=path, need=need, findings=(line, *verified))
    except MindnanoError as error:
        return PackageView(path=path, need=None, findings=(_failure(error),))
    except OSError as error:  # taken away while it was looked at
        gone = PackageError("package-unreadable", f"{path}: {error.strerror}", hint="check the path and the disk")
        return PackageView(path=path, need=None, findings=(_failure(gone),))


def _place(options: Options, environ: Mapping[str, str]) -> _Place | None:
    """Where the package is that a conversation would open; None where there is none."""
    carried = demo_package() if options.demo and not environ.get(DEMO_VARIABLE) else None
    if carried is not None:
        program, window = carried
        return _Place(path=Path(program).resolve(), window=window)
    found = package_path(options, environ) if options.demo else find_model(options, environ)
    return None if found is None else _Place(path=found.absolute())


def _facts(package: Package, place: _Place) -> dict[str, object]:
    size = place.size()
    metadata = metadata_of(package)
    version = metadata.get("version")
    return {
        "name": model_name(metadata, place.path),
        "format": f"l3r {version if isinstance(version, int) else '?'}",
        "size": format_bytes(size),
        "size_bytes": size,
        "layers": package.config.layer_count,
        "experts": package.config.expert_count,
        "context": show_tokens(package.config.max_context),
        "path": str(place.path),
    }


def _need(package: Package, options: Options, system: SystemView) -> Need:
    plan = process_plan(package, options, system)
    return Need(
        context=session_options(options, package.config).context,
        bytes=plan.full,
        largest=context_table(package, "", options, system).largest,
        weights=tuple((term.name, term.bytes) for term in plan.terms if term.name in _WEIGHTS),
    )


def _verification(package: Package, place: _Place, environ: Mapping[str, str], options: Options) -> tuple[Finding, ...]:
    """Whether the bytes are known to be the published ones. A wrong digest fails as it does at the start."""
    try:
        if options.check_deep:
            return _hashed(package, place, environ, Catalogue(options.language))
        if place.window is not None:
            return (_line(Status.OK, "package-carried"),)
        state = verification_state(place.path, environ)
        if state is VerificationState.CHANGED:
            # Raises, with both digests; the stamp saves hashing.
            require_verified(place.path, environ, texts=Catalogue(options.language))
    except MindnanoError as error:
        return (_failure(error),)
    if state is VerificationState.VERIFIED:
        return (_line(Status.OK, "package-verified"), *_signature(place))
    slug = "package-no-manifest" if state is VerificationState.UNLISTED else "package-unverified"
    return (_line(Status.SKIP, slug), *_signature(place))


def _signature(place: _Place) -> tuple[Finding, ...]:
    """Who vouches for the lists beside the package; nothing where there are none."""
    state = signature_state(place.path)
    if state is None:
        return ()
    if state is SignatureState.VALID:
        return (_line(Status.OK, "package-signed"),)
    return (_line(Status.WARN, "package-unsigned" if state is SignatureState.NONE else "package-signature-unchecked"),)


def _hashed(package: Package, place: _Place, environ: Mapping[str, str], texts: Catalogue) -> tuple[Finding, ...]:
    """Compares every section with the package's own digests, and the file with those of its release."""
    size = place.size()
    label = texts("verify-progress", name=place.path.name)
    with Progress(label, size, texts=texts) as progress:

        def step(done: int, _total: int) -> None:
            progress.update(min(done, size))

        package.verify(step)
        progress.update(size)
    sections = _line(Status.OK, "package-hashed", {"size": format_bytes(size)})
    if place.window is not None:
        return (sections, _line(Status.OK, "package-carried"))
    verified = require_verified(place.path, environ, texts=texts)
    if verified is None:
        return (sections, _line(Status.SKIP, "package-no-manifest"))
    return (sections, _line(Status.OK, "package-verified", {"sha256": verified.sha256}), *_signature(place))


def _failure(error: MindnanoError) -> Finding:
    facts = {"error": error.slug, "message": error.message, "hint": error.hint}
    return _line(Status.FAIL, "package-unusable", facts, exit_code=error.exit_code)


def _line(
    status: Status, slug: str, facts: Mapping[str, object] | None = None, *, exit_code: int | None = None
) -> Finding:
    return Finding(group=Group.PACKAGE, status=status, slug=slug, facts=facts or {}, exit_code=exit_code, private=_PATH)
