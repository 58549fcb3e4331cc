"""What the files of a release say about each other: one sentence for each thing that does not agree."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from launcher.integrity.manifest import PROGRAM_ROLE, Manifest
from launcher.integrity.model_info import Donor, ModelInfo
from launcher.integrity.release_files import read_capped
from launcher.integrity.versions import parse_version
from release.folder.files import (
    NEEDED,
    NOTICE,
    PACKAGE_ROLE,
    RUNTIME,
    is_public,
    program_licence,
    redistribution,
    role_of,
)
from release.folder.program_facts import DOCUMENT, RUNTIME_COMPONENT, ProgramFacts, components
from release.folder.program_facts import NAME as PROGRAM
from release.folder.weights_licences import (
    BASE_LICENCE,
    DONOR_LICENCE,
    LICENCE,
    WEIGHTS_LICENCE,
    find_licence,
    is_donor_the_base,
    is_text_of,
    may_hold,
    same_origin,
)
from release.package.facts import PackageFacts

_MAX_TEXT: Final = 16 << 20


def manifest_faults(described: Manifest) -> list[str]:
    """What is wrong with a manifest as that of a release."""
    files = {file.path: file for file in described.files}
    faults = [f"it does not list {path}" for path in sorted(NEEDED - files.keys())]
    packages = [file.path for file in described.files if file.role == PACKAGE_ROLE]
    if packages != [f"{described.model}.l3r"]:
        faults.append(f"its packages are {', '.join(packages) or 'none'}, expected {described.model}.l3r")
    for file in described.files:
        if (role_of(file.path) or file.role) != file.role:
            faults.append(f"it gives {file.path} the role {file.role}, expected {role_of(file.path)}")
        if file.public != is_public(file.path):
            word = "is" if file.public else "is not"
            faults.append(f"{file.path} {word} in the flat set")
    if RUNTIME not in described.redistribution:
        faults.append(f"it does not say whether {RUNTIME} is carried, and under which terms")
    return faults


def program_faults(program: ProgramFacts, described: Manifest, folder: Path, *, complete: bool) -> list[str]:
    """Where the payload of the program and the folder differ.

    Args:
        complete: whether texts outside the flat set must be there.
    """
    faults = []
    wanted, found = parse_version(described.min_launcher_version), parse_version(program.version)
    if wanted is not None and found is not None and found < wanted:
        faults.append(f"it is {program.version}, the release asks for {described.min_launcher_version} or newer")
    for name, content in program.notices.items():
        if not complete and not is_public(name):
            continue
        if read_capped(folder / name, _MAX_TEXT) != content:
            faults.append(f"{name} is not what the program carries")
    terms = redistribution(program)[RUNTIME]
    said = described.redistribution.get(RUNTIME)
    if said != terms:
        faults.append(f"the manifest says {said!r} of {RUNTIME}, the program {terms!r}")
    listed = next((file for file in described.files if file.role == PROGRAM_ROLE), None)
    if listed is not None and listed.licence != program_licence(program):
        faults.append(f"the manifest puts it under {listed.licence}, its bill under {program_licence(program)}")
    if described.source_sha256 != program.sources:
        faults.append(
            f"the manifest says that it was built from sources with the digest {described.source_sha256},"
            f" the program says {program.sources}"
        )
    if listed is not None and listed.path != PROGRAM:
        faults.append(f"the manifest calls it {listed.path}")
    return faults


def licence_faults(folder: Path, info: ModelInfo, program: ProgramFacts | None) -> list[str]:
    """Terms without a text, and texts that are not those of the terms."""
    code = find_licence("Apache-2.0")
    assert code is not None
    faults = []
    text = read_capped(folder / LICENCE, _MAX_TEXT)
    if text is None or text != code.path.read_bytes():
        faults.append(f"{LICENCE} is not the text of {code.spdx}, which the program is under")
    faults += _weights_faults(folder, info)
    notice = (read_capped(folder / NOTICE, _MAX_TEXT) or b"").decode(errors="replace")
    parts = [info.package.path, info.licence, PROGRAM]
    for origin in (info.base, info.mtp_donor):
        parts += [] if origin is None else [origin.repository, origin.revision]
    if program is not None and program.runtime is not None:
        parts += [program.runtime.licence, program.runtime.sha256, program.runtime.homepage]
    faults += [f"{NOTICE} does not name {part}" for part in parts if part not in notice]
    if program is not None:
        faults += _parts_faults(folder, program)
    return faults


def _weights_faults(folder: Path, info: ModelInfo) -> Iterator[str]:
    licence = find_licence(info.licence)
    if licence is None:
        yield f"the weights are under {info.licence}, of which no text is known"
        return
    if not is_text_of(read_capped(folder / WEIGHTS_LICENCE, _MAX_TEXT) or b"", licence):
        yield f"{WEIGHTS_LICENCE} is missing or is not the text of {info.licence}"
    if info.mtp_donor is None:
        return
    donor = find_licence(info.mtp_donor.licence)
    if donor is None:
        yield f"the MTP layer is under {info.mtp_donor.licence}, of which no text is known"
        return
    if not may_hold(licence, donor):
        yield f"the MTP layer is under {donor.spdx}, which asks for more than {licence.spdx}"
    text = read_capped(folder / DONOR_LICENCE, _MAX_TEXT) or b""
    if not is_donor_the_base(info) and not is_text_of(text, donor):
        yield f"{DONOR_LICENCE} is missing or is not the text of {donor.spdx}"


def _parts_faults(folder: Path, program: ProgramFacts) -> Iterator[str]:
    """Every component of the program has its heading and its texts among the notices."""
    document = (read_capped(folder / DOCUMENT, _MAX_TEXT) or b"").decode(errors="replace")
    for entry in components(program.bill):
        if str(entry.get("purl", "")).startswith("pkg:cargo/"):
            continue  # libraries inside a file that others compiled; the file's own notice lists them
        if f"\n{entry['name']} {entry['version']}\n" not in document:
            yield f"{DOCUMENT} does not describe {entry['name']} {entry['version']}"
        if f"notices/{entry['bom-ref']}.txt" not in program.notices:
            yield f"the program carries no notice of {entry['name']}"
    named = {entry["bom-ref"] for entry in components(program.bill)}
    if (RUNTIME_COMPONENT in named) != (program.runtime is not None):
        yield f"the program's bill and its payload differ about {RUNTIME_COMPONENT}"


def model_faults(info: ModelInfo, package: PackageFacts) -> list[str]:
    """Where MODEL.json and the package differ."""
    pairs = {
        "size": (info.package.size, package.size),
        "recipe": (info.quantization, package.quantization),
        "architecture": (info.architecture, package.architecture),
        "shapes": (dict(info.shapes), dict(package.shapes)),
        "native context": (info.native_context, package.config.max_position),
        "largest context": (info.maximum_context, package.config.max_context),
        "MTP layer": (info.mtp, package.has_mtp),
        "donor of the MTP layer": (_origin(info.mtp_donor), _origin(package.donor)),
        "tokenizer's SHA-256": (info.tokenizer_sha256, package.tokenizer_sha256),
        "chat template's SHA-256": (info.template_sha256, package.template_sha256),
    }
    if info.memory is not None and info.memory.source == package.memory.source:  # another version may plan otherwise
        pairs["memory"] = (dict(info.memory.terms), dict(package.memory.terms))
    return [
        f"MODEL.json gives the {name} as {said}, the package as {found}"
        for name, (said, found) in pairs.items()
        if said != found
    ]


def _origin(donor: Donor | None) -> tuple[str, ...] | None:
    """For comparing: licences count as the same whatever their case."""
    return None if donor is None else (donor.repository, donor.revision, donor.licence.lower())


def own_licence_faults(folder: Path, info: ModelInfo, package: PackageFacts) -> list[str]:
    """Weights under other terms than those that they came under must bring the text of the latter along."""
    own, licence = find_licence(package.licence or ""), find_licence(info.licence)
    donor = package.donor
    is_same = donor is not None and package.base is not None and same_origin(donor, package.base)
    if donor is not None and is_same and find_licence(donor.licence) is not own:
        return [f"the package puts one revision under {package.licence}, and its MTP layer under {donor.licence}"]
    if own is None or own is licence:
        return []
    if licence is not None and not may_hold(licence, own):
        return [f"the weights came under {own.spdx}, which asks for more than {licence.spdx}"]
    if package.base is None or is_text_of(read_capped(folder / BASE_LICENCE, _MAX_TEXT) or b"", own):
        return []
    return [f"the base model is under {own.spdx}; {BASE_LICENCE} is missing or is not its text"]
