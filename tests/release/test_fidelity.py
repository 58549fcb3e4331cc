"""`mindnano fidelity`: figures of other logits than the packages', and w4a8 worse than plain rounding."""

from __future__ import annotations

import json
import shutil
import xml.etree.ElementTree
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from launcher.engine import Package
from launcher.engine_types import KvType
from launcher.errors import DeviceError, MindnanoError, PackageError, UsageError
from release import cli
from release.demo.evaluation_text import EVALUATION_TEXT
from release.demo.rounding import BEGIN, CARD, DOCUMENT, END, replaced
from release.fidelity import compare as module
from release.fidelity.compare import FidelityOptions, fidelity
from release.fidelity.report import Comparison, FidelityReport, markdown
from release.layouts.weights import is_quantized
from tests.support.checkpoints import edit_json, make_checkpoint
from tests.support.dimensions import Dimensions
from tests.support.reference import Reference, checkpoint_weights, mean_kl, package_weights

Convert = Callable[..., Path]
CHECKPOINT = EVALUATION_TEXT.with_name("checkpoint")
TEXT = "The quick brown fox jumps over the lazy dog. " * 3


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT, encoding="utf-8")
    return path


def measure(reference: Path, package: Path, text: Path, **options: object) -> FidelityReport:
    return fidelity(
        FidelityOptions(reference=reference, packages=(package,), texts=(text,), threads=1, **options)  # type: ignore[arg-type]
    )


def find(report: FidelityReport, kv_cache: str, against: str = "reference") -> Comparison:
    (found,) = (each for each in report.of(against) if each.kv_cache == kv_cache)
    return found


def test_figures_differ_from_those_of_the_float64_model(micro: Path, convert: Convert, text: Path) -> None:
    """The checkpoint and its bf16 package, both computed by the NumPy model; windows of 32 tokens begin afresh."""
    path = convert(micro, "bf16")
    report = measure(micro, path, text, context=32, kv_types=(KvType.F32,))
    assert report.reference.recipe == "f32"
    expected, actual, targets = [], [], []
    with Package(path) as package:
        dimensions = Dimensions.from_package(package.config)
        rounded, _ = package_weights(package)
        ids = package.tokenize(TEXT)
        count = package.config.token_count
        for start in range(0, len(ids), 32):
            part = ids[start : start + 32]
            expected.append(Reference(dimensions, checkpoint_weights(micro)).forward(part).logits[:, :count])
            actual.append(Reference(dimensions, rounded).forward(part).logits[:, :count])
            targets.append(part[1:])
    left, right = np.concatenate(expected), np.concatenate(actual)
    found = find(report, "f32").figures
    assert report.positions == len(ids)
    assert report.predicted == sum(len(part) for part in targets)
    assert found.mae == pytest.approx(float(np.abs(right - left).mean()), rel=0.02)
    assert found.rmse == pytest.approx(float(np.sqrt(np.square(right - left).mean())), rel=0.02)
    assert found.kl == pytest.approx(mean_kl(left, right), rel=0.02)
    assert found.top1 == pytest.approx(float((left.argmax(1) == right.argmax(1)).mean()), abs=1.5 / len(ids))
    surprisal = [
        np.log(np.exp(row - row.max()).sum()) + row.max() - row[target]
        for part, follows in zip(expected, targets, strict=True)
        for row, target in zip(part, follows, strict=False)
    ]
    assert report.reference_surprisal == pytest.approx(float(np.mean(surprisal)), rel=1e-4)


def test_size_of_blocks_changes_the_report(
    micro: Path, convert: Convert, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = convert(micro, "w4a8")
    options = {"context": 50, "kv_types": (KvType.FP8, KvType.BF16)}
    whole = measure(micro, package, text, **options)
    monkeypatch.setattr(module, "_BLOCK_VALUES", 320 * 7)
    cut = measure(micro, package, text, **options)
    for one, other in zip(whole.comparisons, cut.comparisons, strict=True):
        assert one.figures.kl_by_position == other.figures.kl_by_position
        assert one.figures.rmse == pytest.approx(other.figures.rmse, rel=1e-12)
        assert one.surprisal == pytest.approx(other.surprisal, rel=1e-12)


def test_package_differs_from_itself(micro: Path, convert: Convert, text: Path) -> None:
    package = convert(micro, "f32")
    figures = find(measure(package, package, text, kv_types=(KvType.F32,)), "f32").figures
    assert (figures.mae, figures.max_abs, figures.tv, figures.kl, figures.top1) == (0, 0, 0, 0, 1)


def test_one_window_is_one(micro: Path, convert: Convert, text: Path) -> None:
    package = convert(micro, "f32")
    report = measure(package, package, text, kv_types=(KvType.F32,), context=1024)
    more = replace(report, windows=2)
    assert "tokens in one window of at most" in report.to_text()
    assert "tokens in 2 windows of at most" in more.to_text()
    assert " in one window;" in markdown(json.loads(report.to_json()))
    assert " in 2 windows;" in markdown(json.loads(more.to_json()))


def test_cache_formats_are_compared_with_something_else(micro: Path, convert: Convert, text: Path) -> None:
    """A package without rounding: against bf16, f32 is exactly as far as bf16 is from the reference by MAE."""
    report = measure(micro, convert(micro, "f32"), text, kv_types=(KvType.F32, KvType.F16, KvType.FP8, KvType.INT8))
    assert [each.kv_cache for each in report.of("reference")] == ["bf16", "f32", "fp16", "fp8", "int8"]
    assert [each.kv_cache for each in report.of("bf16")] == ["f32", "fp16", "fp8", "int8"]
    assert find(report, "f32").figures.kl == 0
    assert find(report, "f32", "bf16").figures.mae == find(report, "bf16").figures.mae > 0
    assert find(report, "fp16").figures.kl < find(report, "bf16").figures.kl < find(report, "fp8").figures.kl


def test_padding_rows_of_the_vocabulary_count(tmp_path: Path, convert: Convert, text: Path) -> None:
    loud = Path(shutil.copytree(CHECKPOINT, tmp_path / "loud"))
    with Package(convert(CHECKPOINT, "bf16")) as package:
        unused = package.config.vocab_size - package.config.token_count
    assert unused > 0
    from safetensors.torch import load_file, save_file

    tensors = load_file(loud / "model.safetensors")
    tensors["lm_head.weight"][-unused:] = 500.0
    save_file(tensors, loud / "model.safetensors")
    figures = find(measure(CHECKPOINT, convert(loud, "bf16"), text, kv_types=(KvType.F32,)), "f32").figures
    assert (figures.mae, figures.kl, figures.top1) == (0, 0, 1)


def test_answers_are_not_what_counts(tmp_path: Path, convert: Convert) -> None:
    line = {"role": "user", "content": "What is 2+2?"}, {"role": "assistant", "content": "2+2=4"}
    path = tmp_path / "text.jsonl"
    path.write_text(json.dumps({"messages": line}), encoding="utf-8")
    package = convert(CHECKPOINT, "w8a8")
    every, answers = (measure(CHECKPOINT, package, path, positions=kind) for kind in ("all", "answers"))
    with Package(package) as opened:
        said = len(opened.tokenize("2+2=4<|role_end|>"))
        assert every.positions == every.predicted + 1 == every.tokens
    assert answers.positions == answers.predicted == said
    places = [place for place, _ in find(answers, "bf16").figures.kl_by_position]
    assert places == list(range(every.tokens - said - 1, every.tokens - 1))
    assert answers.reference_surprisal < 0.1 < every.reference_surprisal


@pytest.fixture(scope="module")
def roundings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The built-in model in w4a8 and in the same layouts by plain rounding."""
    from release.package.pack import PackOptions, pack
    from release.quantization.quantize import QuantizeOptions, quantize

    folder = tmp_path_factory.mktemp("roundings")
    found = {}
    for recipe in ("w4a8", "w4a8-plain"):
        manifest = quantize(QuantizeOptions(source=CHECKPOINT, output=folder / recipe, recipe=recipe, name="demo"))
        found[recipe] = pack(PackOptions(manifest=manifest, output=folder / f"{recipe}.l3r"))
    return found


@pytest.mark.parametrize("positions", ["all", "answers"])
def test_w4a8_is_less_faithful_than_plain_rounding_to_int4(roundings: dict[str, Path], positions: str) -> None:
    report = fidelity(
        FidelityOptions(
            reference=CHECKPOINT,
            packages=(roundings["w4a8"], roundings["w4a8-plain"]),
            texts=(EVALUATION_TEXT,),
            positions=positions,
        )
    )
    searched, plain = report.of("reference")
    assert searched.figures.kl <= plain.figures.kl
    assert searched.figures.top1 >= plain.figures.top1
    assert searched.figures.rmse <= plain.figures.rmse
    rows = [line for line in markdown(json.loads(report.to_json())).splitlines() if line.startswith("| `w4a8")]
    assert len(rows) == 2
    for page in (DOCUMENT, CARD):
        assert set(rows) <= set(page.read_text(encoding="utf-8").splitlines()), "run python -m release.demo.rounding"


def test_plain_rounding_has_other_tensors_or_another_size(roundings: dict[str, Path]) -> None:
    with Package(roundings["w4a8"]) as searched, Package(roundings["w4a8-plain"]) as plain:
        layouts = [[(each.name, each.dtype, each.length) for each in one.tensors()] for one in (searched, plain)]
        digests = [{each.name: each.sha256 for each in one.tensors()} for one in (searched, plain)]
        integer = {each.name for each in plain.tensors() if is_quantized(each.dtype)}
    assert layouts[0] == layouts[1]
    differing = {name for name in digests[0] if digests[0][name] != digests[1][name]}
    assert differing == integer


def arguments(reference: Path, package: Path, text: Path, *more: str) -> list[str]:
    given = ["--reference", str(reference), "--package", str(package), "--text", str(text), "--threads", "1", *more]
    return ["fidelity", *given]


def test_two_runs_differ(
    micro: Path, convert: Convert, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = convert(micro, "w4a8")
    plot = tmp_path / "error.svg"
    results = []
    for _ in range(2):
        command = arguments(micro, package, text, "--kv-cache", "fp8", "--json", "--plot", str(plot), "--force")
        assert cli.main(command) == 0
        results.append((capsys.readouterr().out, plot.read_bytes()))
    assert results[0] == results[1]
    document = json.loads(results[0][0])
    assert (document["schema"], document["version"]) == ("mindnano-fidelity", 1)
    assert [(each["kv_cache"], each["against"]) for each in document["comparisons"]] == [
        ("bf16", "reference"),
        ("fp8", "reference"),
        ("fp8", "bf16"),
    ]
    assert str(tmp_path) not in results[0][0]
    assert markdown(document).count("| `w4a8` |") == 3
    drawing = xml.etree.ElementTree.fromstring(plot.read_bytes())
    curves = drawing.findall("{http://www.w3.org/2000/svg}polyline")
    assert len(curves) == 3
    points = [tuple(map(float, point.split(","))) for curve in curves for point in curve.attrib["points"].split()]
    _, _, width, height = map(float, drawing.attrib["viewBox"].split())
    assert all(0 <= x <= width and 0 <= y <= height for x, y in points)


def test_table_lacks_a_figure(micro: Path, convert: Convert, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    package = convert(micro, "w8a8")
    assert cli.main(arguments(micro, package, text, "--context", "16")) == 0
    lines = capsys.readouterr().out.splitlines()
    heading = next(line.split() for line in lines if line.startswith("package"))
    assert heading[3:] == ["MAE", "RMSE", "max", "TV", "%", "KL", "top-1", "%", "perplexity"]
    row = next(line.split() for line in lines if line.startswith(package.name))
    assert len(row) == 3 + 7
    assert row[1:3] == ["cpu", "bf16"]
    figures = find(measure(micro, package, text, context=16), "bf16").figures
    assert float(row[3]) == pytest.approx(figures.mae, abs=1e-4)
    assert float(row[7]) == pytest.approx(figures.kl, rel=1e-3)


def test_temporary_package_stays_behind(micro: Path, convert: Convert, text: Path, tmp_path: Path) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    measure(micro, convert(micro, "w8a8"), text, scratch=scratch)
    assert not list(scratch.iterdir())
    wrong = make_checkpoint(tmp_path / "wrong")
    edit_json(wrong / "config.json", lambda config: config.update(rope_scaling={"type": "yarn"}))
    with pytest.raises(PackageError, match="rope_scaling"):
        measure(wrong, convert(micro, "w8a8"), text, scratch=scratch)
    assert not list(scratch.iterdir())


def test_checkpoint_is_rounded_before_it_is_the_reference(tmp_path: Path, convert: Convert, text: Path) -> None:
    """BF16 weights are kept as they are by bf16; F32 weights need f32."""
    folder = make_checkpoint(tmp_path / "bf16", dtype="BF16")
    package = convert(folder, "f32")
    report = measure(folder, package, text, kv_types=(KvType.F32,))
    assert report.reference.recipe == "bf16"
    assert find(report, "f32").figures.kl == 0
    make_checkpoint(tmp_path / "f32")
    assert measure(tmp_path / "f32", package, text).reference.recipe == "f32"


def test_other_tokenizer_is_compared(micro: Path, convert: Convert, text: Path) -> None:
    with pytest.raises(UsageError, match="does not have the tokenizer of the reference") as caught:
        measure(micro, convert(CHECKPOINT, "w8a8"), text)
    assert "checkpoint that the package was made from" in caught.value.hint


@pytest.mark.parametrize(
    ("options", "kind", "problem"),
    [
        ({"backends": ("cpu", "npu")}, DeviceError, "backend npu cannot be measured: .* CPU only"),
        ({"backends": ("gpu",)}, UsageError, "no backend 'gpu', only cpu, npu"),
        ({"context": 1}, UsageError, "a window of 1 tokens predicts nothing"),
        ({"context": 1 << 24}, UsageError, "windows of 16777216 tokens were asked for, the packages allow 1024"),
        ({"positions": "answers"}, UsageError, "no window of the text holds positions that predict"),
        ({"positions": "some"}, UsageError, "no positions 'some', only all, answers"),
    ],
)
def test_what_cannot_be_measured_is_measured(
    micro: Path, convert: Convert, text: Path, options: dict[str, object], kind: type[MindnanoError], problem: str
) -> None:
    package = convert(micro, "w8a8")
    with pytest.raises(kind, match=problem):
        measure(micro, package, text, **options)


def test_rounded_package_is_the_reference(micro: Path, convert: Convert, text: Path) -> None:
    package = convert(micro, "w4a8")
    with pytest.raises(UsageError, match=r"cannot be a reference: .* is Q"):
        measure(package, package, text)


def test_package_is_named_twice(micro: Path, convert: Convert, text: Path) -> None:
    package = convert(micro, "w8a8")
    with pytest.raises(UsageError, match="given twice"):
        fidelity(FidelityOptions(reference=micro, packages=(package, package), texts=(text,)))


def test_existing_plot_is_replaced(micro: Path, convert: Convert, text: Path, tmp_path: Path) -> None:
    plot = tmp_path / "error.svg"
    plot.write_text("mine")
    package = convert(micro, "w8a8")
    assert cli.main(arguments(micro, package, text, "--plot", str(plot))) == 2
    assert plot.read_text() == "mine"


def test_npu_ends_with_another_code_than_3(micro: Path, text: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(arguments(micro, micro / "x.l3r", text, "--backend", "npu")) == 3
    streams = capsys.readouterr()
    assert streams.out == ""
    assert "Use --backend cpu." in streams.err
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments(micro, micro / "x.l3r", text, "--kv-cache", "fp8,int3"))
    assert caught.value.code == 2


def test_figures_are_written_beside_the_marks() -> None:
    text = f"before\n{BEGIN}\n\nold\n{END}\nafter\n"
    once = replaced(text, "new\n")
    assert once == f"before\n{BEGIN}\n\nnew\n\n{END}\nafter\n"
    assert replaced(once, "new\n") == once
    for broken in ("", BEGIN, END):
        with pytest.raises(ValueError, match="there is no"):
            replaced(broken, "new")
