"""A benchmark that measures cached prompts or other lengths, or leaves a server, locked clocks or no results.

The server is the real one with the built-in model, or a program that misbehaves in its place.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import EngineCrash, InternalError, ResourceError, UsageError
from launcher.system import SystemView
from release import cli
from release.bench import machine as bench_machine
from release.bench import served as module
from release.bench import server as server_module
from release.bench.machine import Resident, Sampler, describe_machine, read_sensors
from release.bench.report import Row, ServedReport
from release.bench.served import INPUTS, ServedOptions, bench_served
from release.bench.server import BenchServer, Completion
from tests.support.demo import DEMO, ROOT, require_demo
from tests.support.pinning import make_clocks, read_clocks
from tests.support.server_process import eventually

_RUN = Completion(
    prompt_tokens=8,
    cached_tokens=0,
    generated_tokens=4,
    first_seconds=1.0,
    prefill_rate=10.0,
    decode_rate=5.0,
    client_first_seconds=1.5,
    client_seconds=2.0,
)


@pytest.fixture
def demo(tmp_path: Path) -> Path:
    """The built-in model under a name of its own, which tells this test's processes from others."""
    path = tmp_path / "demo.l3r"
    path.symlink_to(require_demo())
    return path


def _children(word: str) -> list[int]:
    """Processes with this word on their command line."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if word.encode() in words:
            found.append(int(path.parent.name))
    return [number for number in found if number != os.getpid()]


def _program(folder: Path, text: str) -> Path:
    """A program that stands for mindnano-infer."""
    path = folder / "program"
    path.write_text(f"#!{sys.executable}\nimport os, runpy, sys\nsys.path.insert(0, {str(ROOT)!r})\n{text}\n")
    path.chmod(0o755)
    return path


def test_the_table_is_measured_and_written(demo: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = tmp_path / "results" / "board.1"
    words = ["bench", str(demo), "--inputs", "24,8", "--output-tokens", "4", "--repeat", "2", "--output", str(name)]
    assert cli.main([*words, "--json", "--threads", "1", "--server-options", "--session-cache-mib 0"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert json.loads((tmp_path / "results" / "board.1.json").read_text()) == document
    assert (document["schema"], document["version"], document["complete"]) == ("mindnano.bench", 1, True)
    assert [row["input_tokens"] for row in document["rows"]] == [8, 24]
    for row in document["rows"]:
        assert [run["cached_tokens"] for run in row["runs"]] == [0, 0]
        assert [run["prompt_tokens"] for run in row["runs"]] == [row["input_tokens"]] * 2
        assert row["output_tokens"] == 4
        for figure in ("ttft_seconds", "prefill_tokens_per_second", "decode_tokens_per_second", "peak_rss_bytes"):
            assert row[figure] > 0, figure
    assert document["package"]["bytes"] == demo.stat().st_size
    assert len(document["package"]["sha256"]) == 64
    assert document["program"]["version"]["program"] == "mindnano-infer"
    assert document["server"]["threads"] == 1
    assert document["server"]["context"] >= 28
    assert document["program"]["options"][-2:] == ["--session-cache-mib", "0"]
    assert document["machine"]["memory"]["MemTotal"] > 0
    assert document["load_before"]
    assert document["load_after"]
    table = (tmp_path / "results" / "board.1.md").read_text().splitlines()
    assert table[0] == "| input | TTFT | prefill tok/s | decode tok/s | peak RSS |"
    assert [line.split()[1] for line in table[2:4]] == ["8", "24"]
    assert _children(str(demo)) == []


def test_results_are_never_replaced(demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "BenchServer", None)  # nothing may be started
    (tmp_path / "x.md").write_text("earlier")
    with pytest.raises(UsageError, match=r"x\.md exists"):
        bench_served(ServedOptions(package=demo, output=tmp_path / "x"))
    assert (tmp_path / "x.md").read_text() == "earlier"
    assert not (tmp_path / "x.json").exists()


def test_what_does_not_fit_is_left_out_or_refused() -> None:
    options = ServedOptions(package=DEMO)
    assert module._fitting(options, 4096 + 63) == (INPUTS[:4], INPUTS[4:])
    assert module._fitting(options, 4096 + 64) == (INPUTS[:5], INPUTS[5:])
    with pytest.raises(UsageError, match="4096 tokens in and 64 out"):
        module._fitting(replace(options, inputs=(128, 4096)), 4096)
    with pytest.raises(UsageError):
        module._fitting(options, 100)
    with pytest.raises(UsageError):
        module._fitting(replace(options, repeat=0), 4096)


def test_no_two_prompts_begin_alike() -> None:
    prompts = module._Prompts(50)
    firsts = [prompts.next(3)[0] for _ in range(50)]
    assert sorted(firsts) == list(range(50))


@pytest.mark.parametrize("change", [{"cached_tokens": 1}, {"prompt_tokens": 7}, {"generated_tokens": 3}])
def test_a_reply_that_reused_or_shortened_anything_is_not_measured(change: dict[str, int]) -> None:
    class Server:
        def complete(self, *_: Any, **__: Any) -> Completion:
            return replace(_RUN, **change)

        def forget(self, _session: str) -> None: ...

    with pytest.raises(InternalError, match="cannot be measured"):
        module._run(Server(), module._Prompts(20), 8, 4)  # type: ignore[arg-type]


def test_medians_not_means() -> None:
    runs = tuple(replace(_RUN, first_seconds=value, decode_rate=10 * value) for value in (1.0, 2.0, 9.0))
    row = Row(
        input_tokens=8, runs=runs, resident=Resident(peak=3 << 20, anonymous=1, files=2), peak_reset=False, sensors={}
    )
    assert (row.document()["ttft_seconds"], row.document()["decode_tokens_per_second"]) == (2.0, 20.0)
    assert row.cells() == ("8", "2.000 s", "10.0", "20.00", "3 MiB *")


def test_a_server_that_cannot_start_gives_its_own_code_and_words(demo: Path, tmp_path: Path) -> None:
    program = _program(tmp_path, "print('no room for this', file=sys.stderr); sys.exit(5)")
    with pytest.raises(ResourceError, match="ended with 5 before it was ready") as caught:
        bench_served(ServedOptions(package=demo, inputs=(8,), program=program, output=tmp_path / "x"))
    assert "no room for this" in caught.value.hint
    assert not (tmp_path / "x.json").exists()  # nothing was measured


def test_a_program_that_is_none_is_told(demo: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no program")
    with pytest.raises(UsageError, match="cannot start"):
        bench_served(ServedOptions(package=demo, inputs=(8,), program=tmp_path / "text"))


@pytest.mark.parametrize("word", ["--port", "--port=1", "--host", "--model", "--tls-cert", "--api-key", "--demo"])
def test_what_the_benchmark_decides_is_no_option_of_the_server(demo: Path, word: str) -> None:
    """It would wait for ever for a server that listens elsewhere, or measure another model than it says."""
    with pytest.raises(UsageError, match="decides itself") as caught:
        bench_served(ServedOptions(package=demo, inputs=(8,), server_options=("--threads", "1", word, "1")))
    assert word.partition("=")[0] in caught.value.message


def test_a_server_that_never_is_ready_is_not_waited_for_for_ever(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = _program(
        tmp_path,
        "import time; print('still reading \x1b[2J', flush=True); time.sleep(0 if '--json' in sys.argv else 600)",
    )
    monkeypatch.setattr(server_module, "_READY_SECONDS", 1.0)
    with pytest.raises(InternalError, match="not ready after 1 s") as caught:
        bench_served(ServedOptions(package=demo, inputs=(8,), program=program))
    assert "still reading \\x1b[2J" in caught.value.message
    assert _children(str(program)) == []


def test_a_missing_program_is_a_wrong_word(demo: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no file") as caught:
        bench_served(ServedOptions(package=demo, inputs=(8,), program=tmp_path / "none"))
    assert caught.value.exit_code == 2


def test_results_that_cannot_be_written_are_shown(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(_report: object, _files: object) -> None:
        raise ResourceError("output-unwritable", "cannot write x.json: No space left on device")

    monkeypatch.setattr(module, "write_results", full)
    monkeypatch.setattr(module, "_WARM_TOKENS", 8)
    options = ServedOptions(package=demo, inputs=(8,), output_tokens=3, repeat=1, output=tmp_path / "x")
    with pytest.raises(ResourceError, match="No space left"):
        bench_served(options)
    assert "| 8 | " in capsys.readouterr().err


def test_a_crash_in_the_middle_keeps_what_was_measured_and_unlocks(
    demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    board = make_clocks(tmp_path / "board")
    before = read_clocks(board)
    real = BenchServer.complete

    def complete(server: BenchServer, ids: Any, tokens: int, *, session: str) -> Completion:
        if len(ids) == 16:
            assert read_clocks(board) != before
            os.kill(server.process_id, signal.SIGKILL)
        return real(server, ids, tokens, session=session)

    monkeypatch.setattr(BenchServer, "complete", complete)
    monkeypatch.setattr(module, "_WARM_TOKENS", 8)
    options = ServedOptions(
        package=demo,
        inputs=(8, 16),
        output_tokens=3,
        repeat=1,
        output=tmp_path / "x",
        pin_clocks=True,
        root=board,
    )
    with pytest.raises(EngineCrash, match="killed by signal 9"):
        bench_served(options)
    assert read_clocks(board) == before
    document = json.loads((tmp_path / "x.json").read_text())
    assert document["complete"] is False
    assert "signal 9" in document["ended"]
    assert [row["input_tokens"] for row in document["rows"]] == [8]
    assert len(document["clocks"]["pinned"]) == 11
    assert document["machine"]["cpu_policies"]["policy4"]["governor"] == "performance"
    assert "**Not complete:**" in (tmp_path / "x.md").read_text()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_ends_the_server_and_unlocks(demo: Path, tmp_path: Path, number: int, code: int) -> None:
    board = make_clocks(tmp_path / "board")
    before = read_clocks(board)
    script = (
        "import sys\nfrom pathlib import Path\n"
        "from release import cli\nfrom release.bench import served as bench_served\n"
        "real = bench_served.ServedOptions\n"
        f"bench_served.ServedOptions = lambda **values: real(**values | {{'root': Path({str(board)!r})}})\n"
        "sys.exit(cli.main(sys.argv[1:]))\n"
    )
    words = ["bench", str(demo), "--inputs", "512", "--repeat", "100000", "--pin-clocks"]
    with subprocess.Popen([sys.executable, "-c", script, *words], cwd=ROOT, stderr=subprocess.DEVNULL) as process:
        eventually(lambda: read_clocks(board) != before, "locked", 60)
        # Two: the benchmark itself and the server, which is about to load.
        eventually(lambda: len(_children(str(demo))) >= 2, "the server's process", 60)
        process.send_signal(number)
        assert process.wait(60) == code
    assert read_clocks(board) == before
    assert _children(str(demo)) == []


@pytest.mark.parametrize("words", [["--prompt", "8"], ["--engine", "--inputs", "8"], ["--engine", "--pin-clocks"]])
def test_options_of_the_other_kind_are_refused(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["bench", str(tmp_path / "x.l3r"), *words]) == 2
    assert "--engine" in capsys.readouterr().err


def test_the_environment_of_the_server_has_no_options(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MINDNANO_KV_CACHE", "int8")
    from release.bench.server import child_environment

    assert not [name for name in child_environment(tmp_path) if name.startswith("MINDNANO_")]


def test_a_board_is_described_and_sampled(tmp_path: Path) -> None:
    board = make_clocks(tmp_path)
    tree = board / "proc/device-tree"
    tree.mkdir(parents=True)
    (tree / "model").write_bytes(b"FriendlyElec NanoPi M6\0")
    (tree / "compatible").write_bytes(b"friendlyelec,nanopi-m6\0rockchip,rk3588\0")
    zone = board / "sys/class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    (zone / "type").write_text("soc-thermal\n")
    (zone / "temp").write_text("48076\n")
    (board / "proc/cpuinfo").write_text("CPU implementer : 0x41\nCPU part : 0xd05\n\nCPU part : 0xd0b\n")
    system = SystemView(root=board)
    machine = describe_machine(system)
    assert (machine["board"], machine["soc"]) == ("FriendlyElec NanoPi M6", "RK3588")
    assert machine["cpu"] == ["implementer 0x41 part 0xd05", "implementer 0x41 part 0xd0b"]
    assert machine["cpu_policies"]["policy0"]["governor"] == "ondemand"
    assert sorted(machine["devices"]) == ["dmc", "fdab0000.npu"]
    assert read_sensors(system) == {
        "soc-thermal_celsius": 48.076,
        "policy0_mhz": 408.0,
        "policy4_mhz": 408.0,
        "fdab0000.npu_mhz": 300.0,
        "dmc_mhz": 528.0,
    }
    sampler = Sampler(system)
    sampler._read()
    (zone / "temp").write_text("51000\n")
    assert sampler.take()["soc-thermal_celsius"] == (48.076, 51.0)
    assert sampler.take()["soc-thermal_celsius"] == (51.0, 51.0)


GROWS = """
import sys
for line in sys.stdin:
    data = bytearray(int(line) << 20)
    for page in range(0, len(data), 4096):
        data[page] = 1
    print(len(data), flush=True)
"""


def test_the_peak_is_of_one_row_where_it_may_be_reset() -> None:
    """Of another process, as it is measured: this one's memory moves with the tests that ran before."""
    with subprocess.Popen(
        [sys.executable, "-c", GROWS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None

        def peak_with(mebibytes: int) -> int:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{mebibytes}\n")
            process.stdin.flush()
            process.stdout.readline()
            found = bench_machine.resident(process.pid)
            assert found is not None
            return found.peak

        small = peak_with(1)
        large = peak_with(96)
        peak_with(1)
        permitted = bench_machine.reset_peak(process.pid)
        again = peak_with(1)
        process.stdin.close()
    if not permitted:
        pytest.skip("clear_refs may not be written here")
    assert large - small > 48 << 20
    assert again < large - (48 << 20)


def test_a_report_without_a_machine_that_tells_is_still_a_table() -> None:
    machine = describe_machine(SystemView(root=Path("/nowhere")))
    facts = {
        "started": "now",
        "machine": machine,
        "package": {"file": "x", "bytes": 1, "sha256": "0"},
        "program": {"name": "p", "version": None, "options": []},
        "clocks": {"pinned": []},
        "load_before": None,
    }
    report = ServedReport(output_tokens=4, repeat=1, facts=facts, left_out=(16384,))
    report.rows.append(Row(input_tokens=8, runs=(_RUN,), resident=None, peak_reset=False, sensors={}))
    assert "| 8 | 1.000 s | 10.0 | 5.00 | - * |" in report.to_markdown()
    assert "16384" in report.to_markdown()
    assert "4 tokens out, one repeat." in report.to_markdown()
