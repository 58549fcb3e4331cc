"""A log that loses earlier lines, is found out to be unwritable after minutes of loading, or ends the conversation."""

from __future__ import annotations

import json
import os
import stat
import threading
from datetime import UTC, datetime
from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.event_log import EventLog
from launcher.generate import Stats, StopReason

NOON = datetime(2026, 11, 30, 12, tzinfo=UTC)


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_events_are_appended_one_per_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"event": "earlier"}\n')
    with EventLog(path, clock=lambda: NOON) as log:
        log.write("loaded", {"model": "小"})
        assert lines(path)[1]["event"] == "loaded"  # at once, not when it is closed
        log.write("reply", {"text": "a\nb"})
    assert [line["event"] for line in lines(path)] == ["earlier", "loaded", "reply"]
    assert lines(path)[1] == {"event": "loaded", "version": 1, "time": "2026-11-30T12:00:00.000+00:00", "model": "小"}


def test_no_file_no_log() -> None:
    with EventLog(None) as log:
        log.write("loaded", {})


@pytest.mark.parametrize("name", ["", "missing/log.jsonl"])
def test_a_file_that_cannot_be_written_is_named_at_once(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError) as caught:
        EventLog(tmp_path / name)
    assert caught.value.slug == "log-unwritable"
    assert str(tmp_path / name) in caught.value.message


def test_a_full_disk_ends_the_log_only() -> None:
    reasons: list[str] = []
    log = EventLog(Path("/dev/full"), lost=reasons.append)
    log.write("loaded", {})
    log.write("reply", {})
    log.close()
    assert reasons == ["No space left on device"]  # said, and said once


def test_a_reply_is_counts_and_times() -> None:
    stats = Stats(prompt=10, reused=4, evaluated=6, generated=3, reason=StopReason.LENGTH)
    stats.prefill_seconds, stats.decode_seconds, stats.first_seconds = 2, 1.5, 0.25
    assert stats.facts() == {
        "prompt_tokens": 10,
        "reused_tokens": 4,
        "generated_tokens": 3,
        "ttft_seconds": 0.25,
        "prefill_tokens_per_second": 3.0,
        "decode_tokens_per_second": 2.0,
        "reason": "length",
    }
    assert Stats().facts()["ttft_seconds"] is None


def test_a_full_log_is_put_aside_and_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    aside = tmp_path / "log.jsonl.1"
    aside.write_text("older")
    with EventLog(path, max_bytes=300, clock=lambda: NOON) as log:
        for number in range(7):
            log.write("e", {"number": number, "fill": "x" * 20})
            assert path.stat().st_size <= 300
    numbers = [line["number"] for line in lines(aside) + lines(path)]
    assert numbers == list(range(7))[-len(numbers) :]
    assert len(numbers) > 2
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["log.jsonl", "log.jsonl.1"]


@pytest.mark.parametrize(("private", "mode"), [(True, 0o600), (False, 0o644)])
def test_what_people_said_is_for_the_owner_of_the_log_alone(tmp_path: Path, private: bool, mode: int) -> None:
    path = tmp_path / "log.jsonl"
    before = os.umask(0o022)
    try:
        with EventLog(path, private=private, max_bytes=300) as log:
            for _ in range(8):
                log.write("request", {"prompt": "x" * 100})
    finally:
        os.umask(before)
    assert [stat.S_IMODE(file.stat().st_mode) for file in (path, tmp_path / "log.jsonl.1")] == [mode, mode]


def test_a_line_longer_than_the_log_is_written_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with EventLog(path, max_bytes=10) as log:
        log.write("a", {"fill": "x" * 100})
        log.write("b", {})
    assert [line["event"] for line in lines(path)] == ["b"]


def test_a_log_that_was_moved_away_goes_on_in_a_new_file(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with EventLog(path) as log:
        log.write("before", {})
        path.rename(tmp_path / "moved")
        log.write("after", {})
        path.unlink()
        log.write("last", {})
    assert [line["event"] for line in lines(tmp_path / "moved")] == ["before"]
    assert [line["event"] for line in lines(path)] == ["last"]


def test_a_device_is_never_put_aside() -> None:
    with EventLog(Path("/dev/null"), max_bytes=1) as log:
        log.write("a", {})
        log.write("b", {})
    assert Path("/dev/null").is_char_device()
    assert not Path("/dev/null.1").exists()


def test_lines_of_several_threads_do_not_mix(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    with EventLog(path, max_bytes=100_000) as log:

        def write(thread: int) -> None:
            for number in range(200):
                log.write("e", {"thread": thread, "number": number})

        threads = [threading.Thread(target=write, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({(line["thread"], line["number"]) for line in lines(path)}) == 800
