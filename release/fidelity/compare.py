"""`mindnano fidelity`: how far packages are from their checkpoint, teacher-forced over a text.

All models go over the text side by side and only a block of logits of each is held at a time, so memory does not grow
with the text.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt

from launcher.engine import Engine, Package, Session
from launcher.engine_types import EngineOptions, KvType, Logits, Section, SessionOptions
from launcher.errors import DeviceError, UsageError
from launcher.model import metadata_of, model_name
from launcher.progress import Progress
from release.checkpoint.files import open_checkpoint
from release.fidelity.metrics import ErrorSums, Predictions, compare, predictions
from release.fidelity.plot import plot
from release.fidelity.report import (
    AGAINST_BF16,
    AGAINST_REFERENCE,
    Comparison,
    FidelityReport,
    ModelFacts,
    TextFacts,
)
from release.layouts.weights import is_quantized
from release.output import check_output_file, partial_file
from release.package.facts import checkpoint_sha256, hash_file, sources_of
from release.package.pack import PackOptions, pack
from release.quantization.quantize import QuantizeOptions, quantize
from release.texts import Window, read_text, windows

_BLOCK_VALUES: Final = 1 << 22
"""Logits held of each model at a time: 32 MiB as float64."""
_MAX_BLOCK: Final = 256

BACKENDS: Final[Mapping[str, str]] = {
    "cpu": "",
    "npu": "the engine of this version computes on the CPU only",
}
"""Every backend by name, and why it cannot be measured, or nothing."""

ALL: Final = "all"
ANSWERS: Final = "answers"
POSITIONS: Final[Mapping[str, str]] = {
    ALL: "every position of the text",
    ANSWERS: "positions that predict what the assistant says",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FidelityOptions:
    """What to compare, on what, and how.

    Attributes:
        reference: a checkpoint folder in Hugging Face layout, or a package without integer weights.
        packages: one or more packages of the same model.
        texts: files as `release.texts` reads them.
        context: tokens per window.
        positions: which positions count, a name out of `POSITIONS`.
        backends: names out of `BACKENDS`.
        kv_types: cache formats of the packages; BF16 is always measured too. The reference has F32.
        plot: where to draw the error by position.
        scratch: folder for the reference's package where it has to be made; None: the system's.
        threads, simd: as in `EngineOptions`.
    """

    reference: Path
    packages: tuple[Path, ...]
    texts: tuple[Path, ...]
    context: int = 1024
    positions: str = ALL
    backends: tuple[str, ...] = ("cpu",)
    kv_types: tuple[KvType, ...] = (KvType.BF16,)
    plot: Path | None = None
    scratch: Path | None = None
    threads: int = 0
    simd: str = ""
    force: bool = False


class _Run:
    """A package's session with one cache format, and what is known of it so far."""

    def __init__(self, package: str, backend: str, session: Session, context: int) -> None:
        self.package = package
        self.backend = backend
        self.kv_type = session.options.kv_type
        self.session = session
        self.errors = ErrorSums(context)
        self.errors_to_bf16 = ErrorSums(context)
        self.surprisal = 0.0

    def comparisons(self, predicted: int) -> Iterator[Comparison]:
        """Against the reference, and against the bf16 cache unless it is that."""
        sums = {AGAINST_REFERENCE: self.errors}
        if self.kv_type is not KvType.BF16:
            sums[AGAINST_BF16] = self.errors_to_bf16
        for against, errors in sums.items():
            yield Comparison(
                package=self.package,
                backend=self.backend,
                kv_cache=self.kv_type.label,
                against=against,
                surprisal=self.surprisal / predicted,
                figures=errors.figures(),
            )


def fidelity(options: FidelityOptions) -> FidelityReport:
    """Measures, and draws the plot if one is wanted.

    Raises:
        UsageError: options, texts or packages do not fit together, or the plot exists.
        DeviceError: a backend cannot be measured.
        PackageError, ResourceError, EngineError: as the engine, `quantize` and `pack` say.
    """
    _check(options)
    if options.plot is not None:
        check_output_file(options.plot, force=options.force)
    with ExitStack() as stack:
        packages = [stack.enter_context(Package(path)) for path in options.packages]
        texts = [read_text(path, packages[0]) for path in options.texts]
        reference = stack.enter_context(_open_reference(options))
        for package in packages:
            _check_same_model(reference, package)
        _check_context(options.context, [reference, *packages])
        documents = [document for text in texts for document in text.documents]
        parts = windows(documents, packages[0].tokenize, options.context)
        counted = [_counted(part, options.positions) for part in parts]
        predicted = sum(int(counts[:-1].sum()) for counts in counted)
        if predicted == 0:
            raise UsageError(
                "text-predicts-nothing",
                f"no window of the text holds {POSITIONS[options.positions]} with a token after it",
                hint="Give a longer text" + (", or --positions all." if options.positions != ALL else "."),
            )
        names = _names(options.packages)
        session = _session(stack, reference, options, KvType.F32)
        groups = [_runs(stack, package, name, options) for package, name in zip(packages, names, strict=True)]
        blocks = _blocks(parts, counted, max(package.config.vocab_size for package in (reference, *packages)))
        tokens = sum(len(part.ids) for part in parts)
        surprisal = _measure(blocks, tokens, session, groups, reference.config.token_count)
        report = FidelityReport(
            reference=_facts(reference, options.reference.name),
            packages=tuple(_facts(package, name) for package, name in zip(packages, names, strict=True)),
            texts=tuple(TextFacts(file=text.name, bytes=text.bytes, sha256=text.sha256) for text in texts),
            documents=len(documents),
            windows=len(parts),
            context=options.context,
            tokens=tokens,
            kind=options.positions,
            positions=sum(int(counts.sum()) for counts in counted),
            predicted=predicted,
            reference_surprisal=surprisal / predicted,
            comparisons=tuple(
                comparison for runs in groups for run in runs for comparison in run.comparisons(predicted)
            ),
        )
    if options.plot is not None:
        with partial_file(options.plot, force=options.force) as file:
            file.write(plot(report).encode(errors="backslashreplace"))  # names of files need not be UTF-8
    return report


def _check(options: FidelityOptions) -> None:
    if options.positions not in POSITIONS:
        raise UsageError(
            "fidelity-options", f"there are no positions {options.positions!r}, only {', '.join(POSITIONS)}"
        )
    for name in options.backends:
        if name not in BACKENDS:
            raise UsageError("backend-unknown", f"there is no backend {name!r}, only {', '.join(BACKENDS)}")
        if BACKENDS[name]:
            available = ", ".join(other for other, problem in BACKENDS.items() if not problem)
            raise DeviceError(
                "backend-unavailable",
                f"backend {name} cannot be measured: {BACKENDS[name]}",
                hint=f"Use --backend {available}.",
            )
    if not options.packages or not options.texts:
        raise UsageError("fidelity-options", "at least one package and one text are needed")
    if options.context < 2:
        raise UsageError("fidelity-options", f"a window of {options.context} tokens predicts nothing; 2 are the least")


@contextmanager
def _open_reference(options: FidelityOptions) -> Iterator[Package]:
    """The reference package, made from the checkpoint in a temporary folder where a folder is given."""
    if not options.reference.is_dir():
        with Package(options.reference) as package:
            integer = next((tensor for tensor in package.tensors() if is_quantized(tensor.dtype)), None)
            if integer is not None:
                raise UsageError(
                    "reference-quantised",
                    f"{options.reference} cannot be a reference: {integer.name} is {integer.dtype.name}",
                    hint="Give the checkpoint's folder, or a package of --recipe bf16 or f32.",
                )
            yield package
        return
    if options.scratch is not None and not options.scratch.is_dir():
        raise UsageError("scratch-missing", f"--scratch {options.scratch} is not a folder", hint="Make it first.")
    with tempfile.TemporaryDirectory(prefix="mindnano-fidelity-", dir=options.scratch) as scratch:
        folder = Path(scratch)
        recipe = _exact_recipe(options.reference)
        manifest = quantize(
            QuantizeOptions(source=options.reference, output=folder / "assets", recipe=recipe, drop_mtp=True)
        )
        with Package(pack(PackOptions(manifest=manifest, output=folder / "reference.l3r"))) as package:
            yield package


def _exact_recipe(folder: Path) -> str:
    """The smallest recipe that keeps every matrix of a checkpoint as it is."""
    matrices = [location for location in open_checkpoint(folder).tensors.values() if len(location.shape) > 1]
    return "bf16" if all(location.dtype == "BF16" for location in matrices) else "f32"


def _check_same_model(reference: Package, package: Package) -> None:
    """Equal token ids must mean equal tokens, or differences would mean nothing."""
    if reference.section(Section.TOKENIZER) != package.section(Section.TOKENIZER):
        raise UsageError(
            "tokenizers-differ",
            f"{package.path.name} does not have the tokenizer of the reference, so their logits cannot be compared",
            hint="Give the checkpoint that the package was made from.",
        )


def _check_context(context: int, packages: Sequence[Package]) -> None:
    allowed = min(package.config.max_context for package in packages)
    if context > allowed:
        raise UsageError(
            "context-too-large",
            f"windows of {context} tokens were asked for, the packages allow {allowed}",
            hint=f"Use --context {allowed} or less.",
        )


def _names(paths: Sequence[Path]) -> list[str]:
    """File names, or whole paths where names would be equal."""
    names = [path.name for path in paths]
    if len(set(names)) == len(names):
        return names
    whole = [str(path) for path in paths]
    if len(set(whole)) < len(whole):
        raise UsageError("fidelity-options", "a package is given twice")
    return whole


def _facts(package: Package, file: str) -> ModelFacts:
    metadata = metadata_of(package)
    quantization = metadata.get("quantization")
    recipe = quantization.get("recipe") if isinstance(quantization, dict) else None
    return ModelFacts(
        file=file,
        name=model_name(metadata, package.path),
        recipe=str(recipe or "unknown"),
        bytes=package.path.stat().st_size,
        sha256=hash_file(package.path),
        checkpoint_sha256=checkpoint_sha256(sources_of(metadata)),
    )


def _session(stack: ExitStack, package: Package, options: FidelityOptions, kv_type: KvType) -> Session:
    engine = stack.enter_context(Engine(package, EngineOptions(threads=options.threads, simd=options.simd)))
    return stack.enter_context(Session(engine, SessionOptions(context=options.context, kv_type=kv_type)))


def _runs(stack: ExitStack, package: Package, name: str, options: FidelityOptions) -> list[_Run]:
    """The package's runs, the one with the bf16 cache first."""
    kv_types = dict.fromkeys((KvType.BF16, *options.kv_types))
    return [
        _Run(name, backend, _session(stack, package, options, kv_type), options.context)
        for backend in options.backends
        for kv_type in kv_types
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    """Consecutive ids of a window.

    Attributes:
        begins: whether they are the window's first.
        ids: to evaluate.
        rows: which of them count, [n].
        places: their positions in the window, [n].
        targets: the tokens that come after them, [n]; one fewer where the window ends after the last of them.
    """

    begins: bool
    ids: tuple[int, ...]
    rows: npt.NDArray[np.intp]
    places: npt.NDArray[np.intp]
    targets: npt.NDArray[np.intp]


def _counted(window: Window, positions: str) -> npt.NDArray[np.bool_]:
    """Which positions of a window count."""
    if positions == ALL:
        return np.ones(len(window.ids), dtype=np.bool_)
    return np.array([*window.answers[1:], False], dtype=np.bool_)


def _blocks(parts: Sequence[Window], counted: Sequence[npt.NDArray[np.bool_]], vocabulary: int) -> Iterator[_Block]:
    """All windows in pieces whose logits fit in memory."""
    size = max(1, min(_MAX_BLOCK, _BLOCK_VALUES // vocabulary))
    for part, counts in zip(parts, counted, strict=True):
        ids = np.array(part.ids, dtype=np.intp)
        for start in range(0, len(ids), size):
            rows = np.flatnonzero(counts[start : start + size])
            following = rows + start + 1
            yield _Block(
                begins=start == 0,
                ids=part.ids[start : start + size],
                rows=rows,
                places=rows + start,
                targets=ids[following[following < len(ids)]],
            )


def _measure(
    blocks: Iterable[_Block], total: int, reference: Session, groups: Sequence[Sequence[_Run]], token_count: int
) -> float:
    """Goes over the text, `total` tokens, with everything at once; returns the sum of the reference's surprisal."""
    sessions = [reference, *(run.session for runs in groups for run in runs)]
    surprisal = 0.0
    with Progress("Comparing", total, unit="tokens") as progress:
        for block in blocks:
            if block.begins:
                for session in sessions:
                    session.reset()
            expected = _predict(reference, block, token_count)
            surprisal += expected.surprisal(block.targets)
            for runs in groups:
                _add(runs, expected, block, token_count)
            progress.advance(len(block.ids))
    return surprisal


def _add(runs: Sequence[_Run], expected: Predictions, block: _Block, token_count: int) -> None:
    """Runs of one package over one block."""
    base = expected
    for run in runs:
        actual = _predict(run.session, block, token_count)
        if not len(block.rows):
            continue
        run.errors.add(block.places, compare(expected, actual))
        run.surprisal += actual.surprisal(block.targets)
        if run.kv_type is KvType.BF16:
            base = actual
        else:
            run.errors_to_bf16.add(block.places, compare(base, actual))


def _predict(session: Session, block: _Block, token_count: int) -> Predictions:
    """Evaluates a block; what follows the last token of the vocabulary is padding."""
    logits = np.empty((len(block.ids), session.engine.package.config.vocab_size), dtype=np.float32)
    session.eval(block.ids, mode=Logits.ALL, logits=logits)
    return predictions(logits[block.rows, :token_count])
