"""What the metadata of a package state of origin and terms: of the weights, and of an MTP layer that was appended."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from launcher.integrity.model_info import BaseModel, Donor

_REVISION: Final = re.compile(r"[0-9a-f]{40}", re.ASCII)
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}", re.ASCII)
_LICENCE: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+-]{0,99}", re.ASCII)
_KEPT: Final = "kept"
"""`quantization.mtp` of a package whose MTP layer was converted with the other weights."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stated:
    """Origin and terms.

    Attributes:
        licence: of the weights, None where none is named.
        base: what the weights were made from, None where nothing is named, or only half of it.
        donor: what an appended MTP layer was made from, None where there is none such, or only a part of it is named.
        names_no_base: whether the metadata say nothing at all of what the weights were made from.
        faults: what is wrong, one sentence each.
    """

    licence: str | None
    base: BaseModel | None
    donor: Donor | None
    names_no_base: bool
    faults: tuple[str, ...]


def read_stated(metadata: Mapping[str, Any], *, has_mtp: bool) -> Stated:
    """Origin and terms out of a metadata section.

    Args:
        metadata: the section, parsed.
        has_mtp: whether the package holds an MTP layer.
    """
    base, faults = _base(_object(metadata, "source"))
    donor, more = _donor(metadata) if has_mtp else (None, [])
    licence = metadata.get("license")
    return Stated(
        licence=licence if isinstance(licence, str) and licence else None,
        base=base,
        donor=donor,
        names_no_base=base is None and not faults,
        faults=(*faults, *more),
    )


def _base(source: Mapping[str, Any]) -> tuple[BaseModel | None, list[str]]:
    repository, revision = source.get("repository"), source.get("revision")
    if repository is None and revision is None:
        return None, []
    faults = []
    if repository is None:
        faults.append(
            f"its metadata name the revision {revision!r:.60} of no repository; convert it again with --repository"
        )
    elif not _is(repository, _REPOSITORY):
        faults.append(f"its metadata name the base model {repository!r:.200}, expected ORGANISATION/NAME")
    if revision is None:
        faults.append(
            f"its metadata name the base model {repository!s:.200} and no revision of it; convert it again with"
            " --revision and all 40 digits"
        )
    elif not _is(revision, _REVISION):
        faults.append(f"its metadata name the revision {revision!r:.60} of the base model, expected all 40 digits")
    base = None if faults else BaseModel(repository=str(repository), revision=str(revision))
    return base, faults


def _donor(metadata: Mapping[str, Any]) -> tuple[Donor | None, list[str]]:
    """Where the MTP layer came from; None and no fault where it was converted with the other weights."""
    again = "extract the layer again with --repository, --revision and --license, and append it again"
    if "mtp" not in metadata:
        state = _object(metadata, "quantization").get("mtp")
        if state == _KEPT:
            return None, []
        return None, [f"it holds an MTP layer, and its metadata say {state!r:.40} of where that is from; {again}"]
    donor = _object(_object(metadata, "mtp"), "donor")
    wanted = {
        "repository": (_REPOSITORY, "ORGANISATION/NAME"),
        "revision": (_REVISION, "all 40 digits"),
        "license": (_LICENCE, "a name such as MIT"),
    }
    faults = [
        f"{name} {'is not named' if donor.get(name) is None else repr(donor[name])[:200]}, expected {form}"
        for name, (pattern, form) in wanted.items()
        if not _is(donor.get(name), pattern)
    ]
    if faults:
        return None, [f"its MTP layer was appended, and the donor's {fault}; {again}" for fault in faults]
    return Donor(repository=donor["repository"], revision=donor["revision"], licence=donor["license"]), []


def _object(values: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = values.get(name)
    return value if isinstance(value, dict) else {}


def _is(value: object, pattern: re.Pattern[str]) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None
