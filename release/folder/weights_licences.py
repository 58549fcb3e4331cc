"""Licences that weights may be released under, with their texts and the names that Hugging Face has for them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from launcher.errors import PackageError
from launcher.integrity.model_info import BaseModel, Donor, ModelInfo
from launcher.integrity.release_files import read_capped

LICENCE: Final = "LICENSE"
WEIGHTS_LICENCE: Final = "LICENSE-WEIGHTS"
BASE_LICENCE: Final = "LICENSE-BASE-MODEL"
DONOR_LICENCE: Final = "LICENSE-MTP-DONOR"

_ROOT: Final = Path(__file__).parents[2]
_TEXTS: Final = Path(__file__).with_name("licences")
_OWN_HOLDER: Final = "Copyright 2026 the mindnano-infer authors"
MAX_TEXT_BYTES: Final = 256 << 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsLicence:
    """A licence: its SPDX identifier, Hugging Face's identifier for it, and where its text lies.

    `rank` says how much it asks for: something may go out under a licence of at least the rank of each of its parts.
    `begins` stands in the first lines of the text, `ends` at the end of its terms, whoever wrote what is around them.
    Where `names_holder`, the text has a line for whoever holds the copyright.
    """

    spdx: str
    hub: str
    path: Path
    begins: str
    ends: str
    rank: int
    names_holder: bool = False


LICENCES: Final[tuple[WeightsLicence, ...]] = (
    WeightsLicence(
        spdx="Apache-2.0",
        hub="apache-2.0",
        path=_ROOT / "LICENSE",
        begins="Apache License",
        ends="END OF TERMS AND CONDITIONS",
        rank=1,
    ),
    WeightsLicence(
        spdx="MIT",
        hub="mit",
        path=_TEXTS / "MIT.txt",
        begins="MIT License",
        ends="OTHER DEALINGS IN THE SOFTWARE",
        rank=0,
        names_holder=True,
    ),
    WeightsLicence(
        spdx="CC-BY-NC-4.0",
        hub="cc-by-nc-4.0",
        path=_TEXTS / "CC-BY-NC-4.0.txt",
        begins="Creative Commons Attribution-NonCommercial 4.0 International",
        ends="including from the legal processes of any jurisdiction or authority",
        rank=2,
    ),
)


def find_licence(name: str) -> WeightsLicence | None:
    """The licence of that SPDX or Hugging Face identifier, in any case; None where it is none of these."""
    return next((licence for licence in LICENCES if licence.spdx.lower() == name.lower()), None)


def known_names() -> str:
    """For messages."""
    return ", ".join(licence.spdx for licence in LICENCES)


def is_donor_the_base(info: ModelInfo) -> bool:
    """Whether an appended MTP layer came from the very repository and revision that the other weights came from."""
    return info.mtp_donor is not None and info.base is not None and same_origin(info.mtp_donor, info.base)


def same_origin(donor: Donor, base: BaseModel) -> bool:
    """Whether both are the same repository at the same revision."""
    return (donor.repository, donor.revision) == (base.repository, base.revision)


def may_hold(licence: WeightsLicence, part: WeightsLicence) -> bool:
    """Whether something under `licence` may hold something under `part`: it must ask for at least as much."""
    return licence.rank >= part.rank


def licence_text(licence: WeightsLicence, base: BaseModel | Donor | None) -> bytes:
    """The text as it goes into a release.

    Args:
        base: whose weights they were; its organisation then holds the copyright, else this project's authors do.
    """
    text = licence.path.read_text(encoding="utf-8")
    if licence.names_holder:
        holder = _OWN_HOLDER if base is None else f"Copyright (c) {base.repository.partition('/')[0]}"
        text = text.format(copyright=holder)
    return text.encode()


def given_text(path: Path, licence: WeightsLicence) -> bytes:
    """A licence text that the base model's authors wrote.

    Raises:
        PackageError: there is no such file, or it is the text of another licence.
    """
    data = read_capped(path, MAX_TEXT_BYTES)
    if data is None:
        raise PackageError("licence-text", f"there is no file {path}", hint="name the base model's LICENSE")
    if not is_text_of(data, licence):
        raise PackageError(
            "licence-text",
            f"{path} is not the whole text of {licence.spdx}",
            hint="name the base model's LICENSE, or the licence that it is with --weights-license",
        )
    return data.replace(b"\r\n", b"\n")


def is_text_of(data: bytes, licence: WeightsLicence) -> bool:
    """Whether these bytes begin as the text of a licence does, and go on to the end of its terms."""
    try:
        text = data.decode()
    except UnicodeDecodeError:
        return False
    least = licence.path.stat().st_size // 2
    begins = licence.begins.lower() in " ".join(text[:400].lower().split())
    return begins and licence.ends.lower() in " ".join(text.lower().split()) and len(data) >= least
