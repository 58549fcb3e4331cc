"""Sessions take exactly the memory that the plan names, at once, and none while tokens are evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest

from engine.build import build_executable, build_library
from launcher.engine import Engine, Package, Session
from launcher.engine_library import Library
from launcher.engine_types import Dtype, EngineOptions, KvType, ModelConfig, SessionOptions
from tests.support.packages import INTEGER, ODD, alternating, uniform, write_package
from tests.support.programs import ENGINE_TESTS, run_program


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_package(tmp_path_factory.mktemp("package") / "small.l3r")


def aligned(count: int) -> int:
    return -(-count // 64) * 64


def persistent_terms(config: ModelConfig, options: SessionOptions, mtp: bool) -> dict[str, int]:
    """What the timeline itself needs, from the definitions of the states and caches."""
    mla = sum((i + 1) % config.layer_group_size == 0 for i in range(config.layer_count))
    kda = config.layer_count - mla
    width = config.head_count * config.head_dim
    row = (config.kv_lora_rank + config.qk_rope_head_dim) * (4 if options.kv_type is KvType.F32 else 2)
    terms = {
        "recurrent_state": 4 * kda * width * config.head_dim,
        "conv_state": 4 * kda * (config.conv_kernel - 1) * 3 * width,
        "kv_cache": mla * options.context * row,
        "timeline": 4 * options.context,
        "logits": 4 * config.vocab_size,
    }
    if mtp:
        terms["mtp_kv_cache"] = options.context * row
    return {name: aligned(count) for name, count in terms.items()}


@pytest.mark.parametrize("config", [INTEGER, ODD], ids=["integer", "odd"])
def test_the_plan_is_what_sessions_hold(config: ModelConfig, tmp_path: Path) -> None:
    layouts = alternating if config is INTEGER else uniform(Dtype.BF16X8)
    path = write_package(tmp_path / "p.l3r", config, layouts)
    with Package(path, library=Library(build_library())) as package:
        for threads in (1, 2, 4):
            for mtp in (False, True):
                settings = EngineOptions(threads=threads, mtp=mtp)
                with Engine(package, settings) as engine:
                    for context, chunk in ((1, 0), (7, 3), (64, 1), (128, 0), (128, 4096)):
                        for kv_type in KvType:
                            options = SessionOptions(context=context, kv_type=kv_type, chunk=chunk)
                            check_plan(package, engine, settings, options)


def check_plan(package: Package, engine: Engine, settings: EngineOptions, options: SessionOptions) -> None:
    plan = package.plan(settings, options)
    terms = {term.name: term.bytes for term in plan.terms}
    assert len(terms) == len(plan.terms)
    assert all(name.isidentifier() for name in terms)
    assert terms.pop("weights_mapped") == plan.mapped_bytes
    assert plan.mapped_bytes == sum(t.length for t in package.tensors() if settings.mtp or t.group == 0)
    assert sum(terms.values()) == plan.allocated_bytes
    expected = persistent_terms(package.config, options, settings.mtp)
    assert {name: terms[name] for name in expected} == expected
    assert ("mtp_kv_cache" in terms) == settings.mtp
    with Session(engine, options) as session:
        assert session.allocated == plan.allocated_bytes


@pytest.fixture(scope="module")
def counter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """tests/engine/count_allocations.c with a debug build of the engine."""
    folder = tmp_path_factory.mktemp("counter")
    source = ENGINE_TESTS / "count_allocations.c"
    return build_executable([source], source.stem, debug=True, extra_flags=("-Wl,--wrap=mmap",), out=folder)


def test_sessions_take_from_the_system_what_the_plan_says(counter: Path, path: Path) -> None:
    result = run_program([counter, path, "memory"])
    assert result.returncode == 0, result.stderr
    lines = [list(map(int, line.split())) for line in result.stdout.splitlines()]
    assert len(lines) == 12
    for planned, reported, measured, allocations in lines:
        assert planned == reported == measured
        assert allocations == 1


def test_nothing_is_allocated_while_tokens_are_evaluated_drafted_and_sampled(counter: Path, path: Path) -> None:
    control = run_program([counter, path, "control"])
    assert (control.returncode, control.stdout) == (0, "2\n"), "the counter does not count"
    result = run_program([counter, path, "decode"])
    assert (result.returncode, result.stdout) == (0, "0\n"), result.stderr


def test_debug_builds_abort_where_evaluation_allocates(counter: Path, path: Path) -> None:
    result = run_program([counter, path, "guard"])
    assert result.returncode < 0, result.stdout
    assert result.stdout == ""
