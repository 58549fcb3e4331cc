"""MODEL.json: what the weights of a release are. The reader here owns the format; writers call `ModelInfo.to_json`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from launcher.integrity.manifest import LICENCE, require_schema
from launcher.integrity.release_files import read_capped
from launcher.integrity.strict_json import Fields, invalid, parse_object, to_bytes

FILE_NAME: Final = "MODEL.json"
SCHEMA: Final = "mindnano.model"
VERSION: Final = 1
MAX_BYTES: Final = 1 << 20
_MAX_NAMES: Final = 64
_MAX_LANGUAGES: Final = 32
_MAX_TOKENS: Final = 256
_LANGUAGE: Final = re.compile(r"[a-z]{2,3}(?:-[A-Za-z0-9]{2,8})*", re.ASCII)
_REVISION: Final = re.compile(r"[0-9a-f]{40}", re.ASCII)
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class BaseModel:
    """What the weights were made from: a repository and the full 40-digit revision."""

    repository: str
    revision: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Donor:
    """Where an MTP layer came from that was appended to the weights: repository, 40-digit revision, SPDX expression."""

    repository: str
    revision: str
    licence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageFile:
    """The package that the description is about. `size` in bytes."""

    path: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantization:
    """How the weights were made small; digests are SHA-256. `calibration_sha256` is None where none was used."""

    recipe: str
    recipe_sha256: str
    calibration_sha256: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Fidelity against a reference: `metrics` by name over `positions` predicted tokens of a text with this digest."""

    reference: str
    text_sha256: str
    positions: int
    metrics: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFigures:
    """Bytes by named term; `source` says how they were found, e.g. ``measured, mindnano-infer 0.1.0, NanoPi M6``."""

    source: str
    terms: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAnswer:
    """Token ids after which the weights must, at temperature 0, say the ids of `continuation`."""

    prompt: tuple[int, ...]
    continuation: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The weights of a release.

    Attributes:
        name: the model's name, the same as in the manifest.
        base: what they were made from, None for a model that was trained for the release.
        mtp_donor: where the MTP layer came from, None where it came with the other weights or there is none.
        package: the file with the weights.
        quantization: how they were made.
        architecture: name of the architecture.
        shapes: sizes by name, e.g. ``layers``, ``hidden``, ``experts``, ``parameters``.
        native_context: tokens that the model was made for.
        maximum_context: tokens that the package allows.
        mtp: whether the package holds the multi-token prediction layer.
        tokenizer_sha256: of the package's tokenizer section.
        template_sha256: of the package's chat template section.
        licence: SPDX expression of the weights.
        languages: codes such as ``zh`` and ``en``.
        evaluation: fidelity, None where it was not measured.
        memory: memory, None where it was not measured.
        known_answer: a proof that the weights compute, None where there is none.
    """

    name: str
    base: BaseModel | None
    package: PackageFile
    quantization: Quantization
    architecture: str
    shapes: Mapping[str, int]
    native_context: int
    maximum_context: int
    mtp: bool
    tokenizer_sha256: str
    template_sha256: str
    licence: str
    languages: tuple[str, ...] = field(default=())
    evaluation: Evaluation | None = None
    memory: MemoryFigures | None = None
    known_answer: KnownAnswer | None = None
    mtp_donor: Donor | None = None

    def to_json(self) -> bytes:
        """The document, the same bytes for the same facts.

        Raises:
            PackageError: the reader would not accept it.
        """
        base = None if self.base is None else {"repository": self.base.repository, "revision": self.base.revision}
        data = to_bytes(
            {
                "schema": SCHEMA,
                "version": VERSION,
                "name": self.name,
                "base": base,
                "mtp_donor": _donor_document(self.mtp_donor),
                "package": {"path": self.package.path, "size": self.package.size, "sha256": self.package.sha256},
                "quantization": {
                    "recipe": self.quantization.recipe,
                    "recipe_sha256": self.quantization.recipe_sha256,
                    "calibration_sha256": self.quantization.calibration_sha256,
                },
                "architecture": self.architecture,
                "shapes": dict(sorted(self.shapes.items())),
                "native_context": self.native_context,
                "maximum_context": self.maximum_context,
                "mtp": self.mtp,
                "tokenizer_sha256": self.tokenizer_sha256,
                "template_sha256": self.template_sha256,
                "licence": self.licence,
                "languages": sorted(self.languages),
                "evaluation": _evaluation_document(self.evaluation),
                "memory": _memory_document(self.memory),
                "known_answer": _known_answer_document(self.known_answer),
            }
        )
        parse_model_info(data)
        return data


def parse_model_info(data: bytes, *, where: str = FILE_NAME) -> ModelInfo:
    """The description in these bytes.

    Raises:
        PackageError: it is too large, malformed, or of another schema or version.
    """
    if len(data) > MAX_BYTES:
        raise invalid(where, f"it has {len(data)} bytes, expected at most {MAX_BYTES}")
    fields = parse_object(data, where)
    require_schema(fields, SCHEMA, VERSION, where)
    native = fields.integer("native_context", low=1)
    info = ModelInfo(
        name=fields.text("name", limit=64),
        base=_base(fields.fields("base")) if fields.has("base") else None,
        mtp_donor=_donor(fields.fields("mtp_donor")) if fields.has("mtp_donor") else None,
        package=_package(fields.fields("package")),
        quantization=_quantization(fields.fields("quantization")),
        architecture=fields.text("architecture", limit=64),
        shapes=_counts(fields.fields("shapes")),
        native_context=native,
        maximum_context=fields.integer("maximum_context", low=1),
        mtp=fields.boolean("mtp"),
        tokenizer_sha256=fields.digest("tokenizer_sha256"),
        template_sha256=fields.digest("template_sha256"),
        licence=fields.text("licence", pattern=LICENCE),
        languages=_languages(fields),
        evaluation=_evaluation(fields.fields("evaluation")) if fields.has("evaluation") else None,
        memory=_memory(fields.fields("memory")) if fields.has("memory") else None,
        known_answer=_known_answer(fields.fields("known_answer")) if fields.has("known_answer") else None,
    )
    fields.finish()
    return info


def read_model_info(folder: Path) -> ModelInfo | None:
    """The description in a release folder, or None where it has none.

    Raises:
        PackageError: as `parse_model_info`; it cannot be read.
    """
    path = folder / FILE_NAME
    data = read_capped(path, MAX_BYTES)
    return None if data is None else parse_model_info(data, where=str(path))


def _donor_document(donor: Donor | None) -> dict[str, object] | None:
    if donor is None:
        return None
    return {"repository": donor.repository, "revision": donor.revision, "licence": donor.licence}


def _evaluation_document(evaluation: Evaluation | None) -> dict[str, object] | None:
    if evaluation is None:
        return None
    return {
        "reference": evaluation.reference,
        "text_sha256": evaluation.text_sha256,
        "positions": evaluation.positions,
        "metrics": dict(sorted(evaluation.metrics.items())),
    }


def _memory_document(memory: MemoryFigures | None) -> dict[str, object] | None:
    return None if memory is None else {"source": memory.source, "terms": dict(sorted(memory.terms.items()))}


def _known_answer_document(answer: KnownAnswer | None) -> dict[str, object] | None:
    return None if answer is None else {"prompt": list(answer.prompt), "continuation": list(answer.continuation)}


def _base(fields: Fields) -> BaseModel:
    base = BaseModel(
        repository=fields.text("repository", pattern=_REPOSITORY), revision=fields.text("revision", pattern=_REVISION)
    )
    fields.finish()
    return base


def _donor(fields: Fields) -> Donor:
    donor = Donor(
        repository=fields.text("repository", pattern=_REPOSITORY),
        revision=fields.text("revision", pattern=_REVISION),
        licence=fields.text("licence", pattern=LICENCE),
    )
    fields.finish()
    return donor


def _package(fields: Fields) -> PackageFile:
    package = PackageFile(path=fields.path("path"), size=fields.integer("size"), sha256=fields.digest("sha256"))
    fields.finish()
    return package


def _quantization(fields: Fields) -> Quantization:
    found = Quantization(
        recipe=fields.text("recipe", limit=64),
        recipe_sha256=fields.digest("recipe_sha256"),
        calibration_sha256=fields.digest("calibration_sha256") if fields.has("calibration_sha256") else None,
    )
    fields.finish()
    return found


def _evaluation(fields: Fields) -> Evaluation:
    metrics = fields.fields("metrics")
    found = Evaluation(
        reference=fields.text("reference", limit=200),
        text_sha256=fields.digest("text_sha256"),
        positions=fields.integer("positions", low=1),
        metrics={name: metrics.number(name) for name in metrics.names(limit=_MAX_NAMES)},
    )
    fields.finish()
    return found


def _memory(fields: Fields) -> MemoryFigures:
    found = MemoryFigures(source=fields.text("source", limit=200), terms=_counts(fields.fields("terms")))
    fields.finish()
    return found


def _known_answer(fields: Fields) -> KnownAnswer:
    found = KnownAnswer(prompt=_tokens(fields, "prompt"), continuation=_tokens(fields, "continuation"))
    fields.finish()
    return found


def _tokens(fields: Fields, name: str) -> tuple[int, ...]:
    tokens = []
    for value in fields.array(name, limit=_MAX_TOKENS):
        if type(value) is not int or not 0 <= value < 1 << 31:
            raise fields.fail(name, "token ids")
        tokens.append(value)
    if not tokens:
        raise fields.fail(name, "at least one token id")
    return tuple(tokens)


def _counts(fields: Fields) -> Mapping[str, int]:
    return {name: fields.integer(name) for name in fields.names(limit=_MAX_NAMES)}


def _languages(fields: Fields) -> tuple[str, ...]:
    values = fields.array("languages", limit=_MAX_LANGUAGES)
    if not all(isinstance(value, str) and _LANGUAGE.fullmatch(value) for value in values):
        raise fields.fail("languages", "language codes such as zh and en")
    return tuple(str(value) for value in values)
