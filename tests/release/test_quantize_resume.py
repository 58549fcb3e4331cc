"""An interrupted conversion goes on where it was: no tensor is lost, trusted unseen, mixed up or made twice."""

from __future__ import annotations

import fcntl
import json
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.errors import PackageError, ResourceError, UsageError
from release.quantization import conversion
from release.quantization.journal import FILE_NAME as JOURNAL
from release.quantization.quantize import QuantizeOptions, quantize, quantize_with_report
from release.quantization.report import QuantizeReport
from tests.support.checkpoints import make_checkpoint

# Dies at the given step: a write, a flush, or a file about to get its name. Threads are within a step at any time.
KILLED = """
import os, signal, sys
from pathlib import Path
from release.quantization import conversion
from release.quantization.quantize import QuantizeOptions, quantize
left = int(sys.argv[3])
def step(function):
    def counted(*arguments, **options):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **options)
    return counted
os.fsync = step(os.fsync)
Path.replace = step(Path.replace)
Path.rename = step(Path.rename)
conversion._write_all = step(conversion._write_all)
quantize(QuantizeOptions(source=Path(sys.argv[1]), output=Path(sys.argv[2]), recipe="w4a8"))
print(left)
"""
STEPS = 1_000_000


@pytest.fixture(scope="module")
def whole(micro: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The result of a conversion that nothing interrupted; not to be changed."""
    output = tmp_path_factory.mktemp("whole") / "out"
    quantize(QuantizeOptions(source=micro, output=output, recipe="w4a8"))
    return output


def run(source: Path, output: Path, **options: object) -> QuantizeReport:
    return quantize_with_report(QuantizeOptions(source=source, output=output, recipe="w4a8", **options))[1]  # type: ignore[arg-type]


def run_killed(source: Path, output: Path, step: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", KILLED, str(source), str(output), str(step)]
    return subprocess.run(command, capture_output=True, text=True)


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def finished(partial: Path) -> dict[str, tuple[int, int]]:
    """Inode and time of change of every file that the journal calls finished."""
    lines = (partial / JOURNAL).read_bytes().split(b"\n")[1:-1] if (partial / JOURNAL).exists() else []
    stats = {name: (partial / "tensors" / f"{name}.bin").stat() for name in (json.loads(x)["name"] for x in lines)}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


def interrupted(source: Path, output: Path, step: int = 200) -> Path:
    """The folder of a run that died on its way."""
    assert run_killed(source, output, step).returncode == -signal.SIGKILL
    assert not output.exists()
    return output.with_name("out.partial")


@pytest.mark.parametrize("seed", range(4))
def test_kills_at_any_step_change_no_byte_and_nothing_is_done_twice(
    seed: int, micro: Path, whole: Path, tmp_path: Path
) -> None:
    result = run_killed(micro, tmp_path / "count", STEPS)
    steps = STEPS - int(result.stdout)
    assert steps > 300
    output = tmp_path / "out"
    partial = tmp_path / "out.partial"
    generator = random.Random(seed)
    before: dict[str, tuple[int, int]] = {}
    for _ in range(2):
        if run_killed(micro, output, generator.randrange(1, steps // 2)).returncode == 0:
            pytest.fail("the run ended before it was killed")
        now = finished(partial)
        assert before.items() <= now.items()
        before = now
    report = run(micro, output)
    assert report.reused == len(before)
    after = {name: (output / "tensors" / f"{name}.bin").stat() for name in before}
    assert {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in after.items()} == before
    assert contents(output) == contents(whole)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["count", "out"]


def test_a_kill_at_the_very_end_leaves_a_result_or_something_to_go_on_with(
    micro: Path, whole: Path, tmp_path: Path
) -> None:
    steps = STEPS - int(run_killed(micro, tmp_path / "count", STEPS).stdout)
    for back in range(6):
        output = tmp_path / f"out-{back}"
        run_killed(micro, output, steps - back)
        if not output.exists():
            run(micro, output)
        left = contents(output)
        left.pop(JOURNAL, None)  # the last thing that goes
        assert left == contents(whole)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-1]),
        lambda path: path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:]),
        lambda path: path.unlink(),
    ],
    ids=["shorter", "bit flipped", "gone"],
)
def test_a_finished_tensor_is_believed_only_by_its_digest(
    damage: Callable[[Path], object], micro: Path, whole: Path, tmp_path: Path
) -> None:
    partial = interrupted(micro, tmp_path / "out")
    names = list(finished(partial))
    damage(partial / "tensors" / f"{names[len(names) // 2]}.bin")
    assert run(micro, tmp_path / "out").reused == len(names) - 1
    assert contents(tmp_path / "out") == contents(whole)


@pytest.mark.parametrize("cut", [1, 20, 100])
def test_a_torn_line_of_the_journal_counts_for_nothing(cut: int, micro: Path, whole: Path, tmp_path: Path) -> None:
    partial = interrupted(micro, tmp_path / "out")
    count = len(finished(partial))
    data = (partial / JOURNAL).read_bytes()
    (partial / JOURNAL).write_bytes(data[:-cut])
    assert run(micro, tmp_path / "out").reused in (count - 1, count if cut == 1 else count - 1)
    assert contents(tmp_path / "out") == contents(whole)


@pytest.mark.parametrize("content", [b"", b"\n", b"[]\n", b"\xff\xfe\n", b'{"schema":"other"}\n'])
def test_a_journal_that_is_none_starts_anew(content: bytes, micro: Path, whole: Path, tmp_path: Path) -> None:
    partial = interrupted(micro, tmp_path / "out")
    (partial / JOURNAL).write_bytes(content)
    assert run(micro, tmp_path / "out").reused == 0
    assert contents(tmp_path / "out") == contents(whole)


def test_another_source_is_not_mixed_with_the_one_before(checkpoint: Path, tmp_path: Path) -> None:
    interrupted(checkpoint, tmp_path / "out")
    path = checkpoint / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-8] ^= 1  # the lowest bits of a value
    path.write_bytes(data)
    assert run(checkpoint, tmp_path / "out").reused == 0
    run(checkpoint, tmp_path / "fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_another_recipe_is_not_mixed_with_the_one_before(micro: Path, tmp_path: Path) -> None:
    interrupted(micro, tmp_path / "out")
    options = {"source": micro, "recipe": "w4a8-plain"}
    assert quantize_with_report(QuantizeOptions(output=tmp_path / "out", **options))[1].reused == 0  # type: ignore[arg-type]
    quantize(QuantizeOptions(output=tmp_path / "fresh", **options))  # type: ignore[arg-type]
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def test_threads_change_no_byte(micro: Path, whole: Path, tmp_path: Path) -> None:
    for threads in (1, 5):
        run(micro, tmp_path / str(threads), threads=threads)
        assert contents(tmp_path / str(threads)) == contents(whole)


def test_a_full_disk_exits_with_5_and_the_next_run_goes_on(tmp_path: Path) -> None:
    """A limit on the size of a file stands for the disk: the embedding fits, the experts do not."""
    source = make_checkpoint(tmp_path / "source", "tiny", dtype="BF16", mtp=False)
    command = [sys.executable, "-m", "release.cli", "quantize", "--source", str(source), "--output"]
    limited = subprocess.run(
        [*command, str(tmp_path / "out")],
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000)),
    )
    assert limited.returncode == 5, limited.stderr
    assert "experts" in limited.stderr
    assert "run the same command again" in limited.stderr
    count = len(finished(tmp_path / "out.partial"))
    assert count > 10
    assert run(source, tmp_path / "out").reused == count
    run(source, tmp_path / "fresh")
    assert contents(tmp_path / "out") == contents(tmp_path / "fresh")


def fail_after(count: int, error: BaseException) -> Callable[..., None]:
    write = conversion._write_all

    def write_or_fail(*arguments: object) -> None:
        nonlocal count
        count -= 1
        if count < 0:
            raise error
        write(*arguments)  # type: ignore[arg-type]

    return write_or_fail


@pytest.mark.parametrize(
    ("error", "expected"),
    [(OSError(28, "No space left on device"), ResourceError), (KeyboardInterrupt(), KeyboardInterrupt)],
)
def test_what_is_finished_outlives_a_failure(
    error: BaseException,
    expected: type[BaseException],
    micro: Path,
    whole: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(conversion, "_write_all", fail_after(30, error))
        with pytest.raises(expected):
            run(micro, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    count = len(finished(tmp_path / "out.partial"))
    assert count > 20
    assert run(micro, tmp_path / "out").reused == count
    assert contents(tmp_path / "out") == contents(whole)


def test_a_damaged_checkpoint_leaves_nothing(checkpoint: Path, tmp_path: Path) -> None:
    path = checkpoint / "model.safetensors"
    data = bytearray(path.read_bytes())
    data[-4:] = b"\xff\xff\xff\x7f"  # NaN in the last tensor
    path.write_bytes(data)
    with pytest.raises(PackageError, match="nan at element"):
        run(checkpoint, tmp_path / "out")
    assert list(tmp_path.iterdir()) == [checkpoint]


def test_two_runs_do_not_share_a_folder(micro: Path, tmp_path: Path) -> None:
    partial = tmp_path / "out.partial"
    partial.mkdir()
    handle = os.open(partial, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="another process"):
            run(micro, tmp_path / "out")
    finally:
        os.close(handle)
    run(micro, tmp_path / "out")
