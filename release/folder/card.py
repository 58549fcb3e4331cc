"""The model card of a release: README.md with the metadata that Hugging Face reads, made from the other files' facts.

Only a part of YAML is written and read: plain values, and lists of plain values. So nothing but this module is needed
to check a card, and every YAML reader understands it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from launcher.integrity.model_info import ModelInfo
from launcher.progress import format_bytes
from release.fidelity.compare import BACKENDS
from release.folder.bom import ReleaseFacts
from release.folder.fidelity import built_in_digests
from release.folder.program_facts import DOCUMENT, ProgramFacts
from release.folder.program_facts import NAME as PROGRAM
from release.folder.weights_licences import (
    BASE_LICENCE,
    DONOR_LICENCE,
    LICENCE,
    WEIGHTS_LICENCE,
    find_licence,
    is_donor_the_base,
)

NAME: Final = "README.md"
MAX_BYTES: Final = 1 << 20
PIPELINE: Final = "text-generation"
LIBRARY: Final = "mindnano-infer"
LANGUAGES: Final = ("en", "zh")
"""What Ling-3.0, and the built-in model after it, were trained to answer in."""

BUILT_IN_TOKENS: Final = 320
"""Tokens of a row of the built-in model's training: no conversation of its lessons was longer."""

_TAGS: Final = ("mindnano-infer", "l3r", "bailing_hybrid", "mixture-of-experts", "moe")
_LINE: Final = re.compile(r"([a-z_]+):(?: (.+))?")
_PLAIN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/+-]*")
_NOT_TEXT: Final = re.compile(r"(?i)true|false|yes|no|on|off|null|~|[0-9][0-9._]*(e[+-]?[0-9]+)?")
_REVISION: Final = re.compile(r"revision `([^`]*)`")
_MACHINES: Final = {
    "aarch64": "64-bit Linux on Arm (aarch64), such as boards with an RK3588",
    "x86_64": "64-bit Linux on x86-64",
}
_BOARD: Final = {"aarch64": "rk3588"}
"""Tags that say which board a program is for, by its processor."""

Metadata = Mapping[str, str | tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CardFacts:
    """What a card is made from; a release folder has all of it, see `release.folder.described`.

    Attributes:
        release: name, version and time.
        info: MODEL.json.
        layouts: number of values by layout of the package's tensors.
        own_licence: what the weights came under, as the package says.
        program: the program.
        program_sha256: of its file.
        fidelity: what the reports say, in Markdown; empty where nothing was measured.
    """

    release: ReleaseFacts
    info: ModelInfo
    layouts: Mapping[str, int]
    own_licence: str
    program: ProgramFacts
    program_sha256: str
    fidelity: str


def card_metadata(info: ModelInfo) -> Metadata:
    """The metadata of a card, in the order in which it is written."""
    licence = find_licence(info.licence)
    hub = "other" if licence is None else licence.hub
    found: dict[str, str | tuple[str, ...]] = {"license": hub, "language": info.languages}
    if info.base is not None:
        found |= {"base_model": info.base.repository, "base_model_relation": "quantized"}
    found |= {"pipeline_tag": PIPELINE, "library_name": LIBRARY}
    found["tags"] = (*_TAGS, *_telling_tags(info))
    return found


def _telling_tags(info: ModelInfo) -> tuple[str, ...]:
    """The tags that say something about this model; the others may be others in other versions of this program."""
    return (info.quantization.recipe, *(("demo",) if is_built_in(info) else ()))


def is_built_in(info: ModelInfo) -> bool:
    """Whether these are the weights of the built-in model, by their digest."""
    return info.package.sha256 in built_in_digests()


def render_card(facts: CardFacts) -> bytes:
    """The card as bytes; it depends on its facts alone."""
    info, release = facts.info, facts.release
    lines = ["---"]
    for name, value in {**card_metadata(info), **_of_program(facts)}.items():
        lines += [f"{name}: {_scalar(value)}"] if isinstance(value, str) else [f"{name}:"]
        lines += [] if isinstance(value, str) else [f"- {_scalar(item)}" for item in value]
    lines += ["---", "", f"# {info.name} {release.version}", "", _summary(facts), "", "| | |", "|---|---|"]
    lines += [f"| {name} | {value} |" for name, value in _rows(facts).items()]
    lines += ["", "## Use", "", _use(facts), "", "## Check", "", _check(facts)]
    if facts.fidelity:
        lines += ["", "## Fidelity", "", facts.fidelity.rstrip("\n")]
    lines += ["", "## Terms", "", _terms(facts)]
    return ("\n".join(lines) + "\n").encode()


def _of_program(facts: CardFacts) -> Metadata:
    """What the program adds to the metadata: who publishes it, its board, and that it carries Rockchip's library."""
    found: dict[str, str | tuple[str, ...]] = {}
    publisher = facts.program.publisher.repository
    if publisher is not None and facts.info.base is not None:
        found["quantized_by"] = publisher.split("/")[0]
    board = _BOARD.get(facts.program.target)
    carried = () if facts.program.runtime is None else ("rknn",)
    found["tags"] = (*card_metadata(facts.info)["tags"], *(() if board is None else (board,)), *carried)
    return found


def parse_card(data: bytes) -> tuple[Metadata, str]:
    """Metadata and text of a card.

    Raises:
        ValueError: it is not UTF-8, has no metadata, or has more of YAML than plain values and lists of them.
    """
    if b"\r" in data:
        raise ValueError("its lines end with CRLF")
    lines = data.decode().split("\n")
    if lines[0] != "---" or "---" not in lines[1:]:
        raise ValueError("it does not begin with metadata between two lines of ---")
    end = lines.index("---", 1)
    found: dict[str, str | tuple[str, ...]] = {}
    name = ""
    for number, line in enumerate(lines[1:end], start=2):
        match = _LINE.fullmatch(line)
        if match is not None:
            name = match[1]
            if name in found:
                raise ValueError(f"line {number}: {name} stands twice")
            found[name] = () if match[2] is None else _parsed(match[2], number)
            continue
        items = found.get(name)
        if not line.startswith("- ") or not isinstance(items, tuple):
            raise ValueError(f"line {number}: {line[:60]!r} is neither a value nor an item of a list")
        found[name] = (*items, _parsed(line[2:], number))
    return found, "\n".join(lines[end + 1 :])


def card_faults(data: bytes, info: ModelInfo) -> list[str]:
    """What is wrong with a card, one sentence each; `info` is what the release says of its weights."""
    try:
        metadata, text = parse_card(data)
    except ValueError as error:
        return [f"its metadata cannot be read: {error}"]
    expected = card_metadata(info)
    faults = []
    for name in expected:
        if name not in metadata:
            faults.append(f"its metadata has no {name}, expected {_shown(expected[name])}")
        elif name == "tags":
            faults += [f"its tags lack {tag}" for tag in _telling_tags(info) if tag not in metadata[name]]
        elif metadata[name] != expected[name]:
            faults.append(f"its {name} is {_shown(metadata[name])}, expected {_shown(expected[name])}")
    for name in ("base_model", "base_model_relation"):
        if name in metadata and name not in expected:
            faults.append(f"its metadata has a {name}, and the package was made from no other model")
    named = set(_REVISION.findall(text))
    origins = [origin for origin in (info.base, info.mtp_donor) if origin is not None]
    wanted = {origin.revision for origin in origins}
    faults += [f"it names revision {found}, MODEL.json says otherwise" for found in sorted(named - wanted)]
    faults += [f"it does not name the revision {revision}" for revision in sorted(wanted - named)]
    faults += [f"it does not name {name}" for name in sorted({each.repository for each in origins}) if name not in text]
    if info.package.sha256 not in text:
        faults.append(f"it does not name the package's SHA-256 {info.package.sha256}")
    return faults


def _scalar(text: str) -> str:
    """Quoted where YAML would take it for something else than text."""
    if _PLAIN.fullmatch(text) and not _NOT_TEXT.fullmatch(text):
        return text
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _parsed(text: str, number: int) -> str:
    if _PLAIN.fullmatch(text) and not _NOT_TEXT.fullmatch(text):
        return text
    if len(text) >= 2 and text[0] == text[-1] == '"' and '"' not in text[1:-1].replace('\\"', ""):
        return text[1:-1].replace('\\"', '"').replace("\\\\", "\\")
    raise ValueError(f"line {number}: {text[:60]!r} is no plain value")


def _shown(value: str | tuple[str, ...]) -> str:
    return value if isinstance(value, str) else ", ".join(value)


def _summary(facts: CardFacts) -> str:
    info, machine = facts.info, _MACHINES.get(facts.program.target, f"64-bit Linux on {facts.program.target}")
    program = f"and the program that runs it, for {machine}"
    if is_built_in(info):
        text = (
            f"A small model that was trained from random weights for this project, {program}."
            " It proves installations and demos, and knows nothing but a few kinds of exchange."
        )
    elif info.base is None:
        text = f"A model as one `.l3r` package, {program}."
    else:
        base = info.base.repository
        text = f"[{base}](https://huggingface.co/{base}) as one `.l3r` package, {program}."
    if BACKENDS["npu"]:
        text += " Everything is computed on the CPU; this version does not compute on an NPU."
    return text


def _rows(facts: CardFacts) -> dict[str, str]:
    info, shapes = facts.info, facts.info.shapes
    rows = {}
    if info.base is not None:
        rows["base model"] = f"`{info.base.repository}`, revision `{info.base.revision}`"
    donor = info.mtp_donor
    if donor is not None and is_donor_the_base(info):
        rows["MTP layer"] = "appended; from the same repository and revision"
    elif donor is not None:
        rows["MTP layer"] = f"appended; from `{donor.repository}`, revision `{donor.revision}`, under {donor.licence}"
    total = shapes["parameters"]
    layouts = ", ".join(f"{name} {100 * count / total:.2f} %" for name, count in facts.layouts.items())
    calibration = info.quantization.calibration_sha256
    rows |= {
        "parameters": f"{total:,}" + (f", {shapes['mtp_parameters']:,} of them in the MTP layer" if info.mtp else ""),
        "layers, hidden size": f"{shapes['layers']}, {shapes['hidden']}",
        "experts": f"{shapes['experts']}, {shapes['experts_per_token']} per token",
        "context": _context(info),
        "recipe": f"`{info.quantization.recipe}`: {layouts}",
        "calibration": "none" if calibration is None else f"by activations, SHA-256 `{calibration}`",
        "package": f"`{info.package.path}`, {format_bytes(info.package.size)}, SHA-256 `{info.package.sha256}`",
        "program": f"`{PROGRAM}` {facts.program.version} for {facts.program.target},"
        f" {format_bytes(facts.program.size)}, SHA-256 `{facts.program_sha256}`",
    }
    return rows


def _context(info: ModelInfo) -> str:
    text = f"positions up to {info.native_context:,} by the model's configuration, {info.maximum_context:,} at most"
    return f"{text}; trained on conversations of up to {BUILT_IN_TOKENS} tokens" if is_built_in(info) else text


def _use(facts: CardFacts) -> str:
    package = facts.info.package.path
    repository = facts.program.publisher.repository or "ORG/NAME"
    return (
        "```sh\n"
        f"hf download {repository} --local-dir DIR       # files, not links to a cache, which cannot be verified\n"
        "cd DIR\n"
        "chmod +x mindnano-infer\n"
        "./mindnano-infer --check                       # is this machine ready, and if not, what to do\n"
        f"./mindnano-infer --model {package}\n"
        "```"
    )


def _check(facts: CardFacts) -> str:
    return (
        "```sh\n"
        "sha256sum -c SHA256SUMS.PUBLIC\n"
        "./mindnano-infer --verify .\n"
        "```\n\n"
        "`MANIFEST.json` says what every file is, `MODEL.json` what the weights are, `bom.cdx.json` (CycloneDX 1.6)"
        " what is inside the program, `provenance.intoto.json` (SLSA 1.0) what the release was made from. A file"
        " `SHA256SUMS.PUBLIC.minisig`, where there is one, is the publisher's signature:"
        " `minisign -Vm SHA256SUMS.PUBLIC -P KEY`."
    )


def _terms(facts: CardFacts) -> str:
    runtime = facts.program.runtime
    info, donor = facts.info, facts.info.mtp_donor
    made = "" if info.base is None else f", converted from {info.base.repository}"
    lines = [f"- `{info.package.path}`: {info.licence}{made}. Text: `{WEIGHTS_LICENCE}`."]
    if facts.own_licence != info.licence and info.base is not None:
        lines.append(f"- The base model is under {facts.own_licence}, text in `{BASE_LICENCE}`.")
    elif facts.own_licence != info.licence:
        lines.append(f"- The weights came under {facts.own_licence}, text in `{LICENCE}`.")
    if donor is not None and not is_donor_the_base(info):
        lines.append(
            f"- The MTP layer in it is from {donor.repository}, under {donor.licence}, text in `{DONOR_LICENCE}`."
        )
    lines.append(
        f"- `{PROGRAM}`: {facts.program.licence}, text in `{LICENCE}`; its parts by others are listed with their terms"
        f" in `{DOCUMENT}`."
    )
    if runtime is None:
        lines.append("- Rockchip's `librknnrt.so` is not part of this release.")
    else:
        lines.append(
            f"- `librknnrt.so` {runtime.version} inside the program: Rockchip's own terms, text in `{DOCUMENT}`;"
            f" from {runtime.homepage}, SHA-256 `{runtime.sha256}`."
        )
    return "\n".join(lines)
