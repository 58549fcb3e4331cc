"""The portable program needs something of its surroundings that not every system has, or leaves something behind."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from launcher import __version__
from tests.bundle.portable import QUESTION, copied, program, run

EXPECTED = f"mindnano-infer {__version__}\n"
NOBODY = 65534
ENDED = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 129}
# With this seed the answer has 10 KB.
LONG = (
    *("--demo", "--think", "off", "--temperature", "100", "--top-k", "0", "--top-p", "1"),
    *("--context", "8K", "--seed", "3", "go on"),
)


def as_nobody() -> None:
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)


@pytest.fixture
def public() -> Iterator[Path]:
    """The program where everybody may read it."""
    with tempfile.TemporaryDirectory(dir="/var/tmp", prefix="mindnano-") as name:
        folder = Path(name)
        shutil.copy(program(), folder / "mindnano-infer")
        folder.chmod(0o555)
        yield folder / "mindnano-infer"
        folder.chmod(0o755)


def test_it_answers_with_an_empty_environment(tmp_path: Path) -> None:
    done = run(copied(tmp_path), *QUESTION, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert [path.name for path in tmp_path.iterdir()] == ["mindnano-infer"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become nobody")
@pytest.mark.parametrize("words", [("--version",), QUESTION], ids=["version", "question"])
def test_it_runs_as_nobody_in_a_folder_that_nobody_may_write(public: Path, words: tuple[str, ...]) -> None:
    done = subprocess.run(
        [str(public), *words], env={}, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, preexec_fn=as_nobody
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount")
def test_everything_but_the_file_may_be_read_only_and_noexec(public: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("unshare is not installed")
    script = (
        'for place in /tmp /dev/shm /run /root; do mount -t tmpfs -o ro,noexec tmpfs $place || exit 99; done; exec "$@"'
    )
    words = [unshare, "--mount", "sh", "-c", script, "sh", str(public), *QUESTION]
    environ = {"PATH": os.defpath, "HOME": "/root"}
    done = subprocess.run(words, env=environ, stdin=subprocess.DEVNULL, capture_output=True)
    if done.returncode == 99 or b"unshare failed" in done.stderr:
        pytest.skip("this system lets nobody mount")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


@pytest.mark.parametrize("closed", ["0<&-", "1>&-", "2>&-", "0<&- 1>&- 2>&-"])
def test_closed_streams_do_no_harm(closed: str) -> None:
    done = subprocess.run(["sh", "-c", f'exec "$0" --version {closed}', program()], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout == ("" if "1>&-" in closed else EXPECTED)


def test_twenty_may_start_for_the_first_time_at_once(tmp_path: Path) -> None:
    path = copied(tmp_path)
    environ = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    with ThreadPoolExecutor(20) as pool:
        done = list(pool.map(lambda _: run(path, "--version", environ=environ), range(20)))
    assert {(one.returncode, one.stdout, one.stderr) for one in done} == {(0, EXPECTED, "")}


@pytest.fixture
def busy(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """The program while it writes an answer."""
    environ = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    process = subprocess.Popen(
        [str(copied(tmp_path)), *LONG],
        env=environ,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stdout.read(1), process.stderr.read() if process.stderr else ""
    yield process
    process.kill()
    process.communicate()


def test_one_process_does_everything(busy: subprocess.Popen[bytes]) -> None:
    children = Path(f"/proc/{busy.pid}/task/{busy.pid}/children")
    if not children.exists():
        pytest.skip("this kernel does not list children")
    assert children.read_text() == ""


def test_nothing_is_left_after_a_kill(busy: subprocess.Popen[bytes], tmp_path: Path) -> None:
    before = {path.name for path in Path("/dev/shm").iterdir()}
    busy.kill()
    busy.wait()
    assert [path.name for path in tmp_path.iterdir()] == ["mindnano-infer"]
    assert {path.name for path in Path("/dev/shm").iterdir()} <= before


@pytest.mark.parametrize("number", ENDED, ids=lambda number: number.name)
def test_a_signal_ends_an_answer_with_its_code(busy: subprocess.Popen[bytes], number: signal.Signals) -> None:
    busy.send_signal(number)
    busy.communicate(timeout=60)
    assert busy.returncode == ENDED[number]


@pytest.mark.parametrize("number", ENDED, ids=lambda number: number.name)
def test_a_signal_at_the_start_ends_it(number: signal.Signals) -> None:
    process = subprocess.Popen(
        [str(program()), "--verify-self"],
        env={},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    while not re.search(r"^Name:\tmindnano-infer$", _status(process.pid), flags=re.MULTILINE):
        time.sleep(0.001)
    process.send_signal(number)
    _, err = process.communicate(timeout=60)
    # Before its first instruction, the signal itself ends the program.
    assert (process.returncode, err) in ((ENDED[number], b""), (-number, b""))


@pytest.mark.parametrize("number", ENDED, ids=lambda number: number.name)
def test_a_signal_in_every_phase_ends_it_without_a_trace(number: signal.Signals) -> None:
    """The start of the interpreter, of the launcher, of a conversation with all the modules that it brings.

    The first run says how long that takes here. Its answer is longer than the pipe, so it cannot end before the signal.
    """
    ends = set()
    to_answer = None
    for part in range(41):
        begin = time.monotonic()
        process = subprocess.Popen(
            [str(program()), *LONG],
            env={},
            pipesize=4096,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        if to_answer is None:
            assert process.stdout is not None
            assert process.stdout.read(1)
            to_answer = time.monotonic() - begin
        else:
            time.sleep(to_answer * part / 40)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        ends.add((process.returncode, err))
    assert ends - {(-number, b"")} == {(ENDED[number], b"")}


def _status(pid: int) -> str:
    return Path(f"/proc/{pid}/status").read_text()
