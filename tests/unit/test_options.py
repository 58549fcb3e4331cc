"""Options that are taken for something else, wrong values that pass, contradictions that are not noticed."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher.errors import UsageError
from launcher.options.parse import Options, parse
from launcher.options.table import OPTIONS, Command, MlaBackend, parse_tokens


def options(*words: str) -> Options:
    return parse(words, {}, files=())


def test_everything_arrives() -> None:
    found = options(
        *("--model", "m.l3r", "--think", "off", "--system", "S", "--max-tokens", "7", "--temperature", "0.5"),
        *(
            "--top-p",
            "0.9",
            "--top-k",
            "3",
            "--min-p",
            "0.1",
            "--repeat-penalty",
            "1.1",
            "--seed",
            "18446744073709551615",
        ),
        *("--context", "16K", "--kv-cache", "fp16", "--threads", "4", "--force", "--color", "never", "--lang", "zh"),
        *("two", "words"),
    )
    assert found.model == Path("m.l3r")
    assert found.question == "two words"
    assert (found.think, found.system, found.max_tokens, found.context) == (False, "S", 7, 16384)
    assert (found.kv_cache, found.threads, found.force) == ("fp16", 4, True)
    sampling = found.sampling
    assert (sampling.temperature, sampling.top_p, sampling.top_k, sampling.min_p) == (0.5, 0.9, 3, 0.1)
    assert (sampling.repetition_penalty, sampling.seed) == (1.1, 2**64 - 1)


@pytest.mark.parametrize(
    "words",
    [
        ["--demo", "--temperature", "-1"],
        ["--demo", "--temperature", "nan"],
        ["--demo", "--temperature", "inf"],
        ["--demo", "--top-p", "0"],
        ["--demo", "--top-p", "1.1"],
        ["--demo", "--min-p", "2"],
        ["--demo", "--top-k", "-1"],
        ["--demo", "--repeat-penalty", "0"],
        ["--demo", "--seed", "-1"],
        ["--demo", "--seed", "18446744073709551616"],
        ["--demo", "--max-tokens", "0"],
        ["--demo", "--threads", "0"],
        ["--demo", "--context", "0"],
        ["--demo", "--context", "4M"],
        ["--demo", "--context", "-4K"],
        ["--demo", "--kv-cache", "int4"],
        ["--demo", "--lang", "fr"],
        ["--demo", "--thin", "off"],
        ["--demo", "--model", "x"],
        ["--demo", "--prompt", "a", "b"],
        ["--demo", "--prompt", " "],
        ["--demo", "--json"],
        ["--check", "--version"],
        ["--check", "--json", "--report"],
        ["--check", "shallow"],
        ["--check", "--temperature", "1"],
        ["--version", "--context", "4K"],
        ["--list-contexts", "--", "a question"],
        ["--verify", "--sha256", "0" * 64],
        ["--download", "--sha256", "xyz"],
        ["--demo", "--session-cache-mib", "64"],
        ["--check", "--port", "0"],
        ["--check", "--port", "65536"],
        ["--check", "--mla-backend", "gpu"],
        ["--print-completion"],
        ["--print-completion", "tcsh"],
        ["--model="],
    ],
)
def test_wrong_use_is_a_usage_error(words: list[str]) -> None:
    with pytest.raises(UsageError):
        options(*words)


def test_prompt_may_begin_with_a_dash() -> None:
    assert options("--demo", "--prompt=--x").question == "--x"
    assert options("--demo", "--", "-x").question == "-x"


@pytest.mark.parametrize(("text", "count"), [("4K", 4096), ("256k", 262144), ("1000", 1000)])
def test_tokens(text: str, count: int) -> None:
    assert parse_tokens(text) == count


@pytest.mark.parametrize("text", ["", "K", "4 K", "1e3", "٤", "4KK", "+4", str(1 << 33)])
def test_not_tokens(text: str) -> None:
    with pytest.raises(ValueError, match="number of tokens"):
        parse_tokens(text)


def test_informing_needs_no_model() -> None:
    assert options("--version").command is Command.VERSION
    assert options("--check", "--json").command is Command.CHECK


def test_commands_take_their_operand() -> None:
    assert options("--check=deep").check_deep
    assert not options("--check").check_deep
    assert options("--verify", "release").operand == "release"
    assert options("--verify").operand is None
    assert options("--download", "org/name").operand == "org/name"
    assert options("--print-completion", "fish").operand == "fish"


def test_plan_of_a_server() -> None:
    found = options("--list-contexts", "--demo", "--session-cache-mib", "64", "--prefix-checkpoints", "0", "--mtp")
    assert (found.session_cache_mib, found.prefix_checkpoints, found.mtp) == (64, 0, True)
    assert found.mla_backend is MlaBackend.AUTO


def test_every_option_is_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options("--help")
    text = capsys.readouterr().out
    for option in OPTIONS:
        assert f"--{option.name} " in text or f"--{option.name}\n" in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_help_speaks_the_language_that_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        options("--help", "--lang", "zh")
    assert "运行内置的小模型" in capsys.readouterr().out
