"""What a package's metadata say reaches a release although it is none of what a release can say."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from release.package.facts import checkpoint_sha256, read_package_facts, sources_of
from release.package.pack import PackOptions, pack
from release.quantization.quantize import QuantizeOptions, quantize


@pytest.fixture(scope="module")
def assets(micro: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("facts") / "assets"
    return quantize(QuantizeOptions(source=micro, output=folder, recipe="w8a8", license="MIT"))


def package_with(assets: Path, output: Path, metadata: bytes) -> Path:
    """The package with another metadata section."""
    document = json.loads(assets.read_bytes())
    section = next(entry for entry in document["sections"] if entry["kind"] == "metadata")
    section["bytes"], section["sha256"] = len(metadata), hashlib.sha256(metadata).hexdigest()
    place = assets.parent / section["path"]
    original = place.read_bytes()
    changed = assets.with_name("changed.json")
    changed.write_text(json.dumps(document))
    try:
        place.write_bytes(metadata)
        return pack(PackOptions(manifest=changed, output=output))
    finally:
        place.write_bytes(original)


def metadata_of(assets: Path) -> dict[str, Any]:
    section = next(entry for entry in json.loads(assets.read_bytes())["sections"] if entry["kind"] == "metadata")
    document: dict[str, Any] = json.loads((assets.parent / section["path"]).read_bytes())
    return document


@pytest.mark.parametrize("recipe", ["", "w4`|\n", "x" * 61, 5, None, ["w4a8"]])
def test_a_recipe_that_is_no_word_is_taken(assets: Path, tmp_path: Path, recipe: object) -> None:
    metadata = {**metadata_of(assets), "quantization": {"recipe": recipe}}
    facts, gaps = read_package_facts(package_with(assets, tmp_path / "x.l3r", json.dumps(metadata).encode()))
    assert facts is None
    assert "recipe" in gaps[0]


@pytest.mark.parametrize("data", [b"[" * 100_000, b"[]", b"\xff", b"{}"])
def test_metadata_of_any_content_end_in_a_traceback(assets: Path, tmp_path: Path, data: bytes) -> None:
    facts, gaps = read_package_facts(package_with(assets, tmp_path / "x.l3r", data))
    assert facts is None
    assert gaps


@pytest.mark.parametrize(
    "source",
    [
        5,
        {"files": 5},
        {"files": [5, {"path": 1, "bytes": 1, "sha256": "0" * 64}]},
        {"files": [{"path": "a", "bytes": "many", "sha256": "0" * 64}]},
        {"files": [{"path": "a", "bytes": True, "sha256": "0" * 64}]},
        {"files": [{"path": "../a", "bytes": 1, "sha256": "0" * 64}]},
        {"files": [{"path": "\ud800", "bytes": 1, "sha256": "0" * 64}]},
        {"files": [{"path": "a", "bytes": 1, "sha256": "0"}]},
    ],
)
def test_a_source_that_is_none_is_taken(assets: Path, tmp_path: Path, source: object) -> None:
    metadata = {**metadata_of(assets), "source": source, "created_by": "\x1b[0m\n| x"}
    facts, gaps = read_package_facts(package_with(assets, tmp_path / "x.l3r", json.dumps(metadata).encode()))
    assert facts is not None, gaps
    assert facts.sources == ()
    assert checkpoint_sha256(facts.sources) is None
    assert facts.created_by == "unknown"


def test_the_digest_of_a_checkpoint_is_not_that_of_its_list(assets: Path) -> None:
    files = metadata_of(assets)["source"]["files"]
    text = "".join(sorted(f"{file['sha256']}  {file['path']}\n" for file in files))
    assert checkpoint_sha256(sources_of(metadata_of(assets))) == hashlib.sha256(text.encode()).hexdigest()
