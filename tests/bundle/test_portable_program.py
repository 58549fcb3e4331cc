"""The portable program says or holds something else than the checkout it was built from."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from bundle import assemble, link, pipeline
from bundle.assemble import Freight
from bundle.elf_policy import check
from bundle.payload import pack
from bundle.size import check_sizes
from bundle.stages import plan
from bundle.store import Store
from launcher import __version__
from launcher.payload.file import Payload
from tests.bundle.portable import HOST, QUESTION, TARGETS, program, result, run, texts
from tests.support.demo import DEMO, require_demo

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_answers_as_the_checkout_does() -> None:
    package = require_demo()
    environ = {**os.environ, "MINDNANO_DEMO_PACKAGE": str(package)}
    words = [sys.executable, "-m", "launcher", *QUESTION]
    source = subprocess.run(words, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    assert source.returncode == 0, source.stderr
    built = run(program(), *QUESTION)
    assert (built.returncode, built.stdout) == (0, source.stdout)


def test_both_targets_say_the_same() -> None:
    words = " ".join(QUESTION)
    answers = {(target, system): said[words] for target in TARGETS for system, said in texts(target).items()}
    assert len(answers) > 1
    assert len(set(answers.values())) == 1, answers
    assert next(iter(answers.values())).strip()


@pytest.mark.parametrize("words", ["--version", "--help"])
def test_every_system_says_the_same(words: str) -> None:
    said = {text[words] for target in TARGETS for text in texts(target).values()}
    assert len(said) == 1


def test_it_passes_the_policy(target: str) -> None:
    forbidden = [path.encode() for path in (*pipeline.foreign_paths(), str(Store.of_user().root))]
    report = check(program(target), "program", target, forbidden=forbidden)
    assert report.passed, report.text()
    assert report.facts.type == "ET_DYN"


def test_it_stays_within_its_budget(target: str) -> None:
    rows = check_sizes(json.loads((result(target) / assemble.SIZES).read_text()))
    assert all(row.passed for row in rows)


def test_the_payload_is_what_it_lists(target: str) -> None:
    with Payload(str(program(target))) as payload:
        names = set(payload.members)
        assert {"models/demo.l3r", "sbom.cdx.json", "NOTICES.txt", "certs/cacert.pem", "publisher.json"} <= names
        for member in payload.members.values():
            assert payload.sha256(member.offset, member.size) == member.sha256, member.name
        assert payload.read("models/demo.l3r") == DEMO.read_bytes()


def test_other_programs_read_the_payload(target: str) -> None:
    unzip = shutil.which("unzip")
    if unzip is not None:
        listed = subprocess.run([unzip, "-l", program(target)], capture_output=True, text=True)
        assert "models/demo.l3r" in listed.stdout
    with zipfile.ZipFile(program(target)) as archive:
        assert archive.testzip() is None


def test_the_bill_inside_is_the_one_beside(target: str) -> None:
    with Payload(str(program(target))) as payload:
        bill = payload.read("sbom.cdx.json")
    assert bill == (result(target) / "sbom.cdx.json").read_bytes()
    names = {component["name"] for component in json.loads(bill)["components"]}
    assert {"CPython", "OpenSSL", "zlib", "libffi", "Jinja2", "certifi"} <= names


def test_certificates_and_publisher_are_read_from_inside(tmp_path: Path) -> None:
    shutil.copy(program(), tmp_path / "mindnano-infer")
    words = ("--download", "https://127.0.0.1:9/model.l3r")
    done = run(tmp_path / "mindnano-infer", *words, environ={"HOME": str(tmp_path)})
    assert "Traceback" not in done.stderr
    assert "internal" not in done.stderr


@pytest.mark.parametrize("seed", range(12))
def test_a_flipped_bit_is_refused(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    with Payload(str(program())) as payload:
        # In the loader's own area damage ends the program in other ways as well.
        first = payload.elf.size if seed % 2 else payload.elf.size // 4
        size = payload.file_bytes
    path = tmp_path / "mindnano-infer"
    shutil.copy(program(), path)
    with path.open("r+b") as stream:
        place = chance.randrange(first, size)
        stream.seek(place)
        byte = stream.read(1)[0]
        stream.seek(place)
        stream.write(bytes([byte ^ 1 << chance.randrange(8)]))
    done = run(path, "--version")
    assert done.stdout == ""
    assert done.returncode == 4 or done.returncode < 0, (place, done)


@pytest.mark.parametrize("change", ["cut", "longer", "empty end"])
def test_another_length_is_refused(change: str, tmp_path: Path) -> None:
    path = tmp_path / "mindnano-infer"
    shutil.copy(program(), path)
    with path.open("r+b") as stream:
        size = path.stat().st_size
        if change == "cut":
            stream.truncate(size - 1)
        elif change == "longer":
            stream.truncate(size + 1)
        else:
            stream.seek(-124, os.SEEK_END)
            stream.write(bytes(124))
    done = run(path, "--version")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr.startswith("error (program-damaged)")


def test_linking_and_packing_again_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another folder: of the two last stages, which are the ones that every change of the engine repeats."""
    from bundle.runner import Runner

    made = program().read_bytes()
    store = Store(root=tmp_path / "a folder with another name")
    stages = pipeline.stages(HOST, Freight(runtime=None, demo=DEMO))
    store.root.mkdir()
    for step in plan([stages["assemble"]]):
        if step.stage.name not in ("link", "assemble"):
            found = Store.of_user().find(step)
            assert found is not None
            (store.root / step.entry).symlink_to(found)
    runner = Runner(store=store, say=lambda _line: None, jobs=2, foreign=pipeline.foreign_paths())
    folder = runner.build([stages["assemble"]])[-1].folder
    assert (folder / assemble.NAME).read_bytes() == made


def test_packing_depends_on_content_alone(tmp_path: Path) -> None:
    elf = result(HOST, "link") / link.PROGRAM
    members = {"b": b"two", "a": b"one"}
    first = pack(elf, tmp_path / "first", members)
    second = pack(elf, tmp_path / "second", dict(reversed(members.items())))
    assert first.sha256 == second.sha256


def test_the_version_for_programs_is_that_of_the_checkout() -> None:
    done = run(program(), "--version", "--json")
    document = json.loads(done.stdout)
    assert document["program_version"] == __version__
    assert document["machine"] == HOST
