"""The files of a release folder: names, roles, terms, and which of them are in the flat set for Hugging Face."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launcher.download.sources import RELEASE_NAME
from launcher.integrity import checksums, manifest, model_info
from launcher.integrity.model_info import ModelInfo
from launcher.integrity.signature import SUFFIX
from launcher.payload.carried import NOTICES
from release.folder import bom, card, provenance
from release.folder.bom import ReleaseFacts
from release.folder.fidelity import PLOT, is_report_name
from release.folder.program_facts import DOCUMENT, ProgramFacts
from release.folder.program_facts import NAME as PROGRAM
from release.folder.weights_licences import (
    BASE_LICENCE,
    DONOR_LICENCE,
    LICENCE,
    WEIGHTS_LICENCE,
    is_donor_the_base,
)
from release.package.facts import PackageFacts

NOTICE: Final = "NOTICE"
LISTS: Final = (checksums.FILE_NAME, checksums.PUBLIC_FILE_NAME)
RELEASED_BASE: Final = "inclusionAI/Ling-3.0-tiny"
OLDEST_LAUNCHER: Final = "0.1.0"
"""The first launcher that reads version 1 of the package and of the release's files."""
NOT_CARRIED: Final = "not carried"
VENDOR_TERMS: Final = "vendor-license"
RUNTIME: Final = "rknn-runtime"
"""Key of Rockchip's library among the terms of redistribution."""

ROLES: Final = {
    PROGRAM: manifest.PROGRAM_ROLE,
    model_info.FILE_NAME: "model-info",
    LICENCE: "licence",
    WEIGHTS_LICENCE: "licence",
    BASE_LICENCE: "licence",
    DONOR_LICENCE: "licence",
    NOTICE: "notice",
    DOCUMENT: "notice",
    bom.NAME: "sbom",
    card.NAME: "card",
    provenance.NAME: "provenance",
}
PACKAGE_ROLE: Final = "package"
FIDELITY_ROLE: Final = "fidelity"
NEEDED: Final = frozenset(ROLES) - {BASE_LICENCE, DONOR_LICENCE}


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A file to write: its bytes, or the file that it is a copy of."""

    path: str
    content: bytes | Path
    licence: str

    @property
    def role(self) -> str:
        """What it is for."""
        return role_of(self.path) or PACKAGE_ROLE

    @property
    def public(self) -> bool:
        """Whether it is in the flat set."""
        return is_public(self.path)


def role_of(path: str) -> str | None:
    """The role that a file of this name has in every release; None for the package, whose name is the model's."""
    if path.startswith(NOTICES):
        return "notice"
    return FIDELITY_ROLE if path == PLOT or is_report_name(path) else ROLES.get(path)


def is_public(path: str) -> bool:
    """Hugging Face shows one folder, so everything in it is public; texts that stand in another file too are not."""
    return "/" not in path


def is_release_file(name: str) -> bool:
    """Whether something of this name may lie at the top of a release folder."""
    lists = (manifest.FILE_NAME, *LISTS, *(each + SUFFIX for each in LISTS))
    return role_of(name) is not None or name in lists or name == NOTICES.rstrip("/") or name.endswith(".l3r")


def package_name(package: PackageFacts) -> str:
    """The name of the package's file without `.l3r`: the fixed one for the released model, else out of its own name."""
    released = package.base is not None and package.base.repository == RELEASED_BASE
    if released and package.quantization.recipe.startswith("w4"):
        return RELEASE_NAME.removesuffix(".l3r")
    return re.sub(r"[^a-z0-9._-]+", "-", package.name.lower()).strip("-._") or "model"


def program_licence(program: ProgramFacts) -> str:
    """SPDX expression of the program's file: the project's terms, and Rockchip's where its library is inside."""
    return program.licence if program.runtime is None else f"{program.licence} AND {program.runtime.licence}"


def redistribution(program: ProgramFacts) -> dict[str, str]:
    """What the manifest says of terms beyond a file's licence."""
    runtime = program.runtime
    if runtime is None:
        return {RUNTIME: NOT_CARRIED}
    return {RUNTIME: f"{VENDOR_TERMS}; SHA-256 {runtime.sha256}; {runtime.homepage}"}


def notice(release: ReleaseFacts, program: ProgramFacts, info: ModelInfo, *, own_licence: str) -> bytes:
    """NOTICE: which terms are whose, and where their texts are.

    Args:
        own_licence: what the weights came under.
    """
    runtime = program.runtime
    lines = [
        f"{release.model} {release.version}",
        "",
        "Each part of this release has its own terms.",
        "",
        f"{PROGRAM} {program.version} ({program.target})",
        "    Copyright 2026 the mindnano-infer authors",
        f"    {program.licence}; text in {LICENCE}",
        f"    Parts by others: {DOCUMENT} lists them with their texts.",
        "",
        info.package.path,
        f"    {info.licence}; text in {WEIGHTS_LICENCE}",
    ]
    if info.base is not None:
        lines.append(f"    Converted from {info.base.repository}, revision {info.base.revision}.")
    if own_licence != info.licence and info.base is not None:
        lines.append(f"    The base model is under {own_licence}; text in {BASE_LICENCE}")
    elif own_licence != info.licence:
        lines.append(f"    It came under {own_licence}; text in {LICENCE}")
    lines += _donor_lines(info)
    if program.demo_sha256 is not None and program.demo_sha256 != info.package.sha256:
        lines += ["", f"built-in model inside {PROGRAM}", "    Apache-2.0", f"    SHA-256 {program.demo_sha256}"]
    if runtime is None:
        lines += ["", "librknnrt.so, by Rockchip, is not part of this release."]
    else:
        lines += [
            "",
            f"librknnrt.so {runtime.version} inside {PROGRAM}, unchanged",
            "    Copyright (c) Rockchip Electronics Co., Ltd.",
            f"    {runtime.licence}: Rockchip's own terms, not the Apache License; text in {DOCUMENT}",
            f"    Source: {runtime.homepage}",
            f"    SHA-256 {runtime.sha256}",
        ]
    return ("\n".join(lines) + "\n").encode()


def _donor_lines(info: ModelInfo) -> list[str]:
    donor = info.mtp_donor
    if donor is None:
        return []
    if is_donor_the_base(info):
        return ["    The MTP layer was appended; it is from the same repository and revision."]
    return [
        f"    The MTP layer was appended; it is from {donor.repository}, revision {donor.revision},",
        f"    under {donor.licence}; text in {DONOR_LICENCE}",
    ]
