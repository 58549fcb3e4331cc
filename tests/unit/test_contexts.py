"""A context that is said to fit and does not, a table that leaves out a term, advice that does not help."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from launcher.contexts import Verdict, build_table, require_fit, table_text
from launcher.engine import Package
from launcher.engine_types import EngineOptions, KvType, MemoryPlan, PlanTerm, SessionOptions
from launcher.errors import MindnanoError, ResourceError
from launcher.list_contexts import run_list_contexts
from launcher.memory import Memory
from launcher.memory_plan import ProcessPlan, Runtime, plan_process, read_usage
from launcher.messages import Catalogue, Language
from launcher.model import context_table
from launcher.options.parse import parse
from launcher.system import SystemView
from tests.support.demo import require_demo

SCHEMA = json.loads(
    (Path(__file__).resolve().parents[2] / "launcher" / "schemas" / "list-contexts.json").read_text(encoding="utf-8")
)
AROUND = Runtime(resident=1000, to_import=0)


@dataclass
class Limits:
    max_context: int
    max_position: int
    token_count: int = 0


@dataclass
class FakePackage:
    """Weights of 1000 bytes; a cache of a byte per token (four with f32); 100 bytes per thread and checkpoint."""

    config: Any

    def plan(self, engine: EngineOptions, session: SessionOptions) -> MemoryPlan:
        if session.context > self.config.max_context:
            raise AssertionError("planned a context that the package does not allow")
        cache = session.context * (4 if session.kv_type is KvType.F32 else 1)
        sizes = {
            "kv_cache": cache,
            "scratch_scores": 100 * (engine.threads or 2),
            "prefix_checkpoints": 100 * session.checkpoints,
            "session_cache": session.session_cache_bytes,
        }
        terms = (
            PlanTerm(name="weights", bytes=1000, idle=1000, full=1000),
            *(PlanTerm(name=name, bytes=count, idle=0, full=count) for name, count in sizes.items()),
        )
        full = 1000 + sum(sizes.values())
        return MemoryPlan(
            terms=terms,
            allocated_bytes=full - 1000,
            mapped_bytes=1000,
            idle_bytes=1000,
            full_bytes=full,
            bytes_per_token=1,
        )


BIG = FakePackage(Limits(262144, 262144))


def memory(available: int) -> Memory:
    return Memory(total=1 << 40, available=available, cgroup_limit=None)


def table(max_context: int, max_position: int, available: int | None, **settings: Any) -> Any:
    package = FakePackage(Limits(max_context, max_position))
    known = None if available is None else memory(available)
    return build_table(package, "m", EngineOptions(), KvType.BF16, known, runtime=AROUND, **settings)


def full(context: int, engine: EngineOptions | None = None, **settings: Any) -> int:
    session = SessionOptions(context=context, **settings)
    return plan_process(BIG, engine or EngineOptions(), session, AROUND).full


def test_verdicts_hold_a_full_context_against_what_is_available() -> None:
    edge = full(32768, kv_type=KvType.BF16, checkpoints=4)
    found = table(65536, 16384, edge)
    verdicts = {row.context: row.verdict for row in found.rows}
    assert verdicts[16384] is Verdict.FITS
    assert verdicts[32768] is Verdict.FITS
    assert verdicts[65536] is Verdict.TOO_LARGE
    assert verdicts[131072] is Verdict.BEYOND_PACKAGE
    assert [row.context for row in found.rows if row.beyond_native] == [32768, 65536, 131072, 262144]
    assert found.largest == 32768
    assert table(65536, 16384, edge - 1).largest == 16384
    assert table(65536, 16384, 0).largest is None


def test_small_package_gets_a_row_for_its_own_limit() -> None:
    assert table(1000, 1000, None).largest == 1000


def test_checkpoints_and_session_cache_count() -> None:
    plain = table(8192, 8192, None, checkpoints=0).rows[0].plan
    assert table(8192, 8192, None, checkpoints=7).rows[0].plan.full == plain.full + 700
    cached = table(8192, 8192, None, checkpoints=0, session_cache=1 << 20).rows[0].plan
    assert (cached.idle, cached.full) == (plain.idle, plain.full + (1 << 20))


@pytest.mark.parametrize("available", [None, full(16384), 0])
def test_every_star_has_its_note(available: int | None) -> None:
    lines = table_text(table(65536, 16384, available), Catalogue(Language.ENGLISH)).splitlines()
    assert any(line.endswith("*") for line in lines)
    assert any(line.startswith("* beyond the 16K") for line in lines)


@pytest.mark.parametrize("language", list(Language))
def test_text_has_every_part_and_fits_a_terminal(language: Language) -> None:
    found = table(65536, 16384, full(32768, kv_type=KvType.BF16, checkpoints=4))
    texts = Catalogue(language)
    text = table_text(found, texts)
    parts = ["weights-mapped", "weights-resident", "checkpoints", "session-cache", "runtime", "context", "scratch"]
    parts += ["idle", "full", "reserved", "verdict"]
    for part in parts:
        assert texts(f"contexts-{part}") in text, part
    assert texts("contexts-kv", kv="bf16") in text
    assert f"{texts('contexts-fits')}*" in text
    assert "16K" in text.splitlines()[-2]
    widths = {sum(2 if ord(c) >= 0x2E80 else 1 for c in line) for line in text.splitlines()}
    assert max(widths) <= 80
    assert all(line == line.rstrip() for line in text.splitlines())


def test_document_follows_its_schema_and_adds_up() -> None:
    found = table(65536, 16384, 33768, session_cache=5).document()
    jsonschema.validate(found, SCHEMA)
    for row in found["contexts"]:
        for column in ("idle", "full"):
            assert (row[f"{column}_bytes"] or 0) == sum(term[column] for term in row["terms"].values())
    for change in ({"version": 1}, {"extra": 0}, {"kv_cache": "q4"}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(found | change, SCHEMA)


def test_every_kv_format_is_priced() -> None:
    row = table(8192, 8192, None).document()["contexts"][0]
    assert row["kv_cache_bytes"]["f32"] == 4 * row["kv_cache_bytes"]["bf16"] == 4 * 4096
    assert set(row["kv_cache_bytes"]) == {kind.label for kind in KvType}


def test_session_that_does_not_fit_is_refused_with_the_largest_that_does() -> None:
    edge = full(16384, kv_type=KvType.BF16)
    with pytest.raises(ResourceError) as caught:
        require_fit(BIG, EngineOptions(), SessionOptions(context=65536, kv_type=KvType.BF16), memory(edge), AROUND)
    assert caught.value.exit_code == 5
    assert "use --context 16384, or --force" in caught.value.hint


def test_session_that_fits_exactly_passes() -> None:
    session = SessionOptions(context=4096, kv_type=KvType.BF16)
    edge = full(4096, kv_type=KvType.BF16)
    require_fit(BIG, EngineOptions(), session, memory(edge), AROUND)
    with pytest.raises(ResourceError):
        require_fit(BIG, EngineOptions(), session, memory(edge - 1), AROUND)


def test_other_options_are_named_only_where_they_are_enough() -> None:
    wanted = SessionOptions(context=4096, kv_type=KvType.F32, checkpoints=4)
    eight = EngineOptions(threads=8)
    cases = {
        full(4096, eight, kv_type=KvType.BF16, checkpoints=4): {"--kv-cache"},
        full(4096, EngineOptions(threads=1), kv_type=KvType.F32, checkpoints=4): {"--kv-cache", "--threads 1"},
        full(4096, eight, kv_type=KvType.F32, checkpoints=4) - 1: {
            "--kv-cache",
            "--prefix-checkpoints 0",
            "--threads 1",
        },
        10: set(),
    }
    for available, expected in cases.items():
        with pytest.raises(ResourceError) as caught:
            require_fit(BIG, eight, wanted, memory(available), AROUND)
        named = {word for word in ("--kv-cache", "--prefix-checkpoints 0", "--threads 1") if word in caught.value.hint}
        assert named == expected, caught.value.hint
    assert "free memory" in caught.value.hint


def test_a_session_cache_that_does_not_fit_is_what_the_hint_makes_smaller() -> None:
    def needed(cache: int) -> int:
        session = SessionOptions(context=4096, kv_type=KvType.BF16, session_cache_bytes=cache)
        return plan_process(BIG, EngineOptions(), session, AROUND).full

    wanted = SessionOptions(context=4096, kv_type=KvType.BF16, session_cache_bytes=1 << 40)
    with pytest.raises(ResourceError) as caught:
        require_fit(BIG, EngineOptions(), wanted, memory(needed(100 << 20)), AROUND)
    assert "use --session-cache-mib 100, or --force" in caught.value.hint
    with pytest.raises(ResourceError) as caught:
        require_fit(BIG, EngineOptions(), wanted, memory(needed(0) - 1), AROUND)
    assert "--session-cache-mib" not in caught.value.hint


def test_unknown_memory_refuses_nothing() -> None:
    require_fit(BIG, EngineOptions(), SessionOptions(context=262144), None, AROUND)


def status(tmp_path: Path, text: str) -> SystemView:
    folder = tmp_path / "proc" / "self"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "status").write_text(text)
    return SystemView(root=tmp_path)


def test_the_program_is_measured_where_that_is_possible(tmp_path: Path) -> None:
    assert read_usage(SystemView(root=tmp_path)) is None
    assert read_usage(status(tmp_path, "VmRSS:\tmuch kB\nVmHWM:\t8 kB\n")) is None
    view = status(tmp_path, "Name:\tx\nVmHWM:\t   20480 kB\nVmRSS:\t   10240 kB\n")
    usage = read_usage(view)
    assert usage is not None
    assert (usage.resident, usage.peak) == (10 << 20, 20 << 20)
    assert Runtime.measured(view, complete=True).resident == 10 << 20
    assert Runtime.measured(view, complete=False).to_import > Runtime.measured(view, complete=True).to_import == 0
    assert Runtime.measured(SystemView(root=tmp_path / "none"), complete=True) == Runtime.typical()


def test_a_server_is_planned_with_what_constrained_replies_need() -> None:
    config: Any = Limits(8192, 8192, token_count=157_000)
    plain, more = (Runtime(resident=0, to_import=0, constrains=constrains) for constrains in (False, True))
    (added,) = set(more.terms(config, 4096)) - set(plain.terms(config, 4096))
    assert (added.name, added.idle, added.full) == ("grammar", 157_000 * 800, 157_000 * 800)


def plan_for(package: Package, *words: str) -> ProcessPlan:
    options = parse(["--list-contexts", "--demo", *words], {}, [])
    found = context_table(package, "m", options, SystemView()).rows[0].plan
    assert found is not None
    return found


def test_options_change_the_answer() -> None:
    """With the engine's own plan: what each option adds is in the term that it names."""
    with Package(require_demo()) as package:
        plain = {term.name: term.full for term in plan_for(package).terms}
        for words, changed in (
            (("--kv-cache", "f32"), {"kv_cache"}),
            (("--session-cache-mib", "64"), {"session_cache"}),
            (("--prefix-checkpoints", "0"), {"prefix_checkpoints"}),
            (("--threads", "64"), {"scratch_scores", "scratch_attention"}),
            (("--mtp",), {"mtp_weights", "mtp_kv_cache", "package_tables"}),
        ):
            found = {term.name: term.full for term in plan_for(package, *words).terms}
            names = {name for name in found if found[name] != plain.get(name, 0)} - {"runtime"}
            assert names == changed, words
    assert plain["session_cache"] == 0


def test_the_command_prints_what_the_options_ask_for(capsys: pytest.CaptureFixture[str]) -> None:
    require_demo()
    words = ["--list-contexts", "--demo", "--prefix-checkpoints", "2", "--session-cache-mib", "3", "--mtp"]
    assert run_list_contexts(parse([*words, "--json"], {}, []), {}, Catalogue(Language.ENGLISH)) == 0
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, SCHEMA)
    assert (found["prefix_checkpoints"], found["session_cache_bytes"], found["mtp"]) == (2, 3 << 20, True)
    assert found["contexts"][0]["terms"]["mtp_weights"]["full"] > 0
    assert run_list_contexts(parse(words, {}, []), {}, Catalogue(Language.ENGLISH)) == 0
    assert "MTP weights" in capsys.readouterr().out


def test_a_context_that_the_package_does_not_allow_still_gets_the_table(capsys: pytest.CaptureFixture[str]) -> None:
    require_demo()
    options = parse(["--list-contexts", "--demo", "--context", "256K"], {}, [])
    assert run_list_contexts(options, {}, Catalogue(Language.ENGLISH)) == 0
    assert "4K" in capsys.readouterr().out


def test_an_error_is_a_document_too(capsys: pytest.CaptureFixture[str]) -> None:
    options = parse(["--list-contexts", "--json", "--model", "/nonexistent.l3r"], {}, [])
    with pytest.raises(MindnanoError) as caught:
        run_list_contexts(options, {}, Catalogue(Language.ENGLISH))
    found = json.loads(capsys.readouterr().out)
    jsonschema.validate(found, SCHEMA)
    assert found["exit_code"] == caught.value.exit_code
    assert found["error"]["slug"] == caught.value.slug
