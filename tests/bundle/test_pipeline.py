"""Stages in the wrong order, a build Python for the wrong machine, a command line that builds when it is only asked."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bundle import cli as command_line
from bundle import pipeline, zig
from bundle.errors import BundleError
from bundle.stages import plan
from bundle.workspace import Workspace
from engine.errors import BuildError
from tests.support.toy_stages import runner, toy

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("host", ["x86_64", "aarch64"])
@pytest.mark.parametrize("target", ["x86_64", "aarch64"])
def test_only_a_foreign_python_needs_a_build_python(host: str, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zig, "host_target", lambda: host)
    stages = pipeline.stages(target)
    assert set(stages) == set(command_line.STAGES)
    assert {stages[name].target for name in ("zlib", "libffi", "openssl", "cpython", "python_runtime")} == {target}
    labels = {need.label for need in stages["cpython"].needs}
    foreign = {"cpython-x86_64", "cpython-aarch64"} & labels
    assert foreign == (set() if host == target else {f"cpython-{host}"})


def test_every_stage_comes_after_what_it_needs() -> None:
    other = {"x86_64": "aarch64", "aarch64": "x86_64"}[zig.host_target()]
    seen: set[str] = set()
    for step in plan(pipeline.stages(other).values()):
        assert {need.stage.label for need in step.needs} <= seen
        seen.add(step.stage.label)


def test_targets_share_no_result() -> None:
    keys = [step.key for target in zig.TARGETS for step in plan(pipeline.stages(target).values())]
    own = [step.key for step in plan(pipeline.stages(zig.host_target()).values())]
    shared = {key for key in keys if keys.count(key) > 1}
    assert shared <= set(own)


def test_the_plan_is_shown_and_nothing_is_built(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "bundle", "--explain"],
        cwd=ROOT,
        env={**os.environ, "MINDNANO_CACHE": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    steps = plan([pipeline.stages(zig.host_target())["smoke"]])
    assert [line.split()[0] for line in lines] == [step.entry for step in steps]
    assert all(line.endswith("never made here") for line in lines)
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("words", [["--until", "nothing"], ["--jobs", "0"], ["--jobs", "x"], ["--target", "riscv64"]])
def test_a_wrong_word_is_a_usage_error(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command_line.main(words)
    assert caught.value.code == 2
    assert "error:" in capsys.readouterr().err


def test_an_interrupted_build_ends_with_the_signals_code(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib\n"
        "from bundle import cli, pipeline\n"
        "from tests.support.toy_stages import shell\n"
        "diary = pathlib.Path(sys.argv[1])\n"
        "pipeline.stages = lambda *_: {'zlib': shell(f'touch {diary}.reached; sleep 300', diary)}\n"
        "sys.exit(cli.main(['--until', 'zlib', '--jobs', '1']))\n"
    )
    environment = {**os.environ, "MINDNANO_CACHE": str(tmp_path / "cache")}
    words = [sys.executable, "-c", program, str(tmp_path / "diary")]
    process = subprocess.Popen(words, cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    while not (tmp_path / "diary.reached").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate()
    assert process.returncode == 143
    assert "stopped by SIGTERM" in errors
    assert list((tmp_path / "cache" / "bundle" / "partial").iterdir()) == []


def test_another_zig_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zig, "find_zig", lambda: (Path("/zig"), "0.15.2"))
    with pytest.raises(BundleError, match=r"0\.15\.2 is installed.*0\.17\.1") as caught:
        zig.zig_program()
    assert "ziglang==0.17.1" in caught.value.hint


def test_a_missing_zig_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> tuple[Path, str]:
        raise BuildError("the zig compiler is not installed")

    monkeypatch.setattr(zig, "find_zig", missing)
    with pytest.raises(BundleError, match="not installed"):
        zig.zig_program()


@pytest.mark.parametrize("target", ["x86_64", "aarch64"])
def test_compiled_files_name_no_folder_and_no_newer_processor(target: str, tmp_path: Path) -> None:
    source = "#include <assert.h>\nconst char *where(int n) { assert(n); return __FILE__; }\n"

    def run(workspace: Workspace) -> None:
        zig.install(workspace, target)
        file = workspace.work / "where.c"
        file.write_text(source)
        workspace.command([zig.CC, "-g", "-c", file, "-o", workspace.out / "where.o"])
        workspace.command([zig.AR, "rc", workspace.out / "text", workspace.out / "where.o"])

    folder = runner(tmp_path).build([toy(run=run)])[-1].folder
    content = (folder / "where.o").read_bytes()
    assert b"/mindnano/work/where.c" in content
    assert int.from_bytes(content[18:20], "little") == {"x86_64": 62, "aarch64": 183}[target]
