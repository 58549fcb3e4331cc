"""A crash, a hang or a lie of the vendor's runtime that reaches the program instead of becoming a line of the report.

Every test starts the real child with a librknnrt of our own (tests/support/rknn_stand_in.c) that fails as it is told.
"""

from __future__ import annotations

import fcntl
import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import pytest

from engine.errors import BuildError
from launcher.checks.report import Finding, Status
from launcher.checks.selftest import oom_kills, selftest_findings
from launcher.messages import Catalogue, Language
from launcher.npu import child as npu_child
from launcher.npu.rknn_library import RknnLibrary, read_library
from launcher.npu.selftest import Outcome, SelfTest, child_command, last_lines, run_selftest
from launcher.system import SystemView
from tests.fixtures.boards.builder import Board
from tests.support.availability import unavailable
from tests.support.rknn_stand_in import build_stand_in

ENGLISH = Catalogue(Language.ENGLISH)
CHINESE = Catalogue(Language.CHINESE)


@dataclass(frozen=True)
class Bench:
    """A library and a folder for the lock."""

    library: Path
    locks: Path

    def run(self, fault: str = "", **more: str) -> SelfTest:
        environ = {**os.environ, "RKNN_STAND_IN_FAULT": fault, **more}
        return run_selftest(str(self.library), environ, locks=[str(self.locks)], deadline_s=60.0)

    def run_hanging(self, fault: str) -> SelfTest:
        """The second that is left for an answer begins when the child hangs, however long it takes to get there."""
        mark = self.locks / f"{fault}.mark"
        environ = {**os.environ, "RKNN_STAND_IN_FAULT": fault, "RKNN_STAND_IN_MARK": str(mark)}
        began: list[float] = []

        def clock() -> float:
            if not began and mark.exists():
                began.append(time.monotonic())
            return time.monotonic() - began[0] if began else 0.0

        return run_selftest(str(self.library), environ, locks=[str(self.locks)], deadline_s=1.0, clock=clock)


def built(folder: Path, **settings: object) -> Path:
    try:
        return build_stand_in(folder, **settings)  # type: ignore[arg-type]
    except BuildError as error:
        unavailable(str(error))


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(tmp_path_factory.mktemp("second"))


@pytest.fixture
def bench(library: Path, tmp_path: Path) -> Bench:
    return Bench(library, tmp_path)


def finding(test: SelfTest) -> Finding:
    """The line of the report about this result."""
    found = RknnLibrary(
        path="/", size=1, sha256="", published=False, version="", build="", machine="", missing=(), trouble=""
    )
    line, *_ = selftest_findings(SystemView(), {}, found, lambda text: text, lambda *_: test, usable=True, held=False)
    assert not line.blocking
    for texts in (ENGLISH, CHINESE):
        assert line.text(texts)
        assert line.next_step(texts) or line.status is Status.OK
    json.dumps(dict(line.facts))
    return line


def test_all_cores_are_exact(bench: Bench) -> None:
    test = bench.run()
    assert test.outcome is Outcome.EXACT
    assert [(core.core, core.layout) for core in test.cores] == [
        (core, layout) for core in (0, 1, 2) for layout in ("native", "normal")
    ]
    assert all((core.wrong, core.of, core.zeros) == (0, 256, False) for core in test.cores)
    assert test.version == "2.3.2"
    # Everything was given back: two descriptors per context, one per buffer.
    assert test.last_lines == ("stand-in: 0 descriptors left",)
    assert finding(test).text(ENGLISH) == "self test: 3 of 3 cores exact, 6 products (librknnrt 2.3.2)"


def test_older_interface_is_spoken_by_version(tmp_path: Path) -> None:
    test = Bench(built(tmp_path, version="1.5.2"), tmp_path).run()
    assert (test.outcome, test.version, len(test.cores)) == (Outcome.EXACT, "1.5.2", 6)


@pytest.mark.parametrize(
    ("fault", "outcome", "stage", "words"),
    [
        ("zeros", Outcome.ZEROS, "end", ["every product is zero", "2.2.0"]),
        ("wrong-core-2", Outcome.WRONG, "end", ["core 2"]),
        ("off-by-one", Outcome.WRONG, "end", ["core 0, 1, 2"]),
        ("create-fails", Outcome.CALL_FAILED, "core 0", ["rknn_matmul_create", "-1", "failed to open rknpu module"]),
        ("create-refuses", Outcome.CALL_FAILED, "core 0", ["-5", "parameter refused", "unsupported matmul dtype"]),
        ("run-times-out", Outcome.CALL_FAILED, "core 0", ["rknn_matmul_run", "-2", "timeout", "failed to submit"]),
        ("core-refused", Outcome.CALL_FAILED, "core 2", ["rknn_matmul_set_core_mask", "Not support core mask: 4"]),
        ("no-memory", Outcome.CALL_FAILED, "core 0", ["rknn_create_mem", "-4", "Cannot allocate memory"]),
        ("odd-shape", Outcome.ODD_SHAPE, "core 0", ["(256, 4096, 512)"]),
        ("segfault", Outcome.SIGNAL, "core 0", ["SIGSEGV"]),
        ("abort", Outcome.SIGNAL, "core 0", ["SIGABRT", "terminate called"]),
        ("killed", Outcome.SIGNAL, "core 0", ["SIGKILL"]),
        ("crash-at-exit", Outcome.SIGNAL, "end", ["SIGSEGV", "at end"]),
        ("exit", Outcome.EXITED, "core 0", ["exit code 7"]),
        ("exit-quietly", Outcome.STOPPED, "core 0", ["ended before the test did"]),
        ("garbage", Outcome.GARBAGE, "core 0", ["no answer"]),
        ("flood", Outcome.GARBAGE, "core 0", ["no answer"]),
        ("unknown-event", Outcome.GARBAGE, "core 0", ["no answer"]),
        ("orphan", Outcome.SIGNAL, "core 0", ["SIGSEGV"]),
    ],
)
def test_each_failure_has_its_own_line(
    bench: Bench, fault: str, outcome: Outcome, stage: str, words: list[str]
) -> None:
    test = bench.run(fault)
    assert (test.outcome, test.stage) == (outcome, stage)
    line = finding(test)
    assert line.status is Status.FAIL
    for word in words:
        assert word in line.text(ENGLISH)


@pytest.mark.parametrize("fault", ["hang", "hang-noisily"])
def test_hanging_child_is_ended(bench: Bench, fault: str) -> None:
    test = bench.run_hanging(fault)
    assert (test.outcome, test.stage) == (Outcome.HUNG, "core 0")
    line = finding(test)
    assert "did not answer for 1 s" in line.text(ENGLISH)
    assert "switch the board off" in line.next_step(ENGLISH)
    assert line.facts["last"] in {"E RKNN: failed to wait job", "still trying"}


PUNCTUAL = """
import array, fcntl, json, os, sys, termios, time
descriptor = int(sys.argv[2])
def unread():
    count = array.array("i", [0])
    fcntl.ioctl(descriptor, termios.FIONREAD, count)
    return count[0]
events = [{"event": "started"}, {"event": "loaded", "version": "2.3.2"}]
for mask in (1, 2, 4):
    for layout in ("native", "normal"):
        events.append({"event": "core", "mask": mask, "layout": layout, "wrong": 0, "of": 256, "zeros": False})
for event in [*events, {"event": "done"}]:
    while unread():
        time.sleep(0.001)
    with open(sys.argv[1], "ab") as clock:
        clock.write(b"x" * 10)
    time.sleep(0.1)
    os.write(descriptor, json.dumps(event).encode() + b"\\n")
"""


def test_deadline_counts_from_the_last_event(tmp_path: Path) -> None:
    """A clock that the child moves: all events take 90, one takes ten. It waits until the last event is read."""

    def run(name: str, deadline_s: float) -> tuple[Outcome, int]:
        time_file = tmp_path / name
        time_file.touch()
        test = run_selftest(
            "/none",
            dict(os.environ),
            locks=[],
            command=[sys.executable, "-c", PUNCTUAL, str(time_file)],
            deadline_s=deadline_s,
            clock=lambda: float(time_file.stat().st_size),
        )
        return test.outcome, time_file.stat().st_size

    assert run("patient", 60.0) == (Outcome.EXACT, 90)
    assert run("impatient", 3.0)[0] is Outcome.HUNG


def test_nothing_of_the_child_is_left(bench: Bench) -> None:
    for run, fault in ((bench.run_hanging, "hang"), (bench.run, "orphan"), (bench.run, "abort")):
        run(fault)
        # A killed orphan ends when the kernel gets to it. Whatever is left of the child holds our lock.
        end = time.monotonic() + 60
        with (bench.locks / npu_child.LOCK_NAME).open() as lock:
            while not is_free(lock):
                assert time.monotonic() < end, f"something holds the lock after {fault}"
                time.sleep(0.01)


def is_free(lock: IO[str]) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


@pytest.mark.parametrize("kind", [fcntl.LOCK_EX, fcntl.LOCK_SH])
def test_second_program_is_told_that_the_npu_is_busy(bench: Bench, kind: int) -> None:
    with (bench.locks / npu_child.LOCK_NAME).open("w") as lock:
        fcntl.flock(lock, kind)
        test = bench.run()
    assert (test.outcome, test.stage, test.version) == (Outcome.BUSY, "load", "")  # the library was not loaded
    line = finding(test)
    assert line.status is Status.WARN
    assert npu_child.LOCK_NAME in line.text(ENGLISH)
    assert npu_child.LOCK_NAME not in line.redacted().text(ENGLISH)
    assert bench.run().outcome is Outcome.EXACT


def test_lock_of_another_user_can_be_taken(bench: Bench) -> None:
    lock = bench.locks / npu_child.LOCK_NAME
    lock.touch(mode=0o444)
    assert bench.run().outcome is Outcome.EXACT


@pytest.mark.parametrize("kind", ["missing folder", "link", "folder"])
def test_lock_that_cannot_be_made(bench: Bench, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "locks"
    if kind == "link":
        folder.mkdir()
        (folder / npu_child.LOCK_NAME).symlink_to(tmp_path / "elsewhere")
    elif kind == "folder":
        (folder / npu_child.LOCK_NAME).mkdir(parents=True)
        # A folder can be locked like a file; what matters is that nothing breaks.
        assert Bench(bench.library, folder).run().outcome is Outcome.EXACT
        return
    test = Bench(bench.library, folder).run()
    assert test.outcome is Outcome.NO_LOCK
    assert finding(test).status is Status.WARN
    assert not (tmp_path / "elsewhere").exists()


def test_library_that_does_not_load(tmp_path: Path) -> None:
    library = tmp_path / "librknnrt.so"
    library.write_bytes(b"librknnrt version: 2.3.2")
    test = Bench(library, tmp_path).run()
    assert (test.outcome, test.stage) == (Outcome.NOT_LOADED, "load")
    assert "file too short" in finding(test).text(ENGLISH)
    assert Bench(tmp_path / "none.so", tmp_path).run().outcome is Outcome.NOT_LOADED


def test_library_without_a_function(tmp_path: Path) -> None:
    library = built(tmp_path, without=("rknn_matmul_set_core_mask",))
    found = read_library(SystemView(), str(library))
    assert found is not None
    assert found.missing == ("rknn_matmul_set_core_mask",)
    test = Bench(library, tmp_path).run()
    assert test.outcome is Outcome.NO_SYMBOL
    assert "rknn_matmul_set_core_mask" in finding(test).text(ENGLISH)


def test_program_that_cannot_be_started(bench: Bench) -> None:
    test = run_selftest(str(bench.library), {}, locks=[], command=[str(bench.locks / "none")])
    assert test.outcome is Outcome.NOT_STARTED
    assert "No such file" in finding(test).text(ENGLISH)


@pytest.mark.parametrize(
    ("script", "outcome"),
    [
        ('import os, sys; os.write(int(sys.argv[1]), b\'{"event": "done"}\\n\')', Outcome.GARBAGE),
        ("import os, sys; os.write(int(sys.argv[1]), b'[]\\n')", Outcome.GARBAGE),
        ("import os, sys; os.write(int(sys.argv[1]), b'[' * 5000 + b'\\n')", Outcome.GARBAGE),
        ("import os, sys; os.write(int(sys.argv[1]), b'x' * 9000)", Outcome.GARBAGE),
        (
            'import os, sys; [os.write(int(sys.argv[1]), b\'{"event": "started"}\\n\') for _ in range(99)]',
            Outcome.GARBAGE,
        ),
        ('import os, sys; os.write(int(sys.argv[1]), b\'{"event": "core", "mask": [1]}\\n\')', Outcome.GARBAGE),
        ('import os, sys; os.write(int(sys.argv[1]), b\'{"event": "failed", "reason": "new"}\\n\')', Outcome.GARBAGE),
        ('print(\'{"event": "done"}\')', Outcome.STOPPED),
        ("import sys; sys.exit('no')", Outcome.EXITED),
    ],
)
def test_other_programs_are_not_believed(bench: Bench, script: str, outcome: Outcome) -> None:
    test = run_selftest(str(bench.library), dict(os.environ), locks=[], command=[sys.executable, "-c", script])
    assert test.outcome is outcome
    finding(test)


def test_kill_for_memory_is_told_from_other_kills(bench: Bench) -> None:
    kills = iter([3, 4, 4, 4])
    environ = {**os.environ, "RKNN_STAND_IN_FAULT": "killed"}

    def run() -> SelfTest:
        return run_selftest(str(bench.library), environ, locks=[str(bench.locks)], oom_kills=lambda: next(kills))

    test = run()
    assert test.outcome is Outcome.OUT_OF_MEMORY
    assert "want of memory" in finding(test).text(ENGLISH)
    assert run().outcome is Outcome.SIGNAL


def test_counters_of_kills(tmp_path: Path) -> None:
    board = Board().file("/proc/self/cgroup", "1:name=systemd:/x\n4:cpu,memory:/a\n0::/b\n")
    board.file("/sys/fs/cgroup/memory/a/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 5\n")
    board.file("/sys/fs/cgroup/b/memory.events", "low 0\nhigh 9\noom 1\noom_kill 2\noom_group_kill 0\n")
    assert oom_kills(board.build(tmp_path)) == 7
    assert oom_kills(Board().build(tmp_path / "bare")) == 0


def test_what_changes_loading_does_not_reach_the_child(bench: Bench, tmp_path: Path) -> None:
    """An LD_PRELOAD that cannot be loaded makes ld.so complain on stderr, which would be the last line."""
    (tmp_path / "launcher").mkdir()
    (tmp_path / "launcher" / "__init__.py").write_text("raise SystemExit(99)")
    test = bench.run(LD_PRELOAD="/none.so", PYTHONPATH=str(tmp_path), PYTHONSTARTUP="/none", PYTHONHOME="/none")
    assert test.outcome is Outcome.EXACT
    assert test.last_lines == ("stand-in: 0 descriptors left",)


def test_files_are_raised_and_no_core_is_dumped(bench: Bench) -> None:
    """A library that shows the limits it finds, in a process that starts with few."""
    code = (
        "import resource, sys\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (20, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))\n"
        "from launcher.npu.child import _prepare\n"
        "_prepare(512)\n"
        "print(resource.getrlimit(resource.RLIMIT_NOFILE)[0], resource.getrlimit(resource.RLIMIT_CORE))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    most = 512 if hard == resource.RLIM_INFINITY else min(512, hard)
    assert done.stdout == f"{most} (0, 0)\n"


def test_child_alone_explains_itself() -> None:
    done = subprocess.run(child_command(), capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "--check=deep" in done.stderr


def test_output_for_people_is_short_and_plain() -> None:
    data = b"old\n" * 100 + b"\x1b[31mred\x07\n\n" + b"long" * 100 + b"\n\xff\xfe\n"
    lines = last_lines(data)
    assert len(lines) == 5
    assert all(line.isprintable() and len(line) <= 201 for line in lines)
    assert lines[-3].endswith("[31mred\N{REPLACEMENT CHARACTER}")


def test_known_matrices_tell_layouts_apart() -> None:
    a, b = npu_child.known_matrices()
    k, n = npu_child.K, npu_child.N
    assert len({b[row * n : (row + 1) * n] for row in range(k)}) == k
    assert len({bytes(b[row * n + column] for row in range(k)) for column in range(n)}) == n
    native = npu_child.native_order(b)
    assert sorted(native) == sorted(b)
    assert native != b
    # Element (k=33, n=40) of B lies in block N 1, block K 1, column 8, row 1.
    assert native[((1 * 2 + 1) * 32 + 8) * 32 + 1] == b[33 * n + 40]
    expected = npu_child.product(a, b)
    for other in (native, bytes(b[column * n + row] for row in range(n) for column in range(k)), b[::-1]):
        assert sum(x != y for x, y in zip(npu_child.product(a, other), expected, strict=True)) > 200


def skipped(system: SystemView, library: RknnLibrary | None, *, usable: bool = True, held: bool = False) -> str:
    def never(_library: str, _environ: Mapping[str, str], _locks: object, _kills: object) -> SelfTest:
        raise AssertionError("a child was started")

    (line,) = selftest_findings(system, {}, library, str, never, usable=usable, held=held)
    assert line.status is Status.SKIP
    return line.slug


def test_no_child_without_device_or_runtime(tmp_path: Path, library: Path) -> None:
    found = read_library(SystemView(), str(library))
    assert skipped(SystemView(), found, usable=False) == "selftest-no-npu"
    assert skipped(SystemView(), None) == "selftest-no-runtime"
    assert skipped(SystemView(root=tmp_path), found) == "selftest-no-runtime"
    assert skipped(SystemView(), found, held=True) == "selftest-held"
