"""A package holds exactly the assets of its manifest, or it is not written at all."""

from __future__ import annotations

import json
import resource
import shutil
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.engine_types import Dtype, Section
from launcher.errors import InternalError, MindnanoError, PackageError, ResourceError, UsageError
from release import output
from release.package.l3r import SectionPart, TensorPart, plan_file, write_file
from release.package.pack import PackOptions, pack
from release.quantization.quantize import QuantizeOptions, quantize
from tests.support.checkpoints import edit_json


@pytest.fixture(scope="module")
def assets(micro: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Quantised assets; not to be changed."""
    folder = tmp_path_factory.mktemp("assets") / "assets"
    quantize(QuantizeOptions(source=micro, output=folder, recipe="w4a8"))
    return folder


@pytest.fixture
def copy(assets: Path, tmp_path: Path) -> Path:
    """Assets that a test may damage."""
    return Path(shutil.copytree(assets, tmp_path / "assets"))


def run(folder: Path, tmp_path: Path, **options: Any) -> Path:
    return pack(PackOptions(manifest=folder / "manifest.json", output=tmp_path / "out.l3r", **options))


def assert_refused(folder: Path, tmp_path: Path, match: str | None = None) -> MindnanoError:
    with pytest.raises(PackageError, match=match) as caught:
        run(folder, tmp_path)
    assert not (tmp_path / "out.l3r").exists()
    assert not (tmp_path / "out.l3r.partial").exists()
    return caught.value


def test_moving_the_assets_changes_nothing(assets: Path, copy: Path, tmp_path: Path) -> None:
    first = run(assets, tmp_path).read_bytes()
    assert first == run(copy, tmp_path, force=True).read_bytes()


def test_an_asset_with_one_changed_bit_is_refused_by_name(copy: Path, tmp_path: Path) -> None:
    path = copy / "tensors" / "model.layers.2.mlp.experts.up_proj.weight.bin"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    error = assert_refused(copy, tmp_path, "experts.up_proj")
    assert error.slug == "asset-changed"


def test_a_changed_section_is_refused(copy: Path, tmp_path: Path) -> None:
    text = (copy / "metadata.json").read_text()
    (copy / "metadata.json").write_text(text.replace("w4a8", "w9a9"))
    assert_refused(copy, tmp_path, "metadata.json")


@pytest.mark.parametrize("damage", ["missing", "truncated", "longer"])
def test_an_asset_of_another_size_is_refused_before_anything_is_written(
    copy: Path, tmp_path: Path, damage: str
) -> None:
    path = copy / "tensors" / "lm_head.weight.bin"
    data = path.read_bytes()
    path.unlink() if damage == "missing" else path.write_bytes(data[:-1] if damage == "truncated" else data + b"\0")
    assert_refused(copy, tmp_path, "lm_head")


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    "change",
    [
        lambda manifest: manifest.update(schema="other"),
        lambda manifest: manifest.update(version=2),
        lambda manifest: manifest.pop("tensors"),
        lambda manifest: manifest.update(tensors={}),
        lambda manifest: manifest.update(tensors=[]),
        lambda manifest: manifest.update(sections=[]),
        lambda manifest: manifest["sections"].append(manifest["sections"][0]),
        lambda manifest: manifest["sections"][0].update(kind="unknown"),
        lambda manifest: manifest["tensors"].reverse(),
        lambda manifest: manifest["tensors"].pop(3),
        lambda manifest: manifest["tensors"].append(manifest["tensors"][-1]),
        lambda manifest: manifest["tensors"][0].update(name="another"),
        lambda manifest: manifest["tensors"][0].update(group=1),
        lambda manifest: manifest["tensors"][0].update(shape=[64, 320]),
        lambda manifest: manifest["tensors"][0].update(dtype="Q4X8"),
        lambda manifest: manifest["tensors"][0].update(dtype="Q3"),
        lambda manifest: manifest["tensors"][0].update(bytes=-1),
        lambda manifest: manifest["tensors"][0].update(bytes="1"),
        lambda manifest: manifest["tensors"][0].update(sha256="00"),
        lambda manifest: manifest["tensors"][0].update(sha256="z" * 64),
        lambda manifest: manifest["tensors"][0].update(path="../../secret"),
        lambda manifest: manifest["tensors"][0].update(path="/secret"),
        lambda manifest: manifest["tensors"][0].update(path=""),
    ],
)
def test_a_manifest_that_describes_no_package_is_refused(copy: Path, tmp_path: Path, change: Change) -> None:
    edit_json(copy / "manifest.json", change)
    assert_refused(copy, tmp_path)


@pytest.mark.parametrize("content", [b"", b"[]", b"{", b"\xff\xff", b"[" * 100000])
def test_a_manifest_that_is_no_json_object_is_refused(copy: Path, tmp_path: Path, content: bytes) -> None:
    (copy / "manifest.json").write_bytes(content)
    assert_refused(copy, tmp_path)


def test_a_missing_manifest_is_named(tmp_path: Path) -> None:
    with pytest.raises(PackageError, match=r"manifest\.json does not exist"):
        run(tmp_path, tmp_path)


def test_an_existing_package_is_replaced_only_with_force(assets: Path, tmp_path: Path) -> None:
    (tmp_path / "out.l3r").write_bytes(b"old")
    with pytest.raises(UsageError):
        run(assets, tmp_path)
    assert (tmp_path / "out.l3r").read_bytes() == b"old"
    run(assets, tmp_path, force=True)
    assert (tmp_path / "out.l3r").stat().st_size > 65536


def test_a_folder_is_never_replaced(assets: Path, tmp_path: Path) -> None:
    (tmp_path / "out.l3r").mkdir()
    with pytest.raises(UsageError):
        run(assets, tmp_path, force=True)


def test_a_failure_keeps_the_earlier_package(copy: Path, tmp_path: Path) -> None:
    (tmp_path / "out.l3r").write_bytes(b"old")
    path = copy / "tensors" / "lm_head.weight.bin"
    path.write_bytes(b"\1" * path.stat().st_size)
    with pytest.raises(PackageError):
        run(copy, tmp_path, force=True)
    assert (tmp_path / "out.l3r").read_bytes() == b"old"


def test_a_full_disk_is_noticed_before_the_work(assets: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(output.shutil, "disk_usage", lambda _path: usage(1 << 40, 1 << 40, 1 << 20))
    with pytest.raises(ResourceError, match=r"out\.l3r needs"):
        run(assets, tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_write_that_fails_is_a_resource_error(assets: Path, tmp_path: Path) -> None:
    before = sorted(tmp_path.iterdir())
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, hard))
    try:
        with pytest.raises(ResourceError, match="File too large"):
            run(assets, tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(tmp_path.iterdir()) == before


def part(name: str = "a", group: int = 0, shape: tuple[int, ...] = (1,)) -> TensorPart:
    return TensorPart(name=name, dtype=Dtype.F32, shape=shape, group=group, length=4, sha256=bytes(32))


@pytest.mark.parametrize(
    "tensors",
    [
        [],
        [part(group=1)],
        [part(), part(group=1), part()],
        [part(name="x" * 80)],
        [part(name="é" * 40)],
        [part(shape=())],
        [part(shape=(1, 1, 1, 1))],
        [part()] * 65537,
    ],
)
def test_what_the_format_cannot_hold_is_refused(tensors: list[TensorPart]) -> None:
    with pytest.raises(PackageError):
        plan_file([], tensors)


def test_a_part_of_another_length_than_planned_is_a_bug(tmp_path: Path) -> None:
    plan = plan_file([SectionPart(kind=Section.CONFIG, length=1, sha256=bytes(32))], [part()])
    for lengths in ((1, 5), (70000, 4)):
        with (tmp_path / "out").open("wb") as file, pytest.raises(InternalError):
            write_file(file, plan, [lambda target, size=size: target.write(bytes(size)) for size in lengths])


def test_manifest_bytes_are_stable(assets: Path) -> None:
    text = (assets / "manifest.json").read_text()
    assert json.dumps(json.loads(text), indent=1, ensure_ascii=False) + "\n" == text
