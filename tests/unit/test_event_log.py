"""A log that loses earlier lines, is found out to be unwritable after minutes of loading, or ends the conversation."""

from __future__ import annotations

import json
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
