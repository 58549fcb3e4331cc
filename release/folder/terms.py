"""Under which terms weights go out: the chosen licence, those of the parts, and what does not fit together."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from launcher.errors import PackageError
from launcher.integrity.release_files import read_capped
from release.folder.weights_licences import (
    MAX_TEXT_BYTES,
    WeightsLicence,
    find_licence,
    given_text,
    known_names,
    may_hold,
    same_origin,
)
from release.package.stated import Stated


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """Licences: of the release's weights, what the weights came under, and what an appended MTP layer came under."""

    weights: WeightsLicence
    own: WeightsLicence
    donor: WeightsLicence | None


def settle_terms(
    stated: Stated | None, *, chosen: str | None, base_text: Path | None
) -> tuple[Terms | None, list[str]]:
    """The terms, or None and everything that is missing or does not fit, one sentence each.

    Args:
        stated: what the package says, None where it does not open: then only what does not depend on it is told.
        chosen: name of the licence to release under, None for that of the package.
        base_text: file with the licence text of the base model.
    """
    gaps: list[str] = []
    own = donor = None
    if stated is not None:
        own = _known(stated.licence, gaps, missing="the package names none; convert it again with --license")
        if stated.donor is not None:
            donor = _known(stated.donor.licence, gaps, missing="")
    weights = own if chosen is None else _known(chosen, gaps, missing="")
    gaps += _text_gaps(base_text, own)
    if weights is not None and own is not None:
        gaps += _unfit(weights, own, f"the weights came under {own.spdx}")
    if stated is not None and stated.donor is not None and donor is not None:
        of = f"the MTP layer is from {stated.donor.repository} under {donor.spdx}"
        if stated.base is not None and same_origin(stated.donor, stated.base) and own not in (None, donor):
            gaps.append(f"the licence: {of}, and the other weights name another licence for the same revision")
        elif weights is not None:
            gaps += _unfit(weights, donor, of)
    if gaps or weights is None or own is None:
        return None, gaps
    return Terms(weights=weights, own=own, donor=donor), []


def _known(name: str | None, gaps: list[str], *, missing: str) -> WeightsLicence | None:
    """A licence by its name; adds what is wrong to the gaps."""
    if name is None:
        gaps.append(f"the licence: {missing}")
        return None
    found = find_licence(name)
    if found is None:
        gaps.append(f"the licence: there is no text for {name!r:.100}; known are {known_names()}")
    return found


def _unfit(weights: WeightsLicence, part: WeightsLicence, of: str) -> list[str]:
    if may_hold(weights, part):
        return []
    return [
        f"the licence: {of}, which asks for more than {weights.spdx}; release it with --weights-license {part.spdx},"
        " or without that part"
    ]


def _text_gaps(path: Path | None, own: WeightsLicence | None) -> list[str]:
    if path is None:
        return []
    try:
        if own is not None:
            given_text(path, own)
        elif read_capped(path, MAX_TEXT_BYTES) is None:
            return [f"the licence: there is no file {path}"]
    except PackageError as error:
        return [f"the licence: {error.message}"]
    return []
