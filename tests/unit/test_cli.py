"""Wrong exit codes, answers on the wrong stream, JSON that its schema does not describe, escapes off a terminal."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from launcher.errors import MindnanoError
from launcher.messages import en
from tests.support.demo import require_demo
from tests.support.terminal import TerminalProcess

ROOT = Path(__file__).resolve().parents[2]
SCHEMAS = ROOT / "launcher" / "schemas"
ENVIRON = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LANG": "C.UTF-8", "PYTHONPATH": str(ROOT)}


def run(*words: str, text: str | bytes = "", env: dict[str, str] | None = None) -> subprocess.CompletedProcess[bytes]:
    data = text.encode() if isinstance(text, str) else text
    return subprocess.run(
        [sys.executable, "-m", "launcher", *words],
        input=data,
        env={**ENVIRON, **(env or {})},
        cwd=ROOT,
        capture_output=True,
        check=False,
    )


def document(name: str, *words: str, code: int | None = 0) -> Any:
    done = run(*words)
    if code is not None:
        assert done.returncode == code
    found = json.loads(done.stdout)
    jsonschema.validate(found, json.loads((SCHEMAS / f"{name}.json").read_text(encoding="utf-8")))
    assert found["schema"] == f"mindnano-infer.{name}"
    return found


def test_version() -> None:
    done = run("--version")
    assert (done.returncode, done.stdout, done.stderr) == (0, b"mindnano-infer 0.1.0\n", b"")
    assert document("version", "--version", "--json")["program_version"] == "0.1.0"


def test_exit_codes_are_listed_as_the_errors_have_them() -> None:
    listed = {int(line.split()[0]) for line in run("--help-exit-codes").stdout.decode().splitlines()}
    used = {cls.exit_code for cls in MindnanoError.__subclasses__()}
    assert used | {0, 1, 129, 130, 143} == listed
    assert "internal" in en.TEXTS["exit-codes"]


@pytest.mark.parametrize(
    ("words", "text", "env", "code", "slug"),
    [
        (["--context", "many"], "", {}, 2, "usage"),
        (["--nonsense"], "", {}, 2, "option-unknown"),
        (["--strict", "question"], "", {}, 2, "option-elsewhere"),
        (["question"], "", {}, 4, "model-missing"),
        (["--demo"], "  \n", {}, 2, "no-question"),
        (["--demo"], b"\xff\xfe", {}, 2, "text-encoding"),
        (["--model", "/nonexistent.l3r", "x"], "", {}, 4, "package-missing"),
        (["--model", "/etc/passwd", "x"], "", {}, 4, "package-damaged"),
        (["--model", "/proc", "x"], "", {}, 4, "package-"),
        (["--demo", "x"], "", {"MINDNANO_DEMO_PACKAGE": "/nonexistent.l3r"}, 4, "demo-missing"),
        (["--demo", "x"], "", {"MINDNANO_ENGINE": "/nonexistent.so"}, 9, "engine-missing"),
        (["--version"], "", {"MINDNANO_LANG": "fr"}, 2, "usage"),
    ],
)
def test_errors_have_their_exit_code_and_say_what_next(
    words: list[str], text: str | bytes, env: dict[str, str], code: int, slug: str
) -> None:
    if words[0] in {"--demo", "--model"} and code in {4, 9}:
        require_demo()
    done = run(*words, text=text, env=env)
    assert done.returncode == code
    assert done.stdout == b""
    assert f"error ({slug}" in done.stderr.decode()
    assert b"Traceback" not in done.stderr


def test_errors_are_said_in_chinese() -> None:
    assert "没有这个选项" in run("--nonsense", "--lang", "zh").stderr.decode()
    assert "没有这个选项" in run("--nonsense", env={"LANG": "zh_CN.UTF-8"}).stderr.decode()


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        ("--chek", "did you mean --check?"),
        ("--temprature=3", "did you mean --temperature?"),
        ("--verify-slef", "did you mean --verify-self?"),
        ("--nonsense", "--help lists the options"),
    ],
)
def test_unknown_option_has_a_suggestion(word: str, hint: str) -> None:
    assert hint in run(word).stderr.decode()


def test_check_without_an_engine_names_it_and_is_valid() -> None:
    done = run("--check", "--json", env={"MINDNANO_ENGINE": "/nonexistent.so"})
    assert done.returncode == 9
    found = json.loads(done.stdout)
    jsonschema.validate(found, json.loads((SCHEMAS / "check.json").read_text(encoding="utf-8")))
    assert found["ready"] is False
    assert [item["group"] for item in found["findings"] if item["status"] == "fail"] == ["runtime"]


def test_check_of_the_built_in_model() -> None:
    require_demo()
    found = document("check", "--check", "--json", "--demo")
    assert found["ready"] is True
    assert found["largest_context"] >= 4096
    text = run("--check", "--demo").stdout.decode()
    assert "ready: yes" in text
    assert "backend: cpu" in text


def test_check_of_a_damaged_package(tmp_path: Path) -> None:
    data = bytearray(require_demo().read_bytes()[:4096])
    (tmp_path / "cut.l3r").write_bytes(data)
    found = document("check", "--check", "--json", "--model", str(tmp_path / "cut.l3r"), code=4)
    assert found["exit_code"] == 4


def test_contexts_of_the_built_in_model() -> None:
    require_demo()
    found = document("list-contexts", "--list-contexts", "--json", "--demo")
    assert found["largest"] == found["package_context"]
    for row in found["contexts"]:
        for column in ("idle", "full"):
            assert (row[f"{column}_bytes"] or 0) == sum(term[column] for term in row["terms"].values())
    text = run("--list-contexts", "--demo", "--kv-cache", "f32").stdout.decode()
    assert "weights" in text


def test_one_question_one_answer() -> None:
    require_demo()
    by_argument = run("--demo", "--think", "off", "--max-tokens", "12", "你好")
    by_flag = run("--demo", "--think", "off", "--max-tokens", "12", "--prompt", "你好")
    by_stdin = run("--demo", "--think", "off", "--max-tokens", "12", text="你好\n")
    assert by_argument.returncode == 0
    assert by_argument.stdout.decode().strip()
    assert by_argument.stdout == by_flag.stdout == by_stdin.stdout
    assert by_argument.stdout.endswith(b"\n")


def test_no_escape_and_no_carriage_return_off_a_terminal() -> None:
    require_demo()
    done = run("--demo", "--max-tokens", "12", "hello", env={"TERM": "xterm-256color"})
    for data in (done.stdout, done.stderr):
        assert b"\x1b" not in data
        assert b"\r" not in data


def test_same_seed_same_answer() -> None:
    require_demo()
    words = ("--demo", "--think", "off", "--max-tokens", "12", "--temperature", "100", "hello")
    first = run(*words, "--seed", "7").stdout
    assert first == run(*words, "--seed", "7").stdout
    others = {run(*words, "--seed", str(seed)).stdout for seed in range(8, 12)}
    assert others - {first}


def test_too_large_a_context_is_refused() -> None:
    require_demo()
    done = run("--demo", "--context", "256K", "hello")
    assert done.returncode == 2
    assert b"context-too-large" in done.stderr


def test_prompt_longer_than_the_context_is_refused() -> None:
    require_demo()
    done = run("--demo", "--context", "64", text="word " * 500)
    assert done.returncode == 5
    assert b"context-full" in done.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_a_single_answer_with_their_code(number: signal.Signals, code: int) -> None:
    """With this seed the answer has 10 KB; the pipe takes 4, so the answer cannot end before the signal comes."""
    require_demo()
    command = [sys.executable, "-m", "launcher", "--demo", "--think", "off", "--temperature", "100", "--top-k", "0"]
    with subprocess.Popen(
        [*command, "--top-p", "1", "--context", "8K", "--seed", "3", "go on"],
        env=ENVIRON,
        cwd=ROOT,
        bufsize=0,
        pipesize=4096,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    ) as process:
        assert process.stdout is not None
        process.stdout.read(1)  # it answers now
        process.send_signal(number)
        while process.stdout.read(4096):
            pass
        assert process.wait(60) == code


def test_closed_stdout_is_no_crash() -> None:
    require_demo()
    command = [sys.executable, "-m", "launcher", "--demo", "--think", "off", "hello"]
    with subprocess.Popen(command, env=ENVIRON, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()


def test_code_of_a_report_outlives_its_reader(tmp_path: Path) -> None:
    """`mindnano-infer --verify | head -0` must still say that the release is damaged."""
    (tmp_path / "SHA256SUMS").write_text(f"{'0' * 64}  gone\n")
    command = [sys.executable, "-m", "launcher", "--verify", str(tmp_path)]
    with subprocess.Popen(command, env=ENVIRON, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert b"Traceback" not in process.stderr.read()
        assert process.wait(60) == 4


@pytest.mark.parametrize("words", [["--version"], ["--check"], ["--demo", "--think", "off", "hello"]])
def test_full_disk_behind_stdout_is_an_error_and_no_crash(words: list[str]) -> None:
    require_demo()
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [sys.executable, "-m", "launcher", *words],
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            env=ENVIRON,
            cwd=ROOT,
            check=False,
        )
    assert done.returncode == 5
    assert b"error (output-full)" in done.stderr
    assert b"Traceback" not in done.stderr
    assert b"Exception ignored" not in done.stderr


@pytest.mark.parametrize(
    ("words", "closed", "code"),
    [("--demo hello", ">&-", 0), ("--demo hello", "2>&-", 0), ("--demo hello", "<&-", 0), ("--demo", "<&-", 2)],
)
def test_streams_that_are_closed_from_the_start_are_no_crash(words: str, closed: str, code: int) -> None:
    require_demo()
    command = f"exec {sys.executable} -m launcher {words} {closed}"
    done = subprocess.run(["sh", "-c", command], env=ENVIRON, cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == code
    assert b"Traceback" not in done.stderr


def test_chat_with_the_built_in_model() -> None:
    require_demo()
    command = [sys.executable, "-m", "launcher", "--demo", "--think", "off", "--max-tokens", "16", "--color", "never"]
    with TerminalProcess(command, env={**ENVIRON, "TERM": "xterm"}, cwd=str(ROOT)) as chat:
        chat.expect("/help lists commands.")
        chat.expect("\x1b[?2004h")
        chat.send("你好\r")
        chat.expect("\x1b[?2004l")
        chat.expect("\x1b[?2004h")
        chat.send("/stats\r")
        chat.expect("tokens/s")
        chat.expect("\x1b[?2004h")
        chat.send("\x04")
        assert chat.wait() == 0


@pytest.mark.parametrize(
    ("raised", "slug"),
    [("MemoryError()", "memory"), ('RuntimeError("can\'t start new thread")', "threads")],
)
def test_too_little_of_the_machine_is_no_bug(raised: str, slug: str) -> None:
    program = f"""
import sys
import launcher.cli
def fail(*_):
    raise {raised}
launcher.cli._COMMANDS = {{launcher.cli.Command.VERSION: fail}}
sys.exit(launcher.cli.main(["--version"]))
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert f"error ({slug})" in done.stderr
    assert "Traceback" not in done.stderr


def test_ctrl_c_while_modules_load_prints_no_trace() -> None:
    program = """
import runpy
import signal
import sys
class Slow:
    def find_spec(self, name, path=None, target=None):
        if name == "launcher.cli":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Slow())
runpy.run_module("launcher", run_name="__main__")
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (130, "")


@pytest.mark.parametrize("flag", ["--verify", "--unpack", "--download", "--notices"])
def test_empty_value_of_a_command_is_not_the_current_folder(flag: str) -> None:
    done = run(f"{flag}=")
    assert done.returncode == 2
    assert f"the value of {flag} is empty" in done.stderr.decode()


@pytest.mark.parametrize("asked", [b"", b"go on\r"], ids=["prompt", "answer"])
def test_a_lost_terminal_ends_the_chat_with_its_code(asked: bytes) -> None:
    """Nothing can be written by then, which must not become the interpreter's own exit code."""
    require_demo()
    options = ["--think", "off", "--temperature", "100", "--top-k", "0", "--top-p", "1", "--seed", "3"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execve(sys.executable, [sys.executable, "-m", "launcher", "--demo", *options], {**ENVIRON, "TERM": "dumb"})
    shown = b""
    while b"> " not in shown:
        shown += os.read(terminal, 4096)
    if asked:
        os.write(terminal, asked)
        while b"\n" not in shown.partition(b"go on")[2].strip(b"\r\n ") and len(shown) < 4000:
            shown += os.read(terminal, 4096)
    os.close(terminal)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 129
