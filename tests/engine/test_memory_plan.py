"""Sessions take exactly the memory that the plan names, at once, and none while tokens are evaluated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from engine.build import build_executable, build_library
from launcher.engine import Engine, Package, Session
from launcher.engine_library import Library
from launcher.engine_types import Dtype, EngineOptions, KvType, ModelConfig, SessionOptions
from launcher.errors import UsageError
from tests.support.kv_rows import row_bytes
from tests.support.packages import INTEGER, ODD, alternating, uniform, write_package
from tests.support.programs import ENGINE_TESTS, run_program

MAPPED = ("weights", "mtp_weights", "package_tables")


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
    row = row_bytes(options.kv_type, config.kv_lora_rank, config.qk_rope_head_dim)
    state, windows = 4 * kda * width * config.head_dim, 4 * kda * (config.conv_kernel - 1) * 3 * width
    slots = options.checkpoints
    terms = {
        "recurrent_state": aligned(state),
        "conv_state": aligned(windows),
        "kv_cache": aligned(mla * options.context * row),
        "timeline": aligned(4 * options.context),
        "logits": aligned(4 * config.vocab_size),
        # three words say what a slot holds
        "prefix_checkpoints": aligned(12 * slots) + aligned(state * slots) + aligned(windows * slots),
    }
    if mtp:
        terms["mtp_kv_cache"] = aligned(options.context * row)
    return terms


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
                            options = SessionOptions(
                                context=context, kv_type=kv_type, chunk=chunk, checkpoints=context % 4
                            )
                            check_plan(package, engine, settings, options)


@pytest.mark.parametrize(
    ("kind", "expected"), [("f32", 2304), ("bf16", 1152), ("fp16", 1152), ("fp8", 644), ("int8", 644)]
)
def test_a_token_of_the_full_model_takes(kind: str, expected: int, tmp_path: Path) -> None:
    """512 latent and 64 rotary values; the difference of two contexts leaves out what does not grow."""
    config = replace(INTEGER, kv_lora_rank=512, qk_rope_head_dim=64)
    kv_type = next(one for one in KvType if one.label == kind)
    with Package(write_package(tmp_path / "p.l3r", config), library=Library(build_library())) as package:
        caches = [
            next(term.bytes for term in plan.terms if term.name == "kv_cache")
            for context in (64, 128)
            for plan in [package.plan(EngineOptions(), SessionOptions(context=context, kv_type=kv_type))]
        ]
    layers = sum((i + 1) % config.layer_group_size == 0 for i in range(config.layer_count))
    assert caches[1] - caches[0] == 64 * layers * expected


def check_plan(package: Package, engine: Engine, settings: EngineOptions, options: SessionOptions) -> None:
    plan = package.plan(settings, options)
    terms = {term.name: term.bytes for term in plan.terms}
    assert len(terms) == len(plan.terms)
    assert all(name.isidentifier() for name in terms)
    mapped = [terms.pop(name) for name in MAPPED if name in terms]
    assert len(mapped) == 2 + settings.mtp
    assert sum(mapped) == plan.mapped_bytes
    by_group = [sum(t.length for t in package.tensors() if t.group == group) for group in (0, 1)]
    assert mapped[:-1] == by_group[: 1 + settings.mtp]
    assert (terms.pop("session_cache"), terms.pop("npu_staging")) == (0, 0)
    assert sum(terms.values()) == plan.allocated_bytes
    expected = persistent_terms(package.config, options, settings.mtp)
    assert {name: terms[name] for name in expected} == expected
    assert ("mtp_kv_cache" in terms) == settings.mtp
    with Session(engine, options) as session:
        assert session.allocated == plan.allocated_bytes


def test_a_plan_tells_idle_from_full(path: Path) -> None:
    options = SessionOptions(context=128, checkpoints=3, session_cache_bytes=1 << 20)
    with Package(path, library=Library(build_library())) as package:
        plan = package.plan(EngineOptions(threads=2, mtp=True), options)
        poisoned = package.plan(EngineOptions(threads=2, mtp=True), replace(options, poison=True))
        size = path.stat().st_size
    assert sum(term.bytes for term in plan.terms) == plan.full_bytes
    assert sum(term.idle for term in plan.terms) == plan.idle_bytes
    assert sum(term.full for term in plan.terms) == plan.full_bytes
    assert plan.mapped_bytes <= size < plan.mapped_bytes + 65536  # all but a gap before the MTP layer
    assert plan.full_bytes == plan.allocated_bytes + plan.mapped_bytes + (1 << 20)
    for term in plan.terms:
        assert term.full == term.bytes, term
        assert term.idle == (term.bytes if term.name in {*MAPPED, "session", "rope"} else 0), term
    assert poisoned.idle_bytes == plan.full_bytes - (1 << 20)


def test_slots_and_budgets_have_limits(path: Path) -> None:
    with Package(path, library=Library(build_library())) as package:
        for options, message in (
            (SessionOptions(context=8, checkpoints=1025), "1025 checkpoints; at most 1024 are possible"),
            (SessionOptions(context=8, session_cache_bytes=1 << 51), "a session cache of 2251799813685248 bytes"),
        ):
            with pytest.raises(UsageError, match=message):
                package.plan(EngineOptions(threads=1), options)


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
