"""An error that names no file, or says nothing of what to do; a conversion that writes into its own source."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.errors import MindnanoError, PackageError, UsageError
from release.checkpoint.files import open_checkpoint
from release.package.facts import read_package_facts
from release.package.inspection import inspect_package
from release.quantization.quantize import QuantizeOptions, quantize
from release.texts import read_text
from tests.support.demo import require_demo

Damage = Callable[[Path], object]
ROOT = Path(__file__).resolve().parents[2]
INDEX = "model.safetensors.index.json"


def emptied(name: str, content: bytes = b"") -> Damage:
    return lambda folder: (folder / name).write_bytes(content)


@pytest.mark.parametrize(
    ("damage", "named"),
    [
        (emptied("config.json"), "config.json"),
        (emptied("config.json", b"[]"), "config.json"),
        (emptied(INDEX, b"{"), INDEX),
        (emptied(INDEX, b'{"weight_map": {}}'), INDEX),
        (emptied(INDEX, b'{"weight_map": {"a": "../b"}}'), INDEX),
        (emptied("chat_template.jinja", b"\xff"), "chat_template.jinja"),
        (emptied("tokenizer_config.json", b'{"chat_template": 5}'), "tokenizer_config.json"),
        (emptied("tokenizer.json", b"nothing"), "tokenizer.json"),
        (emptied("tokenizer.json", b"{}"), "tokenizer.json"),
    ],
)
def test_a_malformed_file_of_a_checkpoint_has_a_next_step(
    checkpoint: Path, tmp_path: Path, damage: Damage, named: str
) -> None:
    damage(checkpoint)
    with pytest.raises(PackageError) as caught:
        quantize(QuantizeOptions(source=checkpoint, output=tmp_path / "out"))
    assert named in caught.value.message
    assert "Download" in caught.value.hint


def test_one_missing_shard_is_one(checkpoint: Path) -> None:
    (checkpoint / INDEX).write_text('{"weight_map": {"a": "one.safetensors"}}')
    with pytest.raises(PackageError, match=r"names a shard that is missing: one\.safetensors"):
        open_checkpoint(checkpoint)
    (checkpoint / INDEX).write_text('{"weight_map": {"a": "one.safetensors", "b": "two.safetensors"}}')
    with pytest.raises(PackageError, match=r"names 2 shards that are missing: one\.\w+, two\.\w+"):
        open_checkpoint(checkpoint)


@pytest.mark.parametrize(
    ("content", "slug", "step"),
    [
        (None, "text-unreadable", "UTF-8"),
        (b"\xff\xfe", "text-encoding", "iconv"),
        (b" \n", "text-empty", "UTF-8"),
    ],
)
def test_a_text_that_cannot_be_used_has_a_next_step(
    tmp_path: Path, content: bytes | None, slug: str, step: str
) -> None:
    path = tmp_path / "text.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UsageError) as caught:
        read_text(path, None)  # type: ignore[arg-type]
    assert caught.value.slug == slug
    assert step in caught.value.hint


@pytest.mark.parametrize("place", ["sub", "sub/sub", "."])
def test_nothing_is_written_into_the_checkpoint(checkpoint: Path, tmp_path: Path, place: str) -> None:
    link = tmp_path / "link"
    link.symlink_to(checkpoint)
    before = sorted(checkpoint.rglob("*"))
    for source, output in ((checkpoint, link / place), (link, checkpoint / place)):
        with pytest.raises(MindnanoError) as caught:
            quantize(QuantizeOptions(source=source, output=output))
        assert caught.value.exit_code == 2
        assert caught.value.hint
    assert sorted(checkpoint.rglob("*")) == before
    beside = checkpoint.with_name(f"{checkpoint.name}-assets")
    assert quantize(QuantizeOptions(source=checkpoint, output=beside)).is_file()


def test_a_damaged_package_is_named(tmp_path: Path) -> None:
    """Of a command with several files it would otherwise be open which one is meant."""
    path = tmp_path / "damaged.l3r"
    shutil.copy(require_demo(), path)
    with path.open("r+b") as file:
        file.seek(-1, 2)
        last = file.read(1)
        file.seek(-1, 2)
        file.write(bytes([last[0] ^ 1]))
    facts, gaps = read_package_facts(path)
    assert facts is None
    assert [gap.count(str(path)) for gap in gaps] == [1]
    with pytest.raises(PackageError) as caught:
        inspect_package(path, verify=True)
    assert caught.value.message.count(str(path)) == 1


def test_the_folder_of_the_commands_can_be_run() -> None:
    done = subprocess.run([sys.executable, "-m", "release", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("usage: mindnano ")
