"""A digest that is wrong: for a length, an alignment, a split or an implementation; or one that covers another file's
bytes, because the file changed, the offset moved or reading stopped early."""

from __future__ import annotations

import hashlib
import os
import random
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.build import build_executable
from launcher.engine_library import Library
from launcher.errors import Cancelled, PackageError
from launcher.integrity import hashing
from launcher.integrity.hashing import STEP_BYTES, FileDigest, sha256_file
from tests.support.programs import run_program, sanitizers
from tests.support.qemu import aarch64_command

DRIVER = Path(__file__).with_name("sha256_driver.c")
SIZE = 3 << 20

# FIPS 180-4 and the examples that NIST publishes with it.
VECTORS = {
    b"": "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855",
    b"abc": "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    b"abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq": (
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1"
    ),
    b"abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmno"
    b"ijklmnopjklmnopqklmnopqrlmnopqrsmnopqrstnopqrstu": (
        "cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1"
    ),
    b"a" * 1_000_000: "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
}

Piece = tuple[int, int, int, int]
"""Offset and length in the file, shift of the copy's address, length of the parts it is fed in."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sha256") / "random"
    path.write_bytes(random.Random(1).randbytes(SIZE))
    return path


@pytest.fixture(scope="module")
def pieces() -> list[Piece]:
    generator = random.Random(2)
    chosen = [(generator.randrange(SIZE - 300), length, length % 17, 0) for length in range(301)]
    chosen += [(7, length, shift, 0) for length in (64, 128, 200) for shift in range(17)]
    chosen += [(3, 517, 1, step) for step in range(1, 140)]
    for _ in range(20):
        length = generator.randrange(SIZE // 8)
        chosen.append((generator.randrange(SIZE - length), length, generator.randrange(64), generator.randrange(9000)))
    chosen.append((0, SIZE, 0, 0))
    return chosen


@pytest.fixture(params=["engine", "hashlib"])
def engine(
    request: pytest.FixtureRequest, library: Library, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Library | None]:
    """The engine to pass on; None where none can be loaded."""
    if request.param == "engine":
        yield library
        return
    monkeypatch.setenv("MINDNANO_ENGINE", "/nonexistent/libling3.so")
    hashing._built_engine.cache_clear()
    assert hashing.implementation() == "hashlib"
    yield None
    hashing._built_engine.cache_clear()


def check(command: list[str], data: Path, pieces: list[Piece]) -> None:
    content = data.read_bytes()
    lines = "".join(f"{offset} {length} {shift} {step}\n" for offset, length, shift, step in pieces)
    result = subprocess.run([*command, str(data)], input=lines, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr[-8000:]
    said = result.stdout.split()
    assert len(said) == len(pieces)
    for digest, piece in zip(said, pieces, strict=True):
        offset, length, *_ = piece
        assert digest == hashlib.sha256(content[offset : offset + length]).hexdigest(), f"{command}: {piece}"


def names(command: list[str]) -> list[str]:
    """The implementations that can run there; the scalar one always can."""
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    found = result.stdout.split()
    assert found[-1] == "scalar"
    return found


def test_every_implementation_of_this_machine_agrees_with_hashlib(
    data: Path, pieces: list[Piece], library: Library, tmp_path: Path
) -> None:
    """Sanitizers watch blocks of exact size for reads past a message."""
    program = build_executable([DRIVER], DRIVER.stem, sanitize=sanitizers(), out=tmp_path)
    found = names([str(program)])
    assert library.functions.l3_sha256_implementation().decode() == found[0]
    for name in found:
        check([str(program), name], data, pieces)


def test_optimised_code_agrees_with_hashlib(data: Path, pieces: list[Piece], tmp_path: Path) -> None:
    program = build_executable([DRIVER], DRIVER.stem, out=tmp_path)
    for name in names([str(program)]):
        check([str(program), name], data, pieces)


def test_the_instructions_of_armv8_agree_with_hashlib(data: Path, pieces: list[Piece], tmp_path: Path) -> None:
    program = build_executable([DRIVER], DRIVER.stem, "aarch64", static=True, out=tmp_path)
    command = aarch64_command(program)
    assert names(command) == ["armv8", "scalar"]
    for name in ("armv8", "scalar"):
        check([*command, name], data, pieces)


def test_an_implementation_of_another_processor_is_refused(data: Path, tmp_path: Path) -> None:
    program = build_executable([DRIVER], DRIVER.stem, out=tmp_path)
    for name in {"sha-ni", "armv8", "sha9"} - set(names([str(program)])):
        assert run_program([program, name, data]).returncode == 2


@pytest.mark.parametrize("message", VECTORS, ids=lambda message: f"{len(message)} bytes")
def test_published_examples(message: bytes, engine: Library | None, tmp_path: Path) -> None:
    path = tmp_path / "message"
    path.write_bytes(message)
    with path.open("rb") as stream:
        found = sha256_file(stream.fileno(), library=engine)
    assert found == FileDigest(digest=VECTORS[message], length=len(message))


def test_whole_files_under_sanitizers(tmp_path: Path) -> None:
    program = build_executable([DRIVER], DRIVER.stem, sanitize=sanitizers(), out=tmp_path)
    path = tmp_path / "file"
    for size in (0, 1, STEP_BYTES - 1, STEP_BYTES, STEP_BYTES + 1, 2 * STEP_BYTES + 63):
        content = random.Random(size).randbytes(size)
        path.write_bytes(content)
        result = run_program([program, "--file", path])
        assert result.stdout == f"{hashlib.sha256(content).hexdigest()} {size}\n", result.stderr
    result = run_program([program, "--file", tmp_path / "missing"])
    assert (result.returncode, result.stdout) == (1, "")


# -- files, in the engine and without one --


@pytest.fixture
def file(data: Path, tmp_path: Path) -> Iterator[int]:
    """A copy of the data, open at an offset."""
    path = tmp_path / "copy"
    path.write_bytes(data.read_bytes())
    descriptor = os.open(path, os.O_RDWR)
    os.lseek(descriptor, 1234, os.SEEK_SET)
    yield descriptor
    os.close(descriptor)


def test_progress_comes_to_the_end_and_the_offset_stays(engine: Library | None, file: int, data: Path) -> None:
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> bool:
        seen.append((done, total))
        return False

    found = sha256_file(file, progress=progress, library=engine)
    assert found == FileDigest(digest=hashlib.sha256(data.read_bytes()).hexdigest(), length=SIZE)
    assert seen == [(done, SIZE) for done in range(STEP_BYTES, SIZE + 1, STEP_BYTES)]
    assert os.lseek(file, 0, os.SEEK_CUR) == 1234


def test_a_file_cut_while_it_is_hashed_has_no_digest(engine: Library | None, file: int) -> None:
    def cut(done: int, total: int) -> bool:
        os.ftruncate(file, STEP_BYTES + 5)
        return False

    with pytest.raises(PackageError, match=f"ends at byte {STEP_BYTES + 5}; it had {SIZE}") as caught:
        sha256_file(file, progress=cut, library=engine)
    assert caught.value.slug == "package-unreadable"


def test_a_file_that_grows_is_hashed_to_its_end(engine: Library | None, file: int, data: Path) -> None:
    def grow(done: int, total: int) -> bool:
        if done == STEP_BYTES:
            os.pwrite(file, b"more", SIZE)
        return False

    found = sha256_file(file, progress=grow, library=engine)
    assert found == FileDigest(digest=hashlib.sha256(data.read_bytes() + b"more").hexdigest(), length=SIZE + 4)


def test_progress_cancels(engine: Library | None, file: int) -> None:
    calls = []

    def stop(done: int, total: int) -> bool:
        calls.append(done)
        return True

    with pytest.raises(Cancelled):
        sha256_file(file, progress=stop, library=engine)
    assert calls == [STEP_BYTES]


def test_what_progress_raises_comes_out(engine: Library | None, file: int) -> None:
    def interrupt(done: int, total: int) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        sha256_file(file, progress=interrupt, library=engine)


def test_what_cannot_be_read_is_an_error(engine: Library | None, tmp_path: Path) -> None:
    folder = os.open(tmp_path, os.O_RDONLY)
    reader, writer = os.pipe()
    written = os.open(tmp_path / "new", os.O_WRONLY | os.O_CREAT)
    for descriptor in (folder, reader, written):
        with pytest.raises(PackageError) as caught:
            sha256_file(descriptor, library=engine)
        assert caught.value.slug == "package-unreadable"
    for descriptor in (folder, reader, writer, written):
        os.close(descriptor)
    with pytest.raises(PackageError):
        sha256_file(folder, library=engine)


def test_threads_hash_at_the_same_time(engine: Library | None, file: int, data: Path) -> None:
    """The digests are right, and one thread comes to its progress while the other is still on its way."""
    both = threading.Barrier(2, timeout=60)
    found: list[FileDigest] = []

    def wait(done: int, total: int) -> bool:
        both.wait()
        return False

    threads = [
        threading.Thread(target=lambda: found.append(sha256_file(file, progress=wait, library=engine)))
        for _ in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [FileDigest(digest=hashlib.sha256(data.read_bytes()).hexdigest(), length=SIZE)] * 2
