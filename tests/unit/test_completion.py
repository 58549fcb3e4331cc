"""A completion script that its shell refuses, or that leaves an option out."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from launcher.options.completion import completion
from launcher.options.table import OPTIONS, Command

# What is no flag, and what this version refuses.
HIDDEN = {Command.TALK, Command.SERVE}


def complete(*words: str) -> list[str]:
    """What bash offers for the last word."""
    script = completion("bash") + (
        '\nCOMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _mindnano_infer; printf "%s\\n" "${COMPREPLY[@]}"\n'
    )
    done = subprocess.run(
        ["bash", "--norc", "-eu", "-c", script, "bash", "mindnano-infer", *words],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.split()


def test_bash_offers_options_and_values() -> None:
    assert "--kv-cache" in complete("--k")
    assert complete("--kv-cache", "b") == ["bf16"]
    assert complete("--context", "12") == ["128K"]
    assert complete("--print-completion", "") == ["bash", "zsh", "fish"]
    assert complete("--seed", "") == []
    assert set(complete("--")) >= {f"--{option.name}" for option in OPTIONS}


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_option_is_completed(shell: str) -> None:
    text = completion(shell)
    for option in OPTIONS:
        assert (f"-l {option.name}" if shell == "fish" else f"--{option.name}") in text
    assert "deep" in text


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_command_is_completed(shell: str) -> None:
    words = completion(shell).replace("'", " ").replace('"', " ").replace("[", " ").replace("=", " ").split()
    for command in set(Command) - HIDDEN:
        assert (command.value if shell == "fish" else f"--{command.value}") in words


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_shell_accepts_the_script(shell: str) -> None:
    program = shutil.which(shell)
    if program is None:
        pytest.skip(f"{shell} is not installed")
    subprocess.run([program, "-n"], input=completion(shell), text=True, check=True, capture_output=True)
