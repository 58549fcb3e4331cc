"""A stage that runs again for nothing, is not run although something changed, or leaves half a result behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bundle.errors import BundleError
from bundle.sources import load_sources
from bundle.stages import ENVIRONMENT, Stage, plan, program_digest
from bundle.store import KEPT
from bundle.workspace import Workspace
from launcher.errors import Cancelled, NetworkError
from tests.support.toy_stages import runner, shell, toy

ROOT = Path(__file__).resolve().parents[2]


def text_of(store: Path, *stages: Stage) -> str:
    return (runner(store).build(stages)[-1].folder / "text").read_text()


def cached(store: Path, *stages: Stage) -> list[bool]:
    return [outcome.cached for outcome in runner(store).build(stages)]


def entries(store: Path) -> list[str]:
    return sorted(path.name for path in store.glob("toy-*"))


def test_only_what_changed_and_what_follows_from_it_runs_again(tmp_path: Path) -> None:
    def chain(first: str, second: str) -> Stage:
        base, side = toy("base", value=first), toy("side", value="s")
        return toy("top", value=second, needs=(toy("middle", value="m", needs=(base,)), side))

    assert cached(tmp_path, chain("1", "1")) == [False] * 4
    assert cached(tmp_path, chain("1", "1")) == [True] * 4
    assert [step.stage.name for step in plan([chain("1", "1")])] == ["base", "middle", "side", "top"]
    assert cached(tmp_path, chain("1", "2")) == [True, True, True, False]
    assert cached(tmp_path, chain("2", "2")) == [False, False, True, False]
    assert text_of(tmp_path, chain("2", "2")) == "2ms2"
    assert cached(tmp_path, chain("1", "1")) == [True] * 4


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ('"""New words."""\nX = 1\n\n\ndef f(a: int) -> int:\n    # why\n    return a + X\n', True),
        ('"""Old words."""\nX = 2\n\n\ndef f(a: int) -> int:\n    return a + X\n', False),
        ('"""Old words."""\nX = 1\n\n\ndef f(a: int) -> int:\n    return a - X\n', False),
    ],
)
def test_a_key_follows_the_program_and_not_its_comments(tmp_path: Path, changed: str, same: bool) -> None:
    old, new = tmp_path / "old.py", tmp_path / "new.py"
    old.write_text('"""Old words."""\nX = 1\n\n\ndef f(a: int) -> int:\n    return a + X\n')
    new.write_text(changed)
    assert (program_digest(old) == program_digest(new)) is same


def test_two_different_stages_of_one_name_are_refused() -> None:
    with pytest.raises(BundleError, match="two different stages are called toy") as caught:
        plan([toy(value="1"), toy(value="2")])
    assert caught.value.slug == "stage-twice"


def test_a_failed_stage_shows_the_end_of_its_log_and_leaves_no_result(tmp_path: Path) -> None:
    store, diary = tmp_path / "store", tmp_path / "diary"
    broken = shell("for n in $(seq 40); do echo line $n; done; touch text; exit 3", diary)
    with pytest.raises(BundleError) as caught:
        runner(store).build([broken])
    message = caught.value.message
    assert "toy: shell ended with 3" in message
    assert "line 16\n" in message
    assert "line 15\n" not in message
    assert "line 40\n" in message
    log = Path(message.rpartition("The whole log: ")[2])
    assert "line 1\n" in log.read_text()
    assert entries(store) == []
    assert list((store / "partial").iterdir()) == []
    with pytest.raises(BundleError):
        runner(store).build([broken])
    assert diary.read_text() == "ran\nran\n"


def test_a_stage_without_its_result_fails(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="without its result text"):
        runner(tmp_path).build([toy(run=lambda workspace: None)])
    assert entries(tmp_path) == []


def test_a_result_that_names_a_folder_of_this_machine_fails(tmp_path: Path) -> None:
    def run(workspace: Workspace) -> None:
        (workspace.out / "text").write_bytes(b"\x7fELF\0" + os.fsencode(workspace.work) + b"\0")

    with pytest.raises(BundleError, match=r"text holds .*, a path of this machine"):
        runner(tmp_path).build([toy(run=run)])
    assert entries(tmp_path) == []


def test_a_stop_stays_a_stop(tmp_path: Path) -> None:
    def run(workspace: Workspace) -> None:
        raise Cancelled("terminated", "stopped")

    with pytest.raises(Cancelled):
        runner(tmp_path).build([toy(run=run)])
    assert list((tmp_path / "partial").iterdir()) == []


def test_commands_see_nothing_of_the_callers_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PYTHONPATH", "PYTHONHOME", "CC", "CFLAGS", "LDFLAGS", "LD_LIBRARY_PATH", "MAKEFLAGS", "CDPATH"):
        monkeypatch.setenv(name, "/hostile")
    monkeypatch.setenv("PATH", f"/hostile:{os.environ['PATH']}")
    seen = tmp_path / "seen"
    runner(tmp_path / "store").build([shell(f"env > {seen}; touch text", tmp_path / "diary")])
    lines = seen.read_text().splitlines()
    # The shell sets the last two itself.
    assert {line.partition("=")[0] for line in lines} - {"PWD", "_"} == {*ENVIRONMENT, "HOME", "PATH", "TMPDIR"}
    assert {f"{name}={value}" for name, value in ENVIRONMENT.items()} <= set(lines)
    assert "hostile" not in seen.read_text()


def test_what_a_killed_build_of_another_state_left_goes_with_the_next(tmp_path: Path) -> None:
    mine, other = tmp_path / "partial" / f"toy-{'0' * 16}", tmp_path / "partial" / f"other-{'0' * 16}"
    for left in (mine, other):
        (left / "work").mkdir(parents=True)
    runner(tmp_path).build([toy()])
    assert list((tmp_path / "partial").iterdir()) == [other]


def test_a_stage_reaches_only_what_it_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="toy needs 0 stages called base"):
        runner(tmp_path).build([toy("base"), toy(run=lambda workspace: print(workspace.need("base")))])


def test_old_results_go_and_used_ones_stay(tmp_path: Path) -> None:
    for number in range(KEPT):
        runner(tmp_path).build([toy(value=str(number))])
    first = plan([toy(value="0")])[0].entry
    assert cached(tmp_path, toy(value="0")) == [True]
    runner(tmp_path).build([toy(value="new")])
    assert len(entries(tmp_path)) == KEPT
    assert first in entries(tmp_path)
    assert plan([toy(value="1")])[0].entry not in entries(tmp_path)
    assert len(list((tmp_path / "logs").iterdir())) == KEPT


def test_the_plan_says_what_is_cached_and_what_changed(tmp_path: Path) -> None:
    def explained(value: str) -> str:
        return runner(tmp_path).explain([toy("top", value=value, needs=(toy("base", value=value),))])

    assert explained("1").count("never made here") == 2
    runner(tmp_path).build([toy("top", value="1", needs=(toy("base", value="1"),))])
    assert explained("1").count("cached") == 2
    lines = explained("2").splitlines()
    assert lines[0].endswith("changed: input value")
    assert lines[1].endswith("changed: input value, stage base")


def test_unreachable_sources_stop_the_build_before_any_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(*arguments: object) -> tuple[Path, ...]:
        raise NetworkError("source-unreachable", "no network")

    ran: list[str] = []
    monkeypatch.setattr("bundle.runner.fetch", unreachable)
    early = toy("early", run=lambda workspace: ran.append("early"))
    late = Stage(
        name="late",
        target=None,
        run=lambda workspace: ran.append("late"),
        results=(),
        inputs={},
        modules=(),
        sources=(load_sources()["zlib"],),
        needs=(early,),
    )
    with pytest.raises(NetworkError):
        runner(tmp_path).build([late])
    assert ran == []


def start(store: Path, diary: Path, command: str) -> subprocess.Popen[str]:
    words = [sys.executable, "-m", "tests.support.toy_stages", str(store), str(diary), command]
    return subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True)


def wait_for(path: Path) -> None:
    end = time.monotonic() + 60
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)


def test_a_killed_build_leaves_nothing_that_is_taken_for_a_result(tmp_path: Path) -> None:
    store, diary, reached = tmp_path / "store", tmp_path / "diary", tmp_path / "reached"
    program = f"import time; time.sleep(5); open({str(diary)!r}, 'a').write('survived')"
    killed = start(store, diary, f'echo half > text; touch {reached}; exec {sys.executable} -c "{program}"')
    wait_for(reached)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    assert entries(store) == []
    folder = runner(store).build([shell(f"test -e text || echo whole > text; touch {reached}", diary)])[-1].folder
    assert (folder / "text").read_text() == "whole\n"
    assert diary.read_text() == "ran\nran\n"
    assert list((store / "partial").iterdir()) == []


def test_a_build_waits_for_the_processes_of_a_killed_one(tmp_path: Path) -> None:
    store, diary, reached, waited = (tmp_path / name for name in ("store", "diary", "reached", "waited"))
    left = f"touch {reached}; until test -e {waited}; do sleep 0.05; done; echo gone >> {diary}"
    killed = start(store, diary, f"({left}) & wait")
    wait_for(reached)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()

    class Said(list[str]):
        def append(self, line: str) -> None:
            super().append(line)
            if "waiting for another build" in line:
                waited.touch()

    said = Said()
    try:
        runner(store, said).build([shell("echo whole > text", diary)])
    finally:
        waited.touch()  # or it would run for ever
    assert diary.read_text() == "ran\ngone\nran\n"
    assert any("waiting for another build" in line for line in said)


def test_two_builds_at_once_make_a_stage_once(tmp_path: Path) -> None:
    store, diary = tmp_path / "store", tmp_path / "diary"
    both = [start(store, diary, "sleep 0.5; echo whole > text") for _ in range(2)]
    folders = {process.communicate()[0].strip() for process in both}
    assert [process.returncode for process in both] == [0, 0]
    assert len(folders) == 1
    assert (Path(folders.pop()) / "text").read_text() == "whole\n"
    assert diary.read_text() == "ran\n"
