"""`mindnano logits`: the logits of every position, so that anyone can hold the engine against any reference."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from launcher.engine import Engine, Package, Session
from launcher.engine_types import EngineOptions, KvType, Logits, SessionOptions
from launcher.errors import ResourceError, UsageError
from launcher.progress import Progress
from release.output import check_output_file, partial_file, require_free_space

Float32Array = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitsOptions:
    """What to evaluate and how.

    Attributes:
        ids: text file of token ids, separated by commas or white space.
        split: evaluate that many ids in one call and the rest one by one; None: all in one call.
        mtp: also run the MTP layer over the prompt.
        threads, simd: as in `EngineOptions`.
    """

    package: Path
    ids: Path
    output: Path
    split: int | None = None
    mtp: bool = False
    threads: int = 0
    simd: str = ""
    kv_type: KvType = KvType.F32
    force: bool = False


def dump_logits(options: LogitsOptions) -> Path:
    """Writes an .npz with `ids` [T], `logits` [T, V] and `hidden` [T, H] (after the final norm), float32.

    With `mtp` also `mtp_logits` [T - 1, V] and `mtp_hidden` [T - 1, H]: row t comes from the trunk at t and the token
    at t + 1, and predicts the token at t + 2. V includes the padding rows of the vocabulary.

    Raises:
        UsageError: the ids are malformed, out of range or more than the package's context, or the output exists.
        PackageError, ResourceError, EngineError: as the engine says.
    """
    check_output_file(options.output, force=options.force)
    with Package(options.package) as package:
        ids = read_ids(options.ids, package.config.vocab_size)
        if len(ids) > package.config.max_context:
            raise UsageError(
                "too-many-ids", f"{len(ids)} ids do not fit the package's context of {package.config.max_context}"
            )
        if options.mtp and len(ids) < 2:
            raise UsageError("too-few-ids", "--mtp needs at least two ids")
        rows = (1 + int(options.mtp)) * len(ids)
        require_free_space(options.output, 4 * rows * (package.config.vocab_size + package.config.hidden_size))
        arrays = _evaluate(package, ids, options)
    with partial_file(options.output, force=options.force) as file:
        np.savez(file, allow_pickle=False, **arrays)
    return options.output


def read_ids(path: Path, vocab_size: int) -> list[int]:
    """Token ids of a text file, separated by commas or white space.

    Raises:
        UsageError: unreadable, empty, or something that is not an id below `vocab_size`.
    """
    if path.exists() and not path.is_file():  # a pipe would hold us up, a device may never end
        raise UsageError("ids-unreadable", f"{path} is not a plain file")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError("ids-unreadable", f"cannot read {path}: {error}") from error
    words = [word for word in re.split(r"[\s,]+", text) if word]
    if not words:
        raise UsageError("ids-empty", f"{path} holds no ids", hint="Write ids separated by commas or white space.")
    ids = []
    for word in words:
        if not re.fullmatch(r"[0-9]{1,9}", word) or int(word) >= vocab_size:
            raise UsageError("ids-invalid", f"{path}: {word!r} is not an id; ids are 0 to {vocab_size - 1}")
        ids.append(int(word))
    return ids


def _evaluate(package: Package, ids: list[int], options: LogitsOptions) -> dict[str, npt.NDArray[np.generic]]:
    engine_options = EngineOptions(threads=options.threads, mtp=options.mtp, simd=options.simd)
    session_options = SessionOptions(context=len(ids), kv_type=options.kv_type)
    logits, hidden = _allocate(package, len(ids))
    arrays: dict[str, npt.NDArray[np.generic]] = {
        "ids": np.array(ids, dtype=np.int64),
        "logits": logits,
        "hidden": hidden,
    }
    with (
        Engine(package, engine_options) as engine,
        Session(engine, session_options) as session,
        Progress("Evaluating", len(ids) * (1 + int(options.mtp)), unit="tokens") as progress,
    ):
        for start, stop in _steps(len(ids), options.split):
            session.eval(ids[start:stop], mode=Logits.ALL, logits=logits[start:stop], hidden=hidden[start:stop])
            progress.advance(stop - start)
        if options.mtp:
            count = len(ids) - 1
            mtp_logits, mtp_hidden = _allocate(package, count)
            for start, stop in _steps(count, options.split):
                session.mtp(
                    hidden[start:stop],
                    ids[start + 1 : stop + 1],
                    start,
                    logits=mtp_logits[start:stop],
                    hidden_out=mtp_hidden[start:stop],
                )
                progress.advance(stop - start)
            progress.advance(1)
            arrays |= {"mtp_logits": mtp_logits, "mtp_hidden": mtp_hidden}
    return arrays


def _allocate(package: Package, count: int) -> tuple[Float32Array, Float32Array]:
    config = package.config
    try:
        return (
            np.empty((count, config.vocab_size), dtype=np.float32),
            np.empty((count, config.hidden_size), dtype=np.float32),
        )
    except MemoryError as error:
        raise ResourceError("memory", f"no memory for the logits of {count} tokens", hint="Give fewer ids.") from error


def _steps(count: int, split: int | None) -> list[tuple[int, int]]:
    first = count if split is None else max(0, min(split, count))
    head = [(0, first)] if first else []
    return [*head, *((position, position + 1) for position in range(first, count))]
