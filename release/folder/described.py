"""The texts of a release that follow from its other files: MODEL.json, NOTICE, the model card and the plot.

`mindnano finalize` writes what `texts_of` gives. Whoever has the folder loads the same facts with `described_in` and
gets the same bytes, as long as the manifest's builder is this version of this program: other versions may word a text
differently.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from launcher.errors import PackageError
from launcher.integrity import model_info
from launcher.integrity.manifest import Manifest
from launcher.integrity.model_info import KnownAnswer, ModelInfo
from launcher.integrity.release_files import read_capped
from release.folder import card
from release.folder.bom import ReleaseFacts
from release.folder.card import CardFacts, render_card
from release.folder.fidelity import MAX_BYTES, MAX_REPORTS, PLOT, Measured, measure_up, report_name
from release.folder.files import NOTICE, notice
from release.folder.program_facts import NAME as PROGRAM
from release.folder.program_facts import ProgramFacts
from release.folder.weights_licences import find_licence
from release.package.facts import PackageFacts

TEXTS: Final = frozenset({model_info.FILE_NAME, NOTICE, card.NAME, PLOT})
"""Names of everything that `texts_of` may give."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """A release as far as its texts depend on it.

    Attributes:
        release: name, version and time, as the manifest has them.
        program: what the program's payload says.
        program_sha256: of the program's file.
        package: what the package says.
        package_sha256: of the package's file.
        licence: SPDX identifier of what the weights are released under.
        known_answer: what the package says at temperature 0, None where nobody asked it.
        reports: the reports of fidelity by their names in the release, in the order of their numbers.
    """

    release: ReleaseFacts
    program: ProgramFacts
    program_sha256: str
    package: PackageFacts
    package_sha256: str
    licence: str
    known_answer: KnownAnswer | None
    reports: Mapping[str, bytes]


def described_in(
    folder: Path, manifest: Manifest, info: ModelInfo, *, program: ProgramFacts, package: PackageFacts
) -> Described:
    """What a release folder says, for `texts_of`.

    Args:
        folder: the release; the reports of fidelity that the manifest lists are read from it.
        manifest: its MANIFEST.json.
        info: its MODEL.json; only the chosen licence and the known answer are taken from it.
        program: read from its program.
        package: read from its package.

    Raises:
        PackageError: the manifest does not list program or package, or a report cannot be read.
    """
    digests = {file.path: file.sha256 for file in manifest.files}
    name = f"{manifest.model}.l3r"
    for wanted in (PROGRAM, name):
        if wanted not in digests:
            raise PackageError("release-invalid", f"the manifest does not list {wanted}")
    reports = {}
    for number in range(1, MAX_REPORTS + 1):
        report = report_name(number)
        if report not in digests:
            break
        data = read_capped(folder / report, MAX_BYTES)
        if data is None:
            raise PackageError("release-invalid", f"{report} is missing")
        reports[report] = data
    return Described(
        release=ReleaseFacts(model=manifest.model, version=manifest.release, epoch=manifest.source_date_epoch),
        program=program,
        program_sha256=digests[PROGRAM],
        package=package,
        package_sha256=digests[name],
        licence=info.licence,
        known_answer=info.known_answer,
        reports=reports,
    )


def texts_of(described: Described) -> Mapping[str, bytes]:
    """The texts by their names: MODEL.json, NOTICE, README.md, and fidelity.svg where there are reports.

    It depends on its argument alone: equal facts give equal bytes.

    Raises:
        PackageError: a report of fidelity is not about the package, or MODEL.json could not be read back.
    """
    measured = _measured(described)
    info = _info(described, measured)
    facts = CardFacts(
        release=described.release,
        info=info,
        layouts=described.package.layouts,
        own_licence=_own_licence(described),
        program=described.program,
        program_sha256=described.program_sha256,
        fidelity="" if measured is None else measured.text,
    )
    texts = {
        model_info.FILE_NAME: info.to_json(),
        NOTICE: notice(described.release, described.program, info, own_licence=facts.own_licence),
        card.NAME: render_card(facts),
    }
    return texts if measured is None else {**texts, PLOT: measured.plot}


def model_of(described: Described) -> ModelInfo:
    """MODEL.json as an object.

    Raises:
        PackageError: a report of fidelity is not about the package.
    """
    return _info(described, _measured(described))


def _measured(described: Described) -> Measured | None:
    measured, gaps = measure_up(described.reports, described.package, described.package_sha256)
    if gaps:
        raise PackageError("release-fidelity", "; ".join(gaps), hint="Measure this package: mindnano fidelity --json.")
    return measured


def _info(described: Described, measured: Measured | None) -> ModelInfo:
    package, donor = described.package, described.package.donor
    known = None if donor is None else find_licence(donor.licence)
    return ModelInfo(
        name=described.release.model,
        base=package.base,
        mtp_donor=donor if donor is None or known is None else replace(donor, licence=known.spdx),
        package=package.file(f"{described.release.model}.l3r", described.package_sha256),
        quantization=package.quantization,
        architecture=package.architecture,
        shapes=package.shapes,
        native_context=package.config.max_position,
        maximum_context=package.config.max_context,
        mtp=package.has_mtp,
        tokenizer_sha256=package.tokenizer_sha256,
        template_sha256=package.template_sha256,
        licence=described.licence,
        languages=card.LANGUAGES,
        evaluation=None if measured is None else measured.evaluation,
        memory=package.memory,
        known_answer=described.known_answer,
    )


def _own_licence(described: Described) -> str:
    """What the weights came under; where the package names none that is known, what they are released under."""
    own = find_licence(described.package.licence or "")
    return described.licence if own is None else own.spdx
