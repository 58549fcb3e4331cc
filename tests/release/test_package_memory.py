"""MODEL.json says that sessions cost something else than the engine plans."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest

from launcher.engine import Package
from launcher.engine_types import EngineOptions, KvType, SessionOptions
from launcher.integrity.model_info import MemoryFigures, read_model_info
from release.folder.agreement import model_faults
from release.package.memory import SOURCE, memory_of
from tests.release.conftest import Convert
from tests.support.demo import require_demo
from tests.support.release_folders import faults, look, make_release, reseal, stand_in_program

_ALIGNMENT = 1024
"""Where a buffer ends between two of the steps that buffers are aligned to."""


def check(path: Path) -> None:
    with Package(path) as package:
        terms = memory_of(package).terms
        last = package.config.max_context
        contexts = {min(1024, last), last // 2 + 7, last}  # from a whole step of prefill on
        for context, kind, slots, threads, mtp in product(contexts, KvType, (0, 1, 4), (1, 3), (False, True)):
            if mtp and not package.has_mtp:
                continue
            engine = EngineOptions(threads=threads, mtp=mtp)
            plan = package.plan(engine, SessionOptions(context=context, kv_type=kind, checkpoints=slots))
            full = terms["fixed"] + slots * terms["prefix_checkpoint"] + threads * terms["thread"]
            full += context * (terms[f"token_{kind.label}"] + threads * terms["token_and_thread"])
            full += (terms["mtp_fixed"] + context * terms[f"mtp_token_{kind.label}"]) if mtp else 0
            assert abs(full - plan.full_bytes) <= _ALIGNMENT, (context, kind, slots, threads, mtp)
            assert terms["idle"] + (terms["mtp_fixed"] if mtp else 0) == plan.idle_bytes


def test_coefficients_do_not_give_the_plan() -> None:
    check(require_demo())


@pytest.mark.parametrize("drop", [False, True])
def test_coefficients_of_a_small_package_do_not_give_the_plan(micro: Path, convert: Convert, drop: bool) -> None:
    check(convert(micro, "w8a8", drop_mtp=drop))


def test_wrong_memory_in_a_release_passes(tmp_path: Path) -> None:
    program = stand_in_program(tmp_path / "program")
    folder = make_release(tmp_path / "out", program, require_demo())
    info = read_model_info(folder)
    assert info is not None
    assert info.memory is not None
    assert info.memory.source == SOURCE
    document = json.loads((folder / "MODEL.json").read_bytes())
    document["memory"]["terms"]["fixed"] //= 2
    (folder / "MODEL.json").write_text(json.dumps(document))
    reseal(folder)
    assert "memory" in faults(look(folder))["package"][0]


def test_another_versions_plan_is_held_against_ours(tmp_path: Path) -> None:
    program = stand_in_program(tmp_path / "program")
    folder = make_release(tmp_path / "out", program, require_demo())
    info = read_model_info(folder)
    assert info is not None
    from release.package.facts import read_package_facts

    package, _ = read_package_facts(require_demo())
    assert package is not None
    other = replace(info, memory=MemoryFigures(source="planned by another version", terms={"fixed": 1}))
    assert model_faults(other, package) == []
