"""Rockchip's library inside the portable program is changed, unnamed, without its terms, or not the one in use."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from pathlib import Path

import pytest

from bundle import assemble, pipeline, rknn_source
from bundle.assemble import Freight
from bundle.runner import Runner
from bundle.stages import plan
from bundle.store import Store
from launcher.payload.file import Payload
from notices.components import load_components
from tests.bundle.inventories import ROCKCHIP_TEXT, with_known_terms
from tests.bundle.portable import HOST, result, run
from tests.support.rknn_stand_in import build_stand_in


@dataclasses.dataclass(frozen=True)
class Built:
    """The program, and the library that went into it."""

    program: Path
    library: bytes


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """The program of this checkout with a stand-in for librknnrt, whose terms count as known."""
    result(HOST)
    folder = tmp_path_factory.mktemp("rknn")
    library = build_stand_in(folder / "library")
    (library.parent / rknn_source.TERMS).write_bytes(ROCKCHIP_TEXT)
    freight = Freight(runtime=rknn_source.from_file(library), demo=None)
    store = Store(root=folder / "store")
    store.root.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(assemble, "load_components", lambda: with_known_terms(load_components()))
        stages = pipeline.stages(HOST, freight)
        for step in plan(stages["assemble"].needs):
            found = Store.of_user().find(step)
            assert found is not None
            (store.root / step.entry).symlink_to(found)
        runner = Runner(store=store, say=lambda _line: None, jobs=1, foreign=pipeline.foreign_paths())
        made = runner.build([stages["assemble"]])[-1].folder
    return Built(program=made / assemble.NAME, library=library.read_bytes())


def test_the_library_is_carried_as_it_is(built: Built) -> None:
    with Payload(str(built.program)) as payload:
        assert payload.read("lib/librknnrt.so") == built.library


def test_its_terms_and_its_digest_are_there(built: Built) -> None:
    terms = run(built.program, "--notices", "librknnrt")
    assert ROCKCHIP_TEXT.decode().strip() in terms.stdout
    bill = json.loads(run(built.program, "--sbom").stdout)
    [component] = [entry for entry in bill["components"] if entry["bom-ref"] == "librknnrt"]
    assert component["version"] == "2.3.2"
    assert component["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(built.library).hexdigest()}]


def test_version_and_check_name_it(built: Built) -> None:
    document = json.loads(run(built.program, "--version", "--json").stdout)
    assert document["rknn_runtime"] is not None
    assert hashlib.sha256(built.library).hexdigest() in json.dumps(document["rknn_runtime"])
    assert "2.3.2" in run(built.program, "--check").stdout


def test_other_terms_than_those_that_were_read_stop_the_build(built: Built, tmp_path: Path) -> None:
    from notices.errors import NoticeError

    library = tmp_path / "librknnrt.so"
    library.write_bytes(built.library)
    (tmp_path / rknn_source.TERMS).write_text("Other terms.\n")
    stages = pipeline.stages(HOST, Freight(runtime=rknn_source.from_file(library), demo=None))
    store = Store(root=tmp_path / "store")
    store.root.mkdir()
    for step in plan(stages["assemble"].needs):
        (store.root / step.entry).symlink_to(Store.of_user().result(step))
    runner = Runner(store=store, say=lambda _line: None, jobs=1)
    with pytest.raises(NoticeError, match="the terms are others"):
        runner.build([stages["assemble"]])
