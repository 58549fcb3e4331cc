"""Random checkpoints and the packages made from them, each built once per test run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from launcher.engine import Engine, Package, Session
from launcher.engine_library import Library
from launcher.engine_types import EngineOptions, KvType, Logits, SessionOptions
from release.package.pack import PackOptions, pack
from release.quantization.quantize import QuantizeOptions, quantize
from tests.support.checkpoints import PRESETS, Preset, make_checkpoint
from tests.support.dimensions import Dimensions
from tests.support.reference import Floats, checkpoint_weights

Float32 = npt.NDArray[np.float32]

VARIANTS = {
    **PRESETS,
    # One layer after the last whole group: it attends by MLA, though it closes no group.
    "tail": replace(PRESETS["micro"], layers=5, layer_group=2, q_lora=None),
    # Shallow ones, KDA then MLA: what one layer rounds, no depth amplifies.
    "shallow": replace(PRESETS["tiny"], layers=2, layer_group=2, dense_layers=1),
    "shallow-experts": replace(PRESETS["qnone"], layers=2, layer_group=2, dense_layers=0),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What the engine gives for a prompt; the MTP results are empty where they were not asked for."""

    logits: Float32
    hidden: Float32
    mtp_logits: Float32
    state: bytes

    def same_bits(self, other: Evaluation) -> bool:
        """Whether all results are equal bit for bit."""
        mine = (self.logits, self.hidden, self.mtp_logits)
        theirs = (other.logits, other.hidden, other.mtp_logits)
        pairs = zip(mine, theirs, strict=True)
        return self.state == other.state and all(a.tobytes() == b.tobytes() for a, b in pairs)


class Models:
    """Makes checkpoints and packages in a folder, on demand."""

    def __init__(self, folder: Path, library: Library) -> None:
        self._folder = folder
        self._library = library
        self._packages: dict[tuple[str, str], Package] = {}

    def preset(self, name: str) -> Preset:
        """Dimensions by name."""
        return VARIANTS[name]

    def checkpoint(self, name: str) -> Path:
        """A float32 checkpoint with an MTP layer; not to be changed."""
        folder = self._folder / name
        if not folder.exists():
            partial = make_checkpoint(self._folder / f"{name}.partial", VARIANTS[name])
            partial.rename(folder)
        return folder

    def dimensions(self, name: str) -> Dimensions:
        """The checkpoint's dimensions, from its config.json."""
        config = json.loads((self.checkpoint(name) / "config.json").read_text(encoding="utf-8"))
        return Dimensions.from_json(config)

    def weights(self, name: str) -> dict[str, Floats]:
        """The checkpoint's tensors."""
        return checkpoint_weights(self.checkpoint(name))

    def package_path(self, name: str, recipe: str) -> Path:
        """A package of the checkpoint."""
        path = self._folder / f"{name}-{recipe}.l3r"
        if not path.exists():
            assets = self._folder / f"{name}-{recipe}"
            manifest = quantize(QuantizeOptions(source=self.checkpoint(name), output=assets, recipe=recipe))
            pack(PackOptions(manifest=manifest, output=path))
            shutil.rmtree(assets)
        return path

    def package(self, name: str, recipe: str) -> Package:
        """The same, open."""
        if (name, recipe) not in self._packages:
            self._packages[name, recipe] = Package(self.package_path(name, recipe), library=self._library)
        return self._packages[name, recipe]

    def close(self) -> None:
        """Closes the packages; they can be opened again."""
        while self._packages:
            self._packages.popitem()[1].close()

    def delete(self) -> None:
        """Closes the packages and deletes all files: pytest would keep the folders of several runs."""
        self.close()
        shutil.rmtree(self._folder)


def prompt(count: int, vocabulary: int, seed: int = 0) -> list[int]:
    """Random token ids."""
    ids: list[int] = np.random.default_rng(seed).integers(0, vocabulary, count).tolist()
    return ids


def spans(count: int, cuts: Sequence[int]) -> list[tuple[int, int]]:
    """The pieces of [0, count) between cuts."""
    edges = [0, *sorted(cuts), count]
    return [(start, stop) for start, stop in pairwise(edges) if stop > start]


@contextmanager
def open_session(
    package: Package,
    *,
    context: int,
    threads: int = 1,
    simd: str = "",
    chunk: int = 0,
    kv_type: KvType = KvType.F32,
    poison: bool = True,
    mtp: bool = True,
) -> Iterator[Session]:
    """A session on an engine of its own."""
    options = SessionOptions(context=context, kv_type=kv_type, chunk=chunk, poison=poison)
    with Engine(package, EngineOptions(threads=threads, mtp=mtp, simd=simd)) as engine, Session(engine, options) as it:
        yield it


def evaluate(
    session: Session,
    ids: Sequence[int],
    *,
    cuts: Sequence[int] = (),
    mtp: bool = True,
    mtp_cuts: Sequence[int] | None = None,
) -> Evaluation:
    """Logits and hidden states of every position, then the MTP layer over the prompt, cut into calls as asked."""
    config = session.engine.package.config
    count = len(ids)
    # NaN everywhere: what the engine does not write is seen.
    logits = np.full((count, config.vocab_size), np.nan, dtype=np.float32)
    hidden = np.full((count, config.hidden_size), np.nan, dtype=np.float32)
    for start, stop in spans(count, cuts):
        session.eval(ids[start:stop], mode=Logits.ALL, logits=logits[start:stop], hidden=hidden[start:stop])
    drafts = count - 1 if mtp else 0
    mtp_logits = np.full((drafts, config.vocab_size), np.nan, dtype=np.float32)
    for start, stop in spans(drafts, [cut for cut in (cuts if mtp_cuts is None else mtp_cuts) if cut < drafts]):
        session.mtp(hidden[start:stop], ids[start + 1 : stop + 1], start, logits=mtp_logits[start:stop])
    return Evaluation(logits=logits, hidden=hidden, mtp_logits=mtp_logits, state=session.state_sha256())
