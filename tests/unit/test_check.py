"""A check that calls a machine ready which is not, hides what it saw, or falls over what it reads.

Every board of tests/fixtures/boards goes through the whole check, with the real engine.
"""

from __future__ import annotations

import json
import os
import platform
import random
import re
from collections.abc import Mapping
from pathlib import Path

import jsonschema
import pytest

from engine.errors import BuildError
from launcher.check import examine, run_check
from launcher.checks.report import Finding, Group, Report, Status
from launcher.engine_types import Dtype
from launcher.messages import Catalogue, Language
from launcher.npu.selftest import SelfTest
from launcher.options.parse import Options, parse
from launcher.payload.carried import RUNTIME_VARIABLE
from launcher.system import SystemView
from tests.fixtures.boards.boards import BOARDS
from tests.fixtures.boards.builder import Board, FakeDevices
from tests.support.availability import unavailable
from tests.support.demo import require_demo
from tests.support.full_size import CONFIG
from tests.support.packages import uniform, write_sparse_package
from tests.support.rknn_stand_in import build_stand_in

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = json.loads((ROOT / "launcher/schemas/check.json").read_text(encoding="utf-8"))
ENVIRON = {"HOME": "/home/pi", "USER": "pi"}
TEXTS = [Catalogue(language) for language in Language]
_MENDABLE = {Group.RUNTIME, Group.MEMORY, Group.LIMITS, Group.STORAGE, Group.NETWORK}
_WEIGHT = {Status.SKIP: 0, Status.OK: 1, Status.WARN: 2, Status.FAIL: 3}

# What a good board with no model shows. Each board below is one thing away from it.
GOOD = {
    "board": "ok",
    "cpu": "ok",
    "npu": "ok",
    "runtime": "ok",
    "libc": "ok",
    "memory": "ok",
    "limits": "ok",
    "storage": "ok",
    "package": "skip",
    "network": "ok",
}
# board -> (what differs, exit code with --strict); without it all of them can run on the CPU.
GOLDEN: Mapping[str, tuple[Mapping[str, str], int]] = {
    "nanopi_m6": ({}, 0),
    "rock_5b": ({}, 0),
    "orange_pi_5_plus_5_10": ({"npu": "warn"}, 3),
    "orange_pi_5_plus_6_1": ({"npu": "warn"}, 3),
    "armbian_rocket": ({"npu": "fail"}, 3),
    "out_of_tree_module": ({"npu": "warn"}, 3),
    "rknpu_symlink": ({"npu": "warn"}, 3),
    "misc_device_only": ({"npu": "fail"}, 3),
    "driver_0_4_0": ({"npu": "fail"}, 3),
    "driver_0_8_2": ({"npu": "warn"}, 3),
    "driver_0_9_3": ({"npu": "warn"}, 3),
    "driver_0_9_8": ({}, 0),
    "container_masked_device_tree": ({"board": "warn"}, 3),
    "container_device_refused": ({"board": "warn", "npu": "fail"}, 3),
    "container_without_sysfs": ({"board": "warn", "npu": "skip"}, 3),
    "kubernetes_without_device": ({"board": "warn", "npu": "fail"}, 3),
    "user_outside_groups": ({"npu": "fail"}, 3),
    "group_added_not_logged_in": ({"npu": "fail"}, 3),
    "user_in_one_group": ({"npu": "warn"}, 3),
    "nodes_for_root_only": ({"npu": "fail"}, 3),
    "rk3582": ({"board": "warn", "npu": "warn"}, 3),
    "rk3566_board": ({"npu": "fail"}, 3),
    "raspberry_pi_5": ({"npu": "skip"}, 0),
    "pc": ({"npu": "skip"}, 0),
    "musl": ({"libc": "fail"}, 3),
    "four_gib_board": ({"memory": "warn"}, 5),
    "cgroup_limited": ({"memory": "warn"}, 5),
    "noexec_tmp": ({"storage": "warn"}, 5),
    "ddr_528": ({"board": "warn"}, 3),
    "no_driver_bound": ({"npu": "fail"}, 3),
    "npu_disabled": ({"npu": "fail"}, 3),
    "no_npu_in_device_tree": ({"npu": "fail"}, 3),
    "npu_held_by_other_process": ({"npu": "warn"}, 3),
    "no_iommu": ({"npu": "warn", "memory": "warn"}, 3),
    "npu_does_not_answer": ({"npu": "fail"}, 3),
    "hot_and_slow": ({"board": "warn", "cpu": "warn", "npu": "warn"}, 3),
}


@pytest.fixture(autouse=True)
def engine() -> None:
    require_demo()


@pytest.fixture(scope="module")
def big_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a package with the size of the released one; its weights are a hole in the file."""
    folder = tmp_path_factory.mktemp("big")
    return write_sparse_package(folder / "big.l3r", CONFIG, uniform(Dtype.Q4X8), mtp=False)


def options(*words: str) -> Options:
    return parse(words or ["--check"], ENVIRON, [])


def no_test(_library: str, _environ: Mapping[str, str], _locks: object, _kills: object) -> SelfTest:
    raise AssertionError("the self test was started")


def check(system: SystemView, *words: str) -> Report:
    return examine(options(*words), ENVIRON, system, selftest=no_test)


def worst(report: Report) -> dict[str, str]:
    """The gravest status of each group."""
    found: dict[str, Status] = {}
    for line in report.findings:
        found[line.group.value] = max(found.get(line.group.value, Status.SKIP), line.status, key=lambda s: _WEIGHT[s])
    return {group: status.value for group, status in found.items()}


def valid(report: Report) -> None:
    """The report is a document of the schema, and every line has its text in both languages."""
    jsonschema.validate(json.loads(json.dumps(report.document())), SCHEMA)
    groups = [line.group for line in report.findings]
    assert groups == sorted(groups, key=list(Group).index)
    for texts in TEXTS:
        shown = report.text(texts)
        assert "{" not in shown
        assert shown.count("\n") >= len(report.findings)
    for line in report.findings:
        # Of a board, a processor or an NPU some facts are as they are.
        if line.status in {Status.WARN, Status.FAIL} and line.group in _MENDABLE:
            assert line.next_step(TEXTS[0]), f"{line.slug} says nothing about what to do"


def test_every_board_has_its_row() -> None:
    assert set(GOLDEN) == set(BOARDS)


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_board(tmp_path: Path, name: str) -> None:
    system = BOARDS[name]().build(tmp_path)
    report = check(system)
    different, strict_code = GOLDEN[name]
    assert worst(report) == {**GOOD, **different}
    assert (report.exit_code, report.ready, report.backend) == (0, True, "cpu")
    valid(report)
    strict = check(system, "--check", "--strict")
    assert (strict.exit_code, strict.strict, strict.ready) == (strict_code, True, strict_code == 0)
    valid(strict)
    assert isinstance(system.devices, FakeDevices)
    assert system.devices.open_handles == 0


@pytest.mark.parametrize("name", sorted(BOARDS))
def test_npu_that_is_required_blocks_every_board(tmp_path: Path, name: str) -> None:
    report = check(BOARDS[name]().build(tmp_path), "--check", "--mla-backend", "npu")
    assert (report.exit_code, report.ready) == (3, False)
    assert any(line.slug == "backend-npu" and line.blocking for line in report.findings)
    valid(report)


def test_usable_npu_is_said_not_to_be_used(tmp_path: Path) -> None:
    text = check(BOARDS["nanopi_m6"]().build(tmp_path)).text(TEXTS[0])
    assert "computes on the CPU, although the NPU could be used" in text
    assert text.endswith("ready: yes\nlargest context that fits: unknown\nbackend: cpu")


def test_pc_has_no_npu_and_is_ready(tmp_path: Path) -> None:
    text = check(BOARDS["pc"]().build(tmp_path), "--check", "--demo").text(TEXTS[0])
    assert "no NPU: CPU backend" in text
    assert "ready: yes\nlargest context that fits: 8K\nbackend: cpu" in text


def test_four_gib_board_cannot_run_the_big_model(tmp_path: Path, big_model: Path) -> None:
    report = check(BOARDS["four_gib_board"]().build(tmp_path), "--check", "--model", str(big_model))
    assert (report.exit_code, report.largest_context) == (5, None)
    line = next(line for line in report.findings if line.status is Status.FAIL)
    assert line.slug == "memory-machine"
    assert re.search(r"3\.\d GiB available of 3\.\d GiB; the model needs 4\.\d GiB", line.text(TEXTS[0]))
    valid(report)


def test_big_board_names_the_largest_context(tmp_path: Path, big_model: Path) -> None:
    report = check(BOARDS["nanopi_m6"]().build(tmp_path), "--check", "--model", str(big_model))
    assert (report.exit_code, report.largest_context) == (0, 262_144)
    domains = next(line for line in report.findings if line.slug == "memory-npu-domains")
    assert domains.facts["used"] == 2
    valid(report)


def test_old_driver_has_one_address_space(tmp_path: Path, big_model: Path) -> None:
    report = check(BOARDS["orange_pi_5_plus_5_10"]().build(tmp_path), "--check", "--model", str(big_model))
    line = next(line for line in report.findings if line.slug == "memory-npu-domain-single")
    assert (line.status, line.blocking, report.exit_code) == (Status.WARN, False, 0)
    assert "0.8.8" in line.text(TEXTS[0])
    valid(report)


def test_limited_group_fails_the_big_model(tmp_path: Path, big_model: Path) -> None:
    report = check(BOARDS["cgroup_limited"]().build(tmp_path), "--check", "--model", str(big_model))
    assert report.exit_code == 5
    assert "mindnano.service" in report.text(TEXTS[0])


def test_missing_package_is_exit_4(tmp_path: Path) -> None:
    report = check(BOARDS["nanopi_m6"]().build(tmp_path), "--check", "--model", "/none/model.l3r")
    assert (report.exit_code, report.largest_context) == (4, None)
    valid(report)


def test_first_failing_class_gives_the_code(tmp_path: Path, big_model: Path) -> None:
    board = BOARDS["four_gib_board"]()
    report = check(board.build(tmp_path), "--check", "--model", str(big_model), "--mla-backend", "npu")
    assert report.exit_code == 3


def test_engine_that_does_not_load_is_exit_9(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINDNANO_ENGINE", str(tmp_path / "none"))
    report = check(BOARDS["nanopi_m6"]().build(tmp_path / "board"), "--check", "--demo")
    assert report.exit_code == 9
    assert "package-unread" in {line.slug for line in report.findings}
    valid(report)


def test_taken_port_is_a_warning(tmp_path: Path) -> None:
    board = BOARDS["nanopi_m6"]()
    board.host.taken[9092] = 98
    system = board.build(tmp_path)
    assert worst(check(system))["network"] == "warn"
    assert check(system).exit_code == 0
    assert check(system, "--check", "--strict").exit_code == 7


def test_assumed_board_is_taken_where_nothing_is_seen(tmp_path: Path) -> None:
    system = BOARDS["container_without_sysfs"]().build(tmp_path)
    report = check(system, "--check", "--assume-board", "rk3588")
    assert "RK3588" in report.text(TEXTS[0])
    valid(report)


def with_runtime(board: Board, library: Path) -> Board:
    """The board with a runtime that its processor, here this machine's, could load, and a place for the lock."""
    board.host.machine = platform.machine()
    return board.file("/opt/librknnrt.so", library.read_bytes()).file("/run/lock/.keep", "")


@pytest.fixture(scope="module")
def runtime(tmp_path_factory: pytest.TempPathFactory) -> Path:
    try:
        return build_stand_in(tmp_path_factory.mktemp("runtime"))
    except BuildError as error:
        unavailable(str(error))


def test_deep_check_runs_the_self_test_in_a_child(tmp_path: Path, runtime: Path) -> None:
    system = with_runtime(BOARDS["nanopi_m6"](), runtime).build(tmp_path)
    environ = {**os.environ, **ENVIRON, RUNTIME_VARIABLE: "/opt/librknnrt.so"}
    report = examine(options("--check=deep", "--demo"), environ, system)
    assert "self test: 3 of 3 cores exact" in report.text(TEXTS[0])
    assert report.exit_code == 0
    valid(report)
    broken = examine(options("--check=deep"), {**environ, "RKNN_STAND_IN_FAULT": "segfault"}, system)
    assert "died of SIGSEGV at core 0" in broken.text(TEXTS[0])
    assert (broken.exit_code, worst(broken)["npu"]) == (0, "fail")  # the CPU computes
    assert "Initialized rknpu 0.9.8" in broken.text(TEXTS[0])  # the kernel's word beside it
    valid(broken)


@pytest.mark.parametrize("name", ["armbian_rocket", "raspberry_pi_5", "user_outside_groups", "npu_does_not_answer"])
def test_runtime_is_never_loaded_without_a_device(tmp_path: Path, runtime: Path, name: str) -> None:
    system = with_runtime(BOARDS[name](), runtime).build(tmp_path)
    environ = {**ENVIRON, RUNTIME_VARIABLE: "/opt/librknnrt.so"}
    report = examine(options("--check=deep"), environ, system, selftest=no_test)
    assert "selftest-no-npu" in {line.slug for line in report.findings}


def test_npu_of_another_program_is_left_alone(tmp_path: Path, runtime: Path) -> None:
    system = with_runtime(BOARDS["npu_held_by_other_process"](), runtime).build(tmp_path)
    environ = {**ENVIRON, RUNTIME_VARIABLE: "/opt/librknnrt.so"}
    report = examine(options("--check=deep"), environ, system, selftest=no_test)
    assert "selftest-held" in {line.slug for line in report.findings}


def test_self_test_needs_a_runtime(tmp_path: Path) -> None:
    system = BOARDS["nanopi_m6"]().build(tmp_path)
    slugs = {line.slug for line in check(system, "--check=deep").findings}
    assert "selftest-no-runtime" in slugs
    assert not {slug for slug in {line.slug for line in check(system).findings} if slug.startswith("selftest")}


def test_json_is_one_document_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code = run_check(options("--check", "--json", "--lang", "zh"), ENVIRON, TEXTS[1], BOARDS["musl"]().build(tmp_path))
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    jsonschema.validate(document, SCHEMA)
    assert (code, document["exit_code"], shown.err) == (0, 0, "")
    assert document["findings"][0]["fact"].isascii()


@pytest.mark.parametrize(
    "extra", [{"group": "x"}, {"status": "good"}, {"facts": {"a": {}}}, {"slug": "A b"}, {"new": 1}]
)
def test_schema_is_strict(extra: dict[str, object]) -> None:
    line = Finding(group=Group.CPU, status=Status.OK, slug="cpu-kernels", facts={"kernels": "neon"})
    document = Report(findings=(line,), backend="cpu", largest_context=4096).document()
    jsonschema.validate(document, SCHEMA)
    findings = document["findings"]
    assert isinstance(findings, list)
    findings[0].update(extra)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, SCHEMA)


def test_files_cannot_speak_to_the_terminal_or_forge_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "Board\x1b]0;title\x07\x1b[31m\nok    board    all is well\r\u202e"
    board = BOARDS["no_driver_bound"]()
    for path in ("/sys/firmware/devicetree/base/model", "/proc/sys/kernel/osrelease", "/etc/os-release"):
        board.file(path, evil.replace("\n", "\x0b"))
    board.file("/dev/kmsg", f"4,9,1,-;rknpu: failed {evil}\n")
    system = board.build(tmp_path)
    for words in (["--check"], ["--check", "--report"], ["--check", "--model", f"/{evil}.l3r"]):
        run_check(options(*words), ENVIRON, TEXTS[0], system)
        shown = capsys.readouterr().out
        assert all(line.isprintable() for line in shown.split("\n"))
        assert not [line for line in shown.split("\n") if line.startswith("ok    board    all is well")]


def test_bare_root_is_no_crash(tmp_path: Path) -> None:
    report = check(Board().file("/proc/self/status", "Uid:\t0\t0\t0\t0\n").build(tmp_path), "--check", "--demo")
    assert report.ready
    valid(report)


_JUNK = (b"", b"\0" * 64, b"\xff\xfe" * 99, b"9" * 5000, b"-" * 50, "²³١ ".encode() * 20, b"a: b\nc d e f g\n" * 20)


@pytest.mark.parametrize("seed", range(48))
def test_broken_files_anywhere_are_no_crash(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    name = sorted(BOARDS)[seed % len(BOARDS)]
    board = BOARDS[name]()
    for path in list(board.files):
        if path == "/proc/self/status" or chosen.random() < 0.5:
            continue  # the first is what the nodes' permissions are made of
        data = board.files[path]
        cut = data[: chosen.randrange(len(data) + 1)]
        board.file(path, chosen.choice([*_JUNK, cut, data + cut, data.replace(b"\n", b"\0"), data[::-1]]))
    for path in list(board.links):
        if chosen.random() < 0.3:
            board.link(path, chosen.choice([path, "/nowhere", "..", "/proc/self/status"]))
    report = check(board.build(tmp_path), "--check", "--demo")
    valid(report)
