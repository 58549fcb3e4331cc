"""A start that promises memory it does not need or lacks, saves nothing where saving was asked for, or fails for want
of a library that most requests do without."""

from __future__ import annotations

import fcntl
import os
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from launcher.engine import Engine, Package, Session
from launcher.engine_types import EngineOptions, KvType, SessionOptions
from launcher.errors import InternalError, MindnanoError, ResourceError, UsageError
from launcher.memory_plan import Runtime, plan_process
from launcher.messages import Catalogue, Language
from launcher.options.parse import Options, parse
from launcher.server.serve import run_serve
from launcher.server.session_room import conversation_bytes, require_room_to_save
from tests.support.demo import ROOT, require_demo
from tests.support.server_child import events, server_process
from tests.support.server_process import ServerProcess

MARGIN = 8 << 20
CHAT = "/v1/chat/completions"
QUESTION = {"messages": [{"role": "user", "content": "Count from 3 to 9"}], "max_tokens": 40, "temperature": 0}

WITHOUT_LIBRARY = """
import sys
import launcher.payload.extension
from launcher.errors import EngineError
def missing(environ):
    raise EngineError("llguidance-unusable", "llguidance cannot be used here: no memory for code")
launcher.payload.extension.import_llguidance = missing
from launcher.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.fixture(autouse=True)
def _demo() -> None:
    require_demo()


def options(*words: str) -> Options:
    return parse(["--no-console", "--demo", *words], {}, [])


def test_without_a_host_it_listens_on_one_loopback_address_alone(tmp_path: Path) -> None:
    """A socket for every address would take connections to this machine's other loopback addresses as well."""
    with ServerProcess(tmp_path) as server:
        socket.create_connection(("127.0.0.1", server.port), timeout=30).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.2", server.port), timeout=30)


def test_a_server_needs_what_was_predicted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with server_process(tmp_path, "--log", str(log)) as server:
        before = server.get("/props").json()["memory"]["resident_bytes"]
        answer = server.post(CHAT, {**QUESTION, "response_format": {"type": "json_object"}})
        assert answer.status_code == 200
        after = server.get("/props").json()["memory"]["resident_bytes"]
    (loaded,) = (event for event in events(log) if event["event"] == "loaded")
    assert abs(loaded["unaccounted_bytes"]) < MARGIN, loaded
    assert loaded["predicted_terms"]["grammar"]["idle"] > 0
    assert abs(before - loaded["predicted_idle_bytes"]) < MARGIN
    assert after - before < MARGIN  # the grammar's tables were there already


def test_nothing_of_the_server_is_imported_behind_the_plans_back(tmp_path: Path) -> None:
    program = """
import sys
import launcher.memory_plan
real = launcher.memory_plan.Runtime.measured.__func__
seen = set()
def measured(cls, *rest, **named):
    seen.update(sys.modules)
    return real(cls, *rest, **named)
launcher.memory_plan.Runtime.measured = classmethod(measured)
from launcher.cli import main
code = main(sys.argv[1:])
late = {name.partition(".")[0] for name in set(sys.modules) - seen}
print("late:", *sorted(late & {"launcher", "llguidance", "starlette", "uvicorn", "msgspec", "prometheus_client"}))
sys.exit(code)
"""
    with server_process(tmp_path, program=program) as server:
        assert server.post(CHAT, QUESTION).status_code == 200
        server.signal(15)
        assert server.wait() == 143
    assert "late:\n" in server.messages()


def test_without_the_grammar_library_only_constraints_are_refused(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with server_process(tmp_path, "--log", str(log), program=WITHOUT_LIBRARY) as server:
        assert "no memory for code" in server.messages()
        refused = server.post(CHAT, {**QUESTION, "response_format": {"type": "json_object"}})
        assert (refused.status_code, refused.json()["error"]["code"]) == (501, "constrained_decoding_unavailable")
        assert server.post(CHAT, QUESTION).status_code == 200
    told = {event["event"]: event for event in events(log)}
    assert "grammar" not in told["loaded"]["predicted_terms"]
    assert told["grammar_unavailable"]["slug"] == "constrained_decoding_unavailable"


BROKEN = """
import sys
import launcher.server.serve
def broken(*arguments, **named):
    raise ValueError("a bug")
launcher.server.serve.open_model = broken
from launcher.cli import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (["-m", "launcher"], UsageError.exit_code),
        (["-c", BROKEN], InternalError.exit_code),
        (["-c", BROKEN.replace('ValueError("a bug")', "OSError(28, 'full')")], ResourceError.exit_code),
        (
            ["-c", BROKEN.replace('ValueError("a bug")', 'RuntimeError("can\'t start new thread")')],
            ResourceError.exit_code,
        ),
    ],
)
def test_a_start_that_fails_logs_the_exit_code_that_the_process_has(
    tmp_path: Path, program: list[str], code: int
) -> None:
    log = tmp_path / "log"
    words = ("--demo", "--no-console", "--host", f"unix:{tmp_path}/s", "--context", "32K", "--log", str(log))
    done = subprocess.run([sys.executable, *program, *words], cwd=ROOT, capture_output=True, timeout=60, check=False)
    assert done.returncode == code, done.stderr
    told = [(event["event"], event.get("exit_code")) for event in events(log)]
    assert told == [("failed", None), ("stopped", code)]


def test_a_budget_too_small_for_a_full_context_is_told_with_what_it_takes(tmp_path: Path) -> None:
    with server_process(tmp_path, "--session-cache-mib", "1", "--context", "8K") as server:
        assert server.messages().count("warning: 1 MiB") == 1
        assert "4 MiB would" in server.messages()
    with server_process(tmp_path, "--session-cache-mib", "4", "--context", "8K") as server:
        assert "warning" not in server.messages()


@pytest.mark.parametrize("kv_type", [KvType.BF16, KvType.F32])
def test_what_one_conversation_takes_is_what_an_export_has(kv_type: KvType) -> None:
    context = 512
    with ExitStack() as stack:
        package = stack.enter_context(Package(require_demo()))
        engine = stack.enter_context(Engine(package, EngineOptions(threads=1)))
        wanted = SessionOptions(context=context, kv_type=kv_type, checkpoints=3)
        session = stack.enter_context(Session(engine, wanted))
        for slot in range(3):
            session.eval([65 + slot])
            session.save(slot)
        session.eval([65] * (context - session.position))
        plan = plan_process(package, EngineOptions(threads=1), wanted, Runtime.typical())
        assert session.export_bytes <= conversation_bytes(plan) <= session.export_bytes + (64 << 10)


def test_saving_without_a_session_cache_is_refused_before_anything_is_loaded(tmp_path: Path) -> None:
    words = ("--session-dir", str(tmp_path / "s"), "--session-cache-mib", "0")
    with pytest.raises(UsageError) as caught:
        run_serve(options(*words), {}, Catalogue(Language.ENGLISH))
    assert caught.value.slug == "session-dir-no-cache"
    assert "--session-dir" in caught.value.message
    assert "--session-cache-mib is 0" in caught.value.message
    assert not (tmp_path / "s").exists()


@pytest.mark.parametrize("fault", ["unsafe", "unusable", "busy"])
def test_a_folder_that_takes_no_sessions_is_refused_before_anything_is_loaded(tmp_path: Path, fault: str) -> None:
    folder = tmp_path / "s"
    if fault == "unusable":
        folder.write_text("a file")
    else:
        folder.mkdir(mode=0o700)
    if fault == "unsafe":
        folder.chmod(0o777)
    handle = os.open(folder, os.O_RDONLY)
    words = ("--no-console", "--model", str(tmp_path / "missing.l3r"), "--session-dir", str(folder))
    try:
        if fault == "busy":
            fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(MindnanoError) as caught:
            run_serve(parse([*words], {}, []), {}, Catalogue(Language.ENGLISH))
    finally:
        os.close(handle)
    assert caught.value.slug == f"session-dir-{fault}"


def test_where_no_budget_fits_the_refusal_says_what_would_help() -> None:
    asked = options("--session-dir", "/s")
    require_room_to_save(asked, 1)
    require_room_to_save(options(), 0)
    with pytest.raises(UsageError) as caught:
        require_room_to_save(asked, 0)
    assert "no memory is left" in caught.value.message
    for way in ("--context", "--session-cache-mib", "--session-dir"):
        assert way in caught.value.hint


def test_a_prompt_that_is_too_long_is_told_with_both_counts(tmp_path: Path) -> None:
    with server_process(tmp_path, "--context", "1K") as server:
        for stream in (False, True):
            long = {"messages": [{"role": "user", "content": "17 " * 2000}], "stream": stream}
            answer = server.post(CHAT, long)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], error["n_ctx"]) == (400, "context_length_exceeded", 1024)
            assert error["n_prompt_tokens"] > 2000
