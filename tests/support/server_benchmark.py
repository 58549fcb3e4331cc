"""What the server adds to the engine: time to the next turn's first token, time per token, and time to /health.

    python -m tests.support.server_benchmark [--package FILE.l3r] [--tokens N] [--rounds N] [server options]

Without a package it is the built-in model. Bare runs and served runs alternate, each in a process that stays open, with
the same options, prompt and tokens; what is compared is the wall time per token between the first and the last one, in
the loop itself and in a client on loopback. Every figure is the median of the rounds. On a machine that has other work
the processor's time per token, of all threads of the process, says more than the wall's.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from launcher.engine_sampling import Sampler
from launcher.messages import Catalogue, Language
from launcher.model import open_model
from launcher.options.parse import parse
from launcher.server.app import Application  # noqa: F401  the memory plan sees the same program
from launcher.system import SystemView
from tests.support.demo import ROOT
from tests.support.server_process import ServerProcess

CHAT = "/v1/chat/completions"
HISTORY = 2000
QUESTION = [{"role": "user", "content": "Count from 3 to 9"}]
_BARE = "--bare"


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """Arrivals in a stream: seconds to the first text, seconds per token after it, and the last chunk with a choice.

    `busy` is the processor's seconds per token in the server.
    """

    first: float
    per_token: float
    busy: float
    last: dict[str, Any]


def serve_bare(words: Sequence[str]) -> None:
    """Runs one loop over the engine for each line of stdin, `{"ids": [...], "tokens": N}`; answers with its times."""
    options = parse([*words], dict(os.environ))
    with open_model(options, dict(os.environ), SystemView(), Catalogue(Language.ENGLISH)) as model:
        session = model.session
        print("ready", flush=True)
        for line in sys.stdin:
            asked = json.loads(line)
            session.reset()
            with Sampler(model.package, replace(model.sampling, temperature=0.0)) as sampler:
                session.eval(asked["ids"])
                token = sampler.sample(session)
                start, busy = time.perf_counter(), busy_seconds(os.getpid())
                for length in range(1, asked["tokens"]):
                    session.eval((token,))
                    token = sampler.sample(session, reply_length=length)
                figures = [time.perf_counter() - start, busy_seconds(os.getpid()) - busy]
            print(json.dumps([figure / (asked["tokens"] - 1) for figure in figures]), flush=True)


def busy_seconds(process_id: int) -> float:
    """What all threads of a process have computed so far."""
    tasks = Path(f"/proc/{process_id}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


@contextmanager
def bare_loop(words: Sequence[str]) -> Iterator[subprocess.Popen[str]]:
    """The loop's process, loaded."""
    command = [sys.executable, "-m", "tests.support.server_benchmark", _BARE, *words]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


def run_bare(process: subprocess.Popen[str], ids: Sequence[int], tokens: int) -> tuple[float, float]:
    """Seconds per token: the wall's and the processor's."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps({"ids": list(ids), "tokens": tokens}) + "\n")
    process.stdin.flush()
    wall, busy = json.loads(process.stdout.readline())
    return float(wall), float(busy)


def run_served(server: ServerProcess, body: dict[str, Any]) -> Timed:
    """A stream, read as it comes and looked at afterwards."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    text = json.dumps({**body, "stream": True})
    start = time.perf_counter()
    connection.request("POST", CHAT, text, {"Content-Type": "application/json"})
    answer = connection.getresponse()
    parts = []
    before = 0.0
    while part := answer.read1(1 << 16):
        parts.append((time.perf_counter(), part))
        before = before or (busy_seconds(server.process.pid) if b'"content":"' in part else 0.0)
    after = busy_seconds(server.process.pid)
    connection.close()
    assert answer.status == 200, parts
    arrived = [(moment, chunk) for moment, chunk in _chunks(parts) if _has_text(chunk)]
    (begun, first), (ended, last) = arrived[0], arrived[-1]
    tokens = _generated(last) - _generated(first)
    return Timed(
        first=begun - start,
        per_token=(ended - begun) / max(tokens, 1),
        busy=(after - before) / max(tokens, 1),
        last=last,
    )


def _chunks(parts: list[tuple[float, bytes]]) -> Iterator[tuple[float, dict[str, Any]]]:
    """Every chunk with the time at which its end arrived."""
    rest = b""
    for moment, part in parts:
        *lines, rest = (rest + part).split(b"\n\n")
        for line in lines:
            if line.startswith(b"data: {"):
                yield moment, json.loads(line.removeprefix(b"data: "))


def _has_text(chunk: dict[str, Any]) -> bool:
    return any(choice["delta"].get("content") or choice["delta"].get("reasoning") for choice in chunk["choices"])


def _generated(chunk: dict[str, Any]) -> int:
    return int(chunk["mindnano_metrics"]["generated_tokens"])


def measure_overhead(server: ServerProcess, words: Sequence[str], tokens: int, rounds: int) -> dict[str, float]:
    """Seconds per token, bare and served, and how much more the latter is."""
    body = {"messages": QUESTION, "temperature": 0, "ignore_eos": True, "max_tokens": tokens, "enable_thinking": False}
    prompt = server.ask("POST", "/apply-template", body).json()["prompt"]
    ids = server.ask("POST", "/tokenize", {"content": prompt}).json()["tokens"]
    bare, served = [], []
    with bare_loop(words) as process:
        run_bare(process, ids, tokens)
        run_served(server, body)
        for _ in range(rounds):
            bare.append(run_bare(process, ids, tokens))
            timed = run_served(server, body)
            served.append((timed.per_token, timed.busy))
    figures: dict[str, float] = {}
    for name, place in (("wall", 0), ("processor", 1)):
        before, after = [each[place] for each in bare], [each[place] for each in served]
        figures |= {
            f"{name}_bare_ms": 1e3 * statistics.median(before),
            f"{name}_served_ms": 1e3 * statistics.median(after),
            f"{name}_overhead": statistics.median(y / x for x, y in zip(before, after, strict=True)) - 1,
            f"{name}_overhead_of_best": min(after) / min(before) - 1,
            f"{name}_spread_of_bare": max(before) / min(before) - 1,
        }
    return figures


def measure_turns(server: ServerProcess, rounds: int) -> dict[str, float]:
    """Seconds to the first token of a turn behind a long history, kept and cold."""
    kept, cold, cached, prompt = [], [], 0, 0
    for number in range(rounds):
        session = f"turns-{number}"
        messages = long_history(server, number)
        body = {"messages": messages, "temperature": 0, "max_tokens": 20, "enable_thinking": False}
        run_served(server, {**body, "session_id": session})
        reply = server.ask("POST", CHAT, {**body, "session_id": session}).json()["choices"][0]["message"]["content"]
        messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": "Count from 2 to 6"}]
        warm = run_served(server, {**body, "session_id": session})
        kept.append(warm.first)
        cached = warm.last["mindnano_metrics"]["cached_tokens"]
        prompt = warm.last["mindnano_metrics"]["prompt_tokens"]
        assert server.ask("DELETE", f"/v1/sessions/{session}").status == 200
        again = run_served(server, body)
        assert again.last["mindnano_metrics"]["cached_tokens"] < HISTORY // 10, again.last
        cold.append(again.first)
    return {
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "kept_ms": 1e3 * statistics.median(kept),
        "cold_ms": 1e3 * statistics.median(cold),
        "ratio": statistics.median(warm / other for warm, other in zip(kept, cold, strict=True)),
    }


def long_history(server: ServerProcess, number: int) -> list[dict[str, str]]:
    """A conversation of `HISTORY` tokens that begins as no other does, up to a question."""
    draw = random.Random(number)
    words = ("cat", "river", "table", "moon", "apple", "star", "bird", "stone", "paper", "light")
    messages: list[dict[str, str]] = [{"role": "system", "content": f"Conversation {number}"}]
    while True:
        messages.append({"role": "user", "content": " ".join(draw.choices(words, k=40))})
        prompt = server.ask("POST", "/apply-template", {"messages": messages, "enable_thinking": False}).json()[
            "prompt"
        ]
        if server.ask("POST", "/tokenize", {"content": prompt}).json()["count"] >= HISTORY:
            return messages
        messages.append({"role": "assistant", "content": " ".join(draw.choices(words, k=40))})


def measure_health(server: ServerProcess, count: int) -> dict[str, float]:
    """Seconds to the answer of /health while a reply is being written."""
    with server.stream({"messages": QUESTION, "temperature": 0, "ignore_eos": True}) as stream:
        stream.until_text()
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        times = []
        for _ in range(count):
            start = time.perf_counter()
            connection.request("GET", "/health")
            connection.getresponse().read()
            times.append(time.perf_counter() - start)
            time.sleep(0.005)
        connection.close()
        still = server.props()["queue"]["running"]
    times.sort()
    return {
        "median_ms": 1e3 * statistics.median(times),
        "p99_ms": 1e3 * times[int(0.99 * len(times))],
        "max_ms": 1e3 * times[-1],
        "still_generating": still,
    }


def main() -> None:
    """Measures and prints."""
    if sys.argv[1:2] == [_BARE]:
        serve_bare(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(description="Measures what the server adds to the engine.")
    parser.add_argument("--package", type=Path, help="the built-in model by default")
    parser.add_argument("--tokens", type=int, default=1000, help="of a reply")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--health", type=int, default=200, help="requests to /health")
    parser.add_argument("--only", action="append", choices=("overhead", "turns", "health"))
    arguments, rest = parser.parse_known_args()
    package = arguments.package
    environ = {} if package is None else {"MINDNANO_DEMO_PACKAGE": str(package.resolve())}
    os.environ.update(environ)
    wanted = arguments.only or ["turns", "overhead", "health"]
    with (
        TemporaryDirectory() as folder,
        ServerProcess(Path(folder), *rest, environ=environ) as server,
    ):
        if "turns" in wanted:
            _print("turns", measure_turns(server, arguments.rounds))
        if "overhead" in wanted:
            words = ["--demo", "--no-console", *rest]
            _print("overhead", measure_overhead(server, words, arguments.tokens, arguments.rounds))
        if "health" in wanted:
            _print("health", measure_health(server, arguments.health))


def _print(name: str, figures: dict[str, float]) -> None:
    print(name, json.dumps({key: round(value, 4) for key, value in figures.items()}), flush=True)


if __name__ == "__main__":
    main()
