"""Sampling defaults of a package that are ignored or believed blindly, packages without what a chat needs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from launcher.engine_types import KvType, Section
from launcher.errors import PackageError, UsageError
from launcher.model import metadata_of, model_name, package_path, sampling_for, session_options, template_of
from launcher.options.parse import SamplingOverrides, parse


@dataclass
class FakePackage:
    sections: dict[Section, bytes] = field(default_factory=dict)
    path: Path = Path("m.l3r")

    def section(self, kind: Section) -> bytes | None:
        return self.sections.get(kind)


@dataclass
class Limits:
    max_context: int
    max_position: int


def package(**sections: bytes) -> Any:
    return FakePackage({Section[name]: data for name, data in sections.items()})


def test_defaults_of_the_package_hold_unless_overridden() -> None:
    metadata = {"generation": {"temperature": 0.7, "top_p": 0.9, "top_k": 20}}
    found = sampling_for(metadata, SamplingOverrides(), greedy=False)
    assert (found.temperature, found.top_p, found.top_k) == (0.7, 0.9, 20)
    found = sampling_for(metadata, SamplingOverrides(temperature=0.0, top_k=0, min_p=0.1, seed=5), greedy=False)
    assert (found.temperature, found.top_p, found.top_k, found.min_p, found.seed) == (0.0, 0.9, 0, 0.1, 5)


def test_greedy_is_only_a_default() -> None:
    metadata = {"generation": {"temperature": 0.7}}
    assert sampling_for(metadata, SamplingOverrides(), greedy=True).temperature == 0.0
    assert sampling_for(metadata, SamplingOverrides(temperature=0.3), greedy=True).temperature == 0.3


@pytest.mark.parametrize(
    "generation", [{"temperature": -1}, {"top_p": 2}, {"top_k": "many"}, {"temperature": True}, {"top_p": float("nan")}]
)
def test_defaults_out_of_range_are_refused(generation: dict[str, object]) -> None:
    with pytest.raises(PackageError) as caught:
        sampling_for({"generation": generation}, SamplingOverrides(), greedy=False)
    assert caught.value.slug == "package-metadata"


def test_each_start_draws_another_seed() -> None:
    assert len({sampling_for({}, SamplingOverrides(), greedy=True).seed for _ in range(4)}) == 4


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff"])
def test_bad_metadata_is_refused(data: bytes) -> None:
    with pytest.raises(PackageError):
        metadata_of(package(METADATA=data))


def test_name_falls_back_to_the_file() -> None:
    assert model_name({"name": "x"}, Path("m.l3r")) == "x"
    assert model_name({"name": None}, Path("m.l3r")) == "m"


def test_template_sees_the_special_tokens() -> None:
    metadata = {"special_tokens": {"eos": "<e>", "bos": None}}
    template = template_of(package(CHAT_TEMPLATE=b"{{ eos_token }}{{ bos_token is defined }}"), metadata)
    assert template.render([], enable_thinking=True) == "<e>False"


@pytest.mark.parametrize(
    ("sections", "slug"), [({}, "package-no-template"), ({"CHAT_TEMPLATE": b"\xff"}, "template-invalid")]
)
def test_missing_and_undecodable_templates_are_refused(sections: dict[str, bytes], slug: str) -> None:
    with pytest.raises(PackageError) as caught:
        template_of(package(**sections), {})
    assert caught.value.slug == slug


def test_default_context_is_the_models_own_up_to_8k() -> None:
    options = parse(["--demo"], {})
    for limits, expected in ((Limits(8192, 4096), 4096), (Limits(262144, 131072), 8192), (Limits(100, 100), 100)):
        assert session_options(options, limits).context == expected  # type: ignore[arg-type]
    assert session_options(options, Limits(8192, 4096)).kv_type is KvType.BF16  # type: ignore[arg-type]


def test_context_beyond_the_package_is_refused() -> None:
    with pytest.raises(UsageError, match="allows 8192"):
        session_options(parse(["--demo", "--context", "16K"], {}), Limits(8192, 4096))  # type: ignore[arg-type]


def test_demo_is_looked_up(tmp_path: Path) -> None:
    file = tmp_path / "d.l3r"
    file.write_text(json.dumps({}))
    assert package_path(parse(["--demo"], {}), {"MINDNANO_DEMO_PACKAGE": str(file)}) == file
    with pytest.raises(PackageError) as caught:
        package_path(parse(["--demo"], {}), {"MINDNANO_DEMO_PACKAGE": str(tmp_path / "none")})
    assert caught.value.slug == "demo-missing"
