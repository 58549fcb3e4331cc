"""Encodes tensors into files: threads read and round pieces, one writes them in order, one flushes what is complete.

At any time a few pieces of about a million values are in memory, however large the checkpoint is.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import BinaryIO

from release.checkpoint.safetensors_reader import TensorReader
from release.layouts.quantizer import Figures
from release.output import writing
from release.quantization.encoding import Encoded, Task, encoding_jobs
from release.quantization.journal import Entry, Journal

TENSORS = "tensors"
"""The folder of the tensors' files."""

_FLUSHING = 2  # complete tensors that may wait for the disk


def tensor_path(folder: Path, name: str) -> Path:
    """The file of a package tensor."""
    return folder / TENSORS / f"{name}.bin"


def convert_tensors(
    tasks: Sequence[Task],
    reader: TensorReader,
    folder: Path,
    journal: Journal,
    *,
    head_shape: tuple[int, int],
    threads: int,
    advance: Callable[[int], None],
) -> tuple[Entry, ...]:
    """Writes each tensor to its file, flushes it and enters it into the journal; returns the entries in order.

    Args:
        tasks: what to encode.
        reader: the checkpoint.
        folder: where `TENSORS` lies.
        journal: a started journal.
        head_shape: see `release.quantization.assemble.pieces`.
        threads: how many read and encode.
        advance: receives the bytes written.

    Raises:
        PackageError: a source cannot be read, holds NaN or infinity, or does not fit its layout.
        ResourceError: a file cannot be written.
    """
    entries: deque[Future[Entry]] = deque()
    done: list[Entry] = []
    with (
        ThreadPoolExecutor(1) as flusher,
        closing(_in_order(_jobs(tasks, reader, head_shape), threads)) as encoded,
    ):
        for task, results in _by_task(tasks, encoded):
            path = tensor_path(folder, task.tensor.name)
            with writing(path):
                entries.append(_write(path, task.tensor.name, results, flusher, journal, advance))
            while len(entries) > _FLUSHING:
                done.append(entries.popleft().result())
        done += [entry.result() for entry in entries]
    return tuple(done)


def _jobs(
    tasks: Sequence[Task], reader: TensorReader, head_shape: tuple[int, int]
) -> Iterator[tuple[Task, Callable[[], Encoded]]]:
    for task in tasks:
        for job in encoding_jobs(task, reader, head_shape=head_shape):
            yield task, job


def _in_order(jobs: Iterable[tuple[Task, Callable[[], Encoded]]], threads: int) -> Generator[tuple[Task, Encoded]]:
    """Results in the order of the jobs, of which a few more than there are threads wait at any time."""
    waiting: deque[tuple[Task, Future[Encoded]]] = deque()
    with ThreadPoolExecutor(threads) as pool:
        try:
            for task, job in jobs:
                waiting.append((task, pool.submit(job)))
                if len(waiting) > 2 * threads:
                    first, future = waiting.popleft()
                    yield first, future.result()
            while waiting:
                first, future = waiting.popleft()
                yield first, future.result()
        finally:
            for _, future in waiting:
                future.cancel()


def _by_task(
    tasks: Sequence[Task], results: Iterator[tuple[Task, Encoded]]
) -> Iterator[tuple[Task, Iterator[Encoded]]]:
    """Each task with its own results, which are to be used up before the next task is asked for."""
    upcoming = next(results, None)

    def of(task: Task) -> Iterator[Encoded]:
        nonlocal upcoming
        while upcoming is not None and upcoming[0] is task:
            yield upcoming[1]
            upcoming = next(results, None)

    for task in tasks:
        yield task, of(task)


def _write(
    path: Path,
    name: str,
    results: Iterator[Encoded],
    flusher: ThreadPoolExecutor,
    journal: Journal,
    advance: Callable[[int], None],
) -> Future[Entry]:
    source, digest = hashlib.sha256(), hashlib.sha256()
    figures = Figures()
    size = 0
    partial = path.with_name(f"{path.name}.part")
    file = partial.open("wb", buffering=0)
    try:
        for encoded in results:
            for stored in encoded.stored:
                source.update(stored.data)
            digest.update(encoded.data.data)
            _write_all(file, encoded.data.data)
            size += encoded.data.nbytes
            figures = figures + encoded.figures
            advance(encoded.data.nbytes)
    except BaseException:
        file.close()
        raise
    entry = Entry(
        name=name,
        bytes=size,
        source_sha256=source.hexdigest(),
        sha256=digest.hexdigest(),
        figures=figures,
    )
    return flusher.submit(_complete, file, partial, path, journal, entry)


def _write_all(file: BinaryIO, data: memoryview) -> None:
    while data:
        data = data[file.write(data) :]


def _complete(file: BinaryIO, partial: Path, path: Path, journal: Journal, entry: Entry) -> Entry:
    with writing(path):
        try:
            os.fsync(file.fileno())
        finally:
            file.close()
        partial.replace(path)
        journal.record(entry)
    return entry
