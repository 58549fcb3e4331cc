"""Damaged, truncated and contradictory checkpoint files are refused, with what is wrong."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.errors import PackageError
from release.checkpoint.files import open_checkpoint
from release.checkpoint.safetensors_reader import TensorReader, read_header
from tests.support.checkpoints import edit_json, make_checkpoint, write_safetensors


def write_raw(path: Path, header: object, data: bytes) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def entry(dtype: str = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


@pytest.mark.parametrize(
    ("header", "data"),
    [
        (b"{", b""),
        (b"[]", b""),
        (b"\xff\xfe", b""),
        (b"[" * 100000, b""),
        (b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "a": {}}', b"\0" * 8),
        ({"a": 3}, b""),
        ({"a": entry(shape=[-2])}, b"\0" * 8),
        ({"a": entry(shape=[2.0])}, b"\0" * 8),
        ({"a": entry(shape=None)}, b"\0" * 8),
        ({"a": entry(offsets=[0])}, b"\0" * 8),
        ({"a": entry(offsets=[8, 0])}, b"\0" * 8),
        ({"a": entry(offsets=[0, 4])}, b"\0" * 8),
        ({"a": entry(shape=[1 << 61], offsets=[0, 8])}, b"\0" * 8),
        ({"a": entry(shape=[1 << 40, 1 << 40], offsets=[0, 8])}, b"\0" * 8),
        ({"a": entry()}, b"\0" * 7),
        ({"a": entry()}, b"\0" * 9),
        ({"a": entry(), "b": entry()}, b"\0" * 8),
        ({"a": entry(), "b": entry(offsets=[12, 20])}, b"\0" * 20),
    ],
)
def test_malformed_header_is_refused(tmp_path: Path, header: object, data: bytes) -> None:
    with pytest.raises(PackageError, match=r"model\.safetensors is not a valid safetensors file") as caught:
        read_header(write_raw(tmp_path / "model.safetensors", header, data))
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("length", [0, 1, 7])
def test_file_too_short_for_a_header_is_refused(tmp_path: Path, length: int) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"\x01" * length)
    with pytest.raises(PackageError):
        read_header(path)


def test_header_length_beyond_the_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(struct.pack("<Q", 1 << 62) + b"{}")
    with pytest.raises(PackageError, match="the header should be"):
        read_header(path)


def test_every_truncation_is_noticed(micro: Path, tmp_path: Path) -> None:
    data = (micro / "model.safetensors").read_bytes()
    path = tmp_path / "model.safetensors"
    header_bytes = 8 + struct.unpack_from("<Q", data)[0]
    for length in (7, 8, header_bytes - 1, header_bytes, header_bytes + 1, len(data) // 2, len(data) - 1):
        path.write_bytes(data[:length])
        with pytest.raises(PackageError):
            read_header(path)


@pytest.mark.parametrize("dtype", ["I8", "F64", "F8_E4M3", "BOOL", "U16"])
def test_other_element_types_are_refused_by_tensor_name(tmp_path: Path, dtype: str) -> None:
    path = write_raw(tmp_path / "model.safetensors", {"model.odd.weight": entry(dtype=dtype)}, b"\0" * 8)
    with pytest.raises(PackageError, match=rf"model\.odd\.weight .*{dtype}") as caught:
        read_header(path)
    assert caught.value.slug == "checkpoint-dtype-unsupported"


def test_empty_tensors_are_read(tmp_path: Path) -> None:
    path = write_raw(tmp_path / "x.safetensors", {"a": entry(shape=[0, 4], offsets=[0, 0]), "b": entry()}, b"\0" * 8)
    with TensorReader(read_header(path)) as reader:
        assert reader.read("a").shape == (0, 4)
        assert reader.read("b").tolist() == [0, 0]


def test_rows_are_those_of_the_whole_tensor(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((11, 6)).astype(np.float32)
    write_safetensors(tmp_path / "x.safetensors", {"first": values[:2], "half": values.astype(np.float16)})
    with TensorReader(read_header(tmp_path / "x.safetensors")) as reader:
        assert reader.stored_rows("half", 3, 7).tobytes() == values.astype(np.float16)[3:7].tobytes()
        assert reader.stored_rows("first", 1, 2).tobytes() == values[1:2].tobytes()


def test_missing_folder_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match="nothing is not a folder"):
        open_checkpoint(tmp_path / "nothing")


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "model.safetensors"])
def test_a_missing_file_is_named(checkpoint: Path, name: str) -> None:
    (checkpoint / name).unlink()
    with pytest.raises(PackageError, match=name) as caught:
        open_checkpoint(checkpoint)
    assert caught.value.slug == "checkpoint-incomplete"


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json", "generation_config.json"])
@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff", b"[" * 100000])
def test_damaged_json_is_named(checkpoint: Path, name: str, content: bytes) -> None:
    (checkpoint / name).write_bytes(content)
    with pytest.raises(PackageError, match=name):
        open_checkpoint(checkpoint)


def test_template_file_wins_over_the_tokenizer_config(checkpoint: Path) -> None:
    (checkpoint / "chat_template.jinja").write_text("你好 {{ messages }}", encoding="utf-8")
    opened = open_checkpoint(checkpoint)
    assert opened.chat_template == "你好 {{ messages }}"
    assert "chat_template.jinja" in opened.file_names


def test_default_template_of_a_list_is_taken(checkpoint: Path) -> None:
    templates = [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]
    edit_json(checkpoint / "tokenizer_config.json", lambda document: document.update(chat_template=templates))
    assert open_checkpoint(checkpoint).chat_template == "D"


def test_absent_template_is_no_error(checkpoint: Path) -> None:
    (checkpoint / "tokenizer_config.json").unlink()
    assert open_checkpoint(checkpoint).chat_template is None


@pytest.mark.parametrize("template", [3, {}, [{"name": "x", "template": "y"}]])
def test_template_of_another_kind_is_refused(checkpoint: Path, template: object) -> None:
    edit_json(checkpoint / "tokenizer_config.json", lambda document: document.update(chat_template=template))
    with pytest.raises(PackageError, match="chat_template"):
        open_checkpoint(checkpoint)


def _first(document: dict[str, Any]) -> str:
    return next(iter(document["weight_map"]))


@pytest.mark.parametrize(
    "change",
    [
        lambda document: document.pop("weight_map"),
        lambda document: document.update(weight_map={}),
        lambda document: document["weight_map"].update({"model.extra": "model-00001-of-00003.safetensors"}),
        lambda document: document["weight_map"].pop(_first(document)),
        lambda document: document["weight_map"].update({_first(document): "model-00002-of-00003.safetensors"}),
        lambda document: document["weight_map"].update({_first(document): "missing.safetensors"}),
        lambda document: document["weight_map"].update({_first(document): "../model.safetensors"}),
        lambda document: document["weight_map"].update({_first(document): "/etc/passwd"}),
        lambda document: document["weight_map"].update({_first(document): 5}),
    ],
)
def test_an_index_that_disagrees_with_the_shards_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], object]
) -> None:
    folder = make_checkpoint(tmp_path / "sharded", shards=3)
    edit_json(folder / "model.safetensors.index.json", change)
    with pytest.raises(PackageError):
        open_checkpoint(folder)


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    folder = make_checkpoint(tmp_path / "sharded", shards=2)
    first, second = sorted(folder.glob("*-of-00002.safetensors"))
    second.write_bytes(first.read_bytes())
    with pytest.raises(PackageError, match="the index says"):
        open_checkpoint(folder)
