"""Progress that goes backwards, floods a log or writes escapes where no terminal is."""

from __future__ import annotations

import io
import itertools
import os
from pathlib import Path

import pytest

from launcher.messages import Catalogue, Language
from launcher.progress import Progress, format_bytes, format_seconds

CHINESE = Catalogue(Language.CHINESE)


def run(total: int, step: int, *, live: bool, fail: bool = False, texts: Catalogue | None = None) -> str:
    stream = io.StringIO()
    clock = itertools.count().__next__
    try:
        with Progress("Hashing", total, stream=stream, live=live, clock=clock, texts=texts) as progress:
            for _ in range(0, total, step):
                progress.advance(step)
            if fail:
                raise KeyError("x")
    except KeyError:
        pass
    return stream.getvalue()


def test_off_a_terminal_one_plain_line_per_ten_percent() -> None:
    lines = run(1000, 7, live=False).splitlines()
    assert len(lines) == 10
    assert [int(line.split()[1]) // 10 for line in lines] == list(range(1, 11))
    assert "\x1b" not in "".join(lines)
    assert "\r" not in "".join(lines)


def test_line_says_rate_and_remaining_time() -> None:
    assert run(1000, 100, live=False).splitlines()[4].startswith("Hashing: 50 % (500 B of 1000 B, ")
    assert "/s" in run(1000, 100, live=False).splitlines()[4]
    assert "left" in run(1000, 100, live=False).splitlines()[4]


def test_on_a_terminal_the_line_is_rewritten_and_ended() -> None:
    text = run(1000, 100, live=True)
    assert text.startswith("\r")
    assert text.count("\n") == 1
    assert text.rstrip("\n").endswith("s")


def test_chinese_progress_has_no_english_words() -> None:
    for text in (
        run(1000, 100, live=False, texts=CHINESE),
        run(1000, 100, live=True, texts=CHINESE),
        run(1000, 100, live=False, fail=True, texts=CHINESE),
    ):
        assert not {"of", "left", "done,", "in", "stopped", "at"} & set(text.split())
    assert "剩余" in run(1000, 100, live=False, texts=CHINESE)


def test_line_of_wide_characters_is_cut_before_it_wraps() -> None:
    stream = io.StringIO()
    progress = Progress("正在校验" * 20, 10, stream=stream, live=True, texts=CHINESE)
    progress.update(5)
    line = stream.getvalue().removeprefix("\r\x1b[2K")
    assert sum(2 if ord(character) >= 0x2E80 else 1 for character in line) <= 79


def test_terminal_without_a_size_has_the_usual_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda _number: os.terminal_size((0, 0)))
    with Path(os.devnull).open("w+", encoding="utf-8") as stream:
        assert Progress("x", 10, stream=stream, live=True)._columns() == 80


def test_done_never_decreases_or_exceeds_the_total() -> None:
    progress = Progress("x", 10, stream=io.StringIO(), live=False)
    progress.update(5)
    progress.update(3)
    assert progress.done == 5
    progress.advance(100)
    assert progress.done == 10


def test_stopped_work_says_where() -> None:
    assert run(1000, 1000, live=False, fail=True).endswith("Hashing: stopped at 100 %\n")
    stream = io.StringIO()
    with Progress("x", 10, stream=stream, live=False) as progress:
        progress.update(4)
    assert stream.getvalue().endswith("x: stopped at 40 %\n")


def test_nothing_to_do_is_no_division_by_zero() -> None:
    stream = io.StringIO()
    with Progress("x", 0, stream=stream, live=False) as progress:
        progress.update(0)
    assert "done" in stream.getvalue() or "100 %" in stream.getvalue()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1536, "1.5 KiB"),
        (200 << 10, "200 KiB"),
        (5 << 30, "5.0 GiB"),
        (3 << 40, "3.0 TiB"),
    ],
)
def test_bytes(count: int, text: str) -> None:
    assert format_bytes(count) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.2, "0 s"), (75, "1 min 15 s"), (3725, "1 h 02 min")])
def test_seconds(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text
