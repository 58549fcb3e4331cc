"""Catches a half-written or wrong file that gets a name, damage that goes unnoticed, and a trunk that pays for MTP."""

from __future__ import annotations

import json
import os
import resource
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import MindnanoError, PackageError, ResourceError
from release.mtp import append as module
from release.mtp.append import AppendOptions, StripOptions, append, strip
from release.mtp.audit import AuditOptions, audit
from release.mtp.extract import ExtractOptions, extract
from release.mtp.inspection import inspect_mtp
from release.package.reader import read_package
from tests.support.demo import require_demo
from tests.support.package_bytes import HEADER_FIELDS, SECTION_FIELDS, TENSOR_FIELDS, Image
from tests.support.packages import INTEGER, sections, tensor_parts, write_package, write_parts

ROOT = Path(__file__).resolve().parents[2]
Step = Callable[[], Path]


class Bench:
    """A trunk, a side-car and a package with both, and the commands that use them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.trunk = write_package(folder / "trunk.l3r", INTEGER, mtp=False)
        self.full = write_package(folder / "full.l3r", INTEGER)
        self.sidecar = extract(ExtractOptions(source=self.full, output=folder / "head.mtp.l3r"))
        self.joined = self.append(folder / "joined.l3r")

    def append(self, output: Path) -> Path:
        return append(AppendOptions(trunk=self.trunk, donor=self.sidecar, output=output))

    def steps(self) -> dict[str, Step]:
        out = self.folder / "out.mtp.l3r"
        return {
            "extract": lambda: extract(ExtractOptions(source=self.full, output=out)),
            "append": lambda: self.append(out),
            "strip": lambda: strip(StripOptions(package=self.joined, output=out)),
        }


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def fails(step: Step, folder: Path) -> MindnanoError:
    """The error of a command that must leave nothing behind."""
    before = sorted(folder.iterdir())
    with pytest.raises(MindnanoError) as caught:
        step()
    assert sorted(folder.iterdir()) == before
    return caught.value


def flip(path: Path, offset: int) -> None:
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


@pytest.mark.parametrize("name", ["extract", "append", "strip"])
def test_a_full_disk_leaves_nothing(bench: Bench, name: str) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, hard))
    try:
        error = fails(bench.steps()[name], bench.folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert isinstance(error, ResourceError)
    assert error.exit_code == 5
    assert "out.mtp.l3r" in error.message


@pytest.mark.parametrize("moment", ["writing", "auditing"])
def test_a_killed_append_has_no_result_and_the_next_one_succeeds(bench: Bench, moment: str) -> None:
    """The process stops itself at a known place and is killed there."""
    out = bench.folder / "out.l3r"
    program = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from release.mtp import append as mtp\n"
        "def stop(*_arguments, **_options):\n"
        "    print('here', flush=True)\n"
        "    signal.pause()\n"
        "def copier(package, tensor, advance):\n"
        "    return stop if tensor.group == 1 else original(package, tensor, advance)\n"
        "original = mtp.tensor_copier\n"
        "if sys.argv[4] == 'writing':\n"
        "    mtp.tensor_copier = copier\n"
        "else:\n"
        "    mtp._audit = stop\n"
        "mtp.append(mtp.AppendOptions(**dict(zip(('trunk', 'donor', 'output'), map(Path, sys.argv[1:4])))))\n"
    )
    command = [sys.executable, "-c", program, str(bench.trunk), str(bench.sidecar), str(out), moment]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"here\n"
        child.send_signal(signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
    assert not out.exists()
    assert (bench.folder / "out.l3r.partial").exists(), "it was killed too early to show anything"
    bench.append(out)
    assert out.read_bytes() == bench.joined.read_bytes()
    assert not (bench.folder / "out.l3r.partial").exists()


@pytest.mark.parametrize("name", ["trunk", "sidecar"])
@pytest.mark.parametrize("tensor", [0, -1])
def test_a_flipped_bit_in_a_source_is_refused_by_tensor(bench: Bench, name: str, tensor: int) -> None:
    path: Path = getattr(bench, name)
    damaged = read_package(path).tensors[tensor]
    flip(path, damaged.offset + damaged.length // 2)
    error = fails(bench.steps()["append"], bench.folder)
    assert (error.slug, error.exit_code) == ("package-damaged", 4)
    assert damaged.name in error.message


def test_a_flipped_bit_in_the_result_is_refused_by_strip(bench: Bench) -> None:
    for tensor in (read_package(bench.joined).trunk[3], read_package(bench.joined).mtp[3]):
        flip(bench.joined, tensor.offset)
        error = fails(bench.steps()["strip"], bench.folder)
        assert tensor.name in error.message
        flip(bench.joined, tensor.offset)
    bench.steps()["strip"]()


def test_bytes_between_the_parts_are_looked_at(bench: Bench) -> None:
    tensor = read_package(bench.trunk).tensors[2]
    assert (tensor.offset + tensor.length) % 65536
    flip(bench.trunk, tensor.offset + tensor.length)
    assert "not zero" in fails(bench.steps()["append"], bench.folder).message


def test_a_result_that_was_written_wrongly_gets_no_name(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk, or a bug, changes a byte between writing and reading back."""
    original = module.write_file

    def write(file: object, plan: object, parts: object) -> None:
        original(file, plan, parts)  # type: ignore[arg-type]
        place = plan.tensor_offsets[4]  # type: ignore[attr-defined]
        file.flush()  # type: ignore[attr-defined]
        flip(Path(file.name), place)  # type: ignore[attr-defined]

    monkeypatch.setattr(module, "write_file", write)
    assert fails(bench.steps()["append"], bench.folder).slug == "mtp-audit-failed"
    assert fails(bench.steps()["strip"], bench.folder).slug == "mtp-trunk-differs"


def test_a_name_that_is_taken_meanwhile_is_not_replaced(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    original = module.write_file
    out = bench.folder / "out.mtp.l3r"

    def write(file: object, plan: object, parts: object) -> None:
        original(file, plan, parts)  # type: ignore[arg-type]
        out.write_bytes(b"precious")

    monkeypatch.setattr(module, "write_file", write)
    with pytest.raises(MindnanoError) as caught:
        bench.append(out)
    assert caught.value.slug == "output-exists"
    assert out.read_bytes() == b"precious"


def test_every_truncation_is_refused(bench: Bench) -> None:
    data = bench.sidecar.read_bytes()
    for length in (0, 7, 8, 100, 191, 192, 300, 4000, 65535, 65536, 65537, len(data) - 1):
        bench.sidecar.write_bytes(data[:length])
        assert fails(bench.steps()["append"], bench.folder).exit_code == 4
    bench.sidecar.write_bytes(data + b"\0")
    assert fails(bench.steps()["append"], bench.folder).exit_code == 4


def test_every_flipped_bit_before_the_weights_is_refused(bench: Bench) -> None:
    data = bench.sidecar.read_bytes()
    front = read_package(bench.sidecar)
    end = max(section.offset + len(section.data) for section in front.sections)
    path = bench.folder / "flipped.mtp.l3r"
    for offset in [*range(0, 192), *range(192, end, 37)]:
        path.write_bytes(data)
        flip(path, offset)
        with pytest.raises(PackageError):
            inspect_mtp(path)
        inside = offset < front.directory_end or any(
            section.offset <= offset < section.offset + len(section.data) for section in front.sections
        )
        assert inside or audit(AuditOptions(package=path)), "bytes between sections are seen when hashing"
    path.unlink()


@pytest.mark.parametrize("value", [0, 1, 63, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
def test_hostile_numbers_under_right_checksums_are_refused(bench: Bench, value: int) -> None:
    image = Image(bench.sidecar)
    path = bench.folder / "hostile.mtp.l3r"
    places = [(0, field) for field in HEADER_FIELDS.values()]
    places += [(image.sections[0].entry, field) for name, field in SECTION_FIELDS.items() if name != "sha256"]
    places += [(image.tensors[1].entry, field) for field in TENSOR_FIELDS.values()]
    for base, field in places:
        if image.number(base, field) == value % (1 << 8 * field.width):
            continue
        data = bytearray(image.data)
        for offset, patch in image.sealed([field.patch(base, value)]):
            data[offset : offset + len(patch)] = patch
        path.write_bytes(data)
        with pytest.raises(PackageError):
            read_package(path)


@pytest.mark.parametrize("position", range(0, 92, 4))
def test_a_hostile_config_neither_hangs_nor_crashes(bench: Bench, position: int) -> None:
    image = Image(bench.sidecar)
    config = image.section(1)
    for value in (0, 2**16, 2**31 - 1, 2**32 - 1):
        data = bytearray(image.data)
        for offset, patch in image.sealed([(config.offset + position, struct.pack("<I", value))]):
            data[offset : offset + len(patch)] = patch
        path = bench.folder / "hostile.mtp.l3r"
        path.write_bytes(data)
        with pytest.raises(MindnanoError):
            append(AppendOptions(trunk=bench.trunk, donor=path, output=bench.folder / "out.l3r", any_trunk=True))
        path.unlink()


@pytest.mark.parametrize(
    "record",
    [
        None,
        [],
        {},
        {"layer": 2},
        {"layer": 2, "tensors": [], "donor": {}, "trunk": {}},
        {"trunk_file": {"metadata": 1}},
    ],
)
def test_a_malformed_record_is_refused(bench: Bench, record: object) -> None:
    contents = sections(INTEGER)
    kind = next(kind for kind in contents if kind.name == "METADATA")
    metadata = {**json.loads(contents[kind]), "mtp": record}
    path = write_parts(bench.folder / "bad.l3r", {**contents, kind: json.dumps(metadata).encode()}, tensor_parts())
    for step in (
        lambda: strip(StripOptions(package=path, output=bench.folder / "out.l3r")),
        lambda: append(AppendOptions(trunk=bench.trunk, donor=path, output=bench.folder / "out.l3r")),
        lambda: extract(ExtractOptions(source=path, output=bench.folder / "out.mtp.l3r")),
    ):
        assert fails(step, bench.folder).exit_code == 4


def edited(bench: Bench, change: Callable[[dict[str, Any]], object]) -> Path:
    """The package with another `mtp` object; the checksums are right."""
    package = read_package(bench.joined)
    metadata = json.loads(json.dumps(dict(package.metadata)))
    change(metadata["mtp"])
    contents = {section.kind: section.data for section in package.sections}
    kind = next(kind for kind in contents if kind.name == "METADATA")
    contents[kind] = json.dumps(metadata).encode()
    return write_parts(bench.folder / "edited.l3r", contents, tensor_parts())


def test_a_record_of_other_tensors_is_refused(bench: Bench) -> None:
    path = edited(bench, lambda record: record["tensors"][0].update(sha256="0" * 64))
    for step in (
        lambda: strip(StripOptions(package=path, output=bench.folder / "out.l3r")),
        lambda: extract(ExtractOptions(source=path, output=bench.folder / "out.mtp.l3r")),
    ):
        assert fails(step, bench.folder).slug == "mtp-record-invalid"


def test_a_record_of_another_trunk_is_seen_by_the_audit(bench: Bench) -> None:
    path = edited(bench, lambda record: record["appended_to"].update(identity="0" * 64))
    report = audit(AuditOptions(package=path))
    assert [row.name for row in report.rows if row.state != "same"] == ["trunk identity"]


def test_a_record_that_leads_elsewhere_is_refused(bench: Bench) -> None:
    changes: list[dict[str, object]] = [
        {"sha256": "0" * 64},
        {"bytes": 5},
        {"metadata": "{}"},
        {"mtp_layer_count": 0},
    ]
    for change in changes:
        path = edited(bench, lambda record, change=change: record["trunk_file"].update(change))  # type: ignore[misc]
        error = fails(
            lambda path=path: strip(StripOptions(package=path, output=bench.folder / "out.l3r")), bench.folder
        )  # type: ignore[misc]
        assert error.slug == "mtp-trunk-differs"
        path.unlink()


@pytest.mark.parametrize("what", ["missing", "folder", "pipe", "other"])
def test_what_is_no_package_is_refused_without_waiting(bench: Bench, what: str) -> None:
    path = bench.folder / "strange.l3r"
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "other":
        path.write_bytes(b"GGUF" + bytes(4096))
    error = fails(
        lambda: append(AppendOptions(trunk=bench.trunk, donor=path, output=bench.folder / "out.l3r")), bench.folder
    )
    assert error.exit_code == 4


MEASURE = """
import json, sys
from pathlib import Path
from launcher.engine import Engine, Package, Session
from launcher.engine_types import EngineOptions, SessionOptions
from tests.support.measured_open import mappings
path = Path(sys.argv[1])
package = Package(path)
options = EngineOptions(threads=1, mtp=sys.argv[2] == "mtp")
plan = package.plan(options, SessionOptions(context=64))
engine = Engine(package, options)
session = Session(engine, SessionOptions(context=64))
session.eval([5, 9, 17, 3])
for token in range(8):
    session.eval([token])
facts = {"mappings": list(mappings(path)), "allocated": plan.allocated_bytes, "mapped": plan.mapped_bytes}
print(json.dumps({**facts, "session": session.allocated}))
"""


def test_a_package_used_without_its_layer_maps_and_allocates_nothing_of_it(tmp_path: Path) -> None:
    """The built-in model computes twelve tokens; then the process's own mappings of the file are listed."""
    demo = require_demo()
    package = read_package(demo)
    plain, joined = tmp_path / "plain.l3r", tmp_path / "joined.l3r"
    assert package.mtp, "the built-in model has an MTP layer"
    head = extract(ExtractOptions(source=demo, output=tmp_path / "head.mtp.l3r"))
    strip(StripOptions(package=demo, output=plain))
    append(AppendOptions(trunk=plain, donor=head, output=joined))
    trunk_end = read_package(joined).trunk_end
    first = min(tensor.offset for tensor in read_package(joined).mtp)
    without, alone, with_layer = measure(joined, "plain"), measure(plain, "plain"), measure(joined, "mtp")
    page = os.sysconf("SC_PAGE_SIZE")
    assert [m for m in without["mappings"] if m[0] + m[1] > first] == []
    assert [(m[0], m[1]) for m in without["mappings"]] == [(0, -(-trunk_end // page) * page)]
    assert without["mappings"][0][2] > 0, "it was not used at all"
    assert without["mapped"] == trunk_end
    assert without["session"] == alone["session"]
    layer = [m for m in with_layer["mappings"] if m[0] >= first]
    assert layer, "the measurement would not see the layer"
    assert with_layer["allocated"] > without["allocated"] == alone["allocated"]


def measure(path: Path, mode: str) -> dict[str, Any]:
    command = [sys.executable, "-c", MEASURE, str(path), mode]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    document: dict[str, Any] = json.loads(result.stdout)
    return document
