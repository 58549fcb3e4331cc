"""The aarch64 build of the tokenizer gives the ids of the reference."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from engine.build import build_executable
from release.package.tokenizer_tables import build_tables
from tests.support.qemu import aarch64_command
from tests.support.reference_tokenizers import train
from tests.support.texts import random_texts


@pytest.mark.slow
def test_ids_on_aarch64_are_those_of_the_reference(tmp_path: Path) -> None:
    program = build_executable(
        [Path(__file__).with_name("tokenize_file.c")], "tokenize_file", "aarch64", static=True, out=tmp_path
    )
    tokenizer = train(1024)
    text = "".join(random_texts(3_000, seed=21))
    (tmp_path / "section").write_bytes(build_tables(tokenizer.to_str().encode()).section)
    (tmp_path / "text").write_text(text, encoding="utf-8", newline="")
    command = [*aarch64_command(program), str(tmp_path / "section"), str(tmp_path / "text")]
    result = subprocess.run(command, capture_output=True, text=True)
    assert result.returncode == 0, result.stderr
    assert list(map(int, result.stdout.split())) == tokenizer.encode(text, add_special_tokens=False).ids
