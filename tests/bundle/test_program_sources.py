"""A program that does not say what it was built from, or says the same of two different sources."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

import pytest

from bundle import assemble, link, nuitka, pipeline, zig
from bundle.errors import BundleError
from bundle.pipeline import NO_FREIGHT
from bundle.program_sources import FILES, FOLDERS, ROOT, is_source, source_digest, source_list
from bundle.stages import _module_path, plan
from bundle.workspace import Workspace
from release.folder.program_facts import read_program
from tests.bundle import portable
from tests.support.availability import unavailable


def listed(root: Path = ROOT) -> set[str]:
    return {line.partition("  ")[2] for line in source_list(root).decode().splitlines()}


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A folder with a file of each kind that counts, as another checkout has it."""
    for name in ("launcher/cli.py", "engine/src/model.c", "bundle/sources.toml", "notices/zlib/LICENSE", *FILES):
        place = tmp_path / "copy" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(name)
    return tmp_path / "copy"


def test_the_list_is_that_of_git() -> None:
    """No file that is in the repository is forgotten, and none that is ignored is taken."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--"]
    done = subprocess.run([*command, *FOLDERS, *FILES], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        unavailable("this is no Git checkout")
    assert listed() == {name for name in done.stdout.split("\0") if name and (ROOT / name).is_file()}


def test_the_digest_is_what_other_tools_find() -> None:
    names = sorted(listed(), key=str.encode)
    printed = subprocess.run(["sha256sum", *names], cwd=ROOT, capture_output=True, check=True).stdout
    assert hashlib.sha256(printed).hexdigest() == source_digest()


def test_everything_that_decides_a_stage_is_in_it() -> None:
    decides = {*nuitka._program_files().values(), *(ROOT / name for name in assemble._text_digests())}
    decides |= {(ROOT if name.startswith("engine/") else ROOT / "bundle") / name for name in link._source_digests()}
    for target in zig.TARGETS:
        for step in plan(pipeline.stages(target).values()):
            decides |= {_module_path(name) for name in step.stage.modules}
    assert len(decides) > 300
    assert {str(path.resolve().relative_to(ROOT)) for path in decides} - listed() == set()


def test_tests_and_documents_are_not_in_it() -> None:
    tops = {*FOLDERS, "requirements", "LICENSE", "LICENSES.md", "NOTICE"}
    assert {name.partition("/")[0] for name in listed()} == tops
    for name in ("tests/conftest.py", "docs/release.md", "release/cli.py", "launcher", "launcher/__pycache__/cli.pyc"):
        assert not is_source(name)


def test_only_names_and_contents_count(copy: Path, tmp_path: Path) -> None:
    before = source_digest(copy)
    other = Path(shutil.copytree(copy, tmp_path / "elsewhere"))
    (other / "launcher" / "cli.py").touch()
    (other / "launcher" / "cli.py").chmod(0o755)
    (other / "launcher" / "__pycache__").mkdir()
    for name in ("launcher/__pycache__/cli.cpython-311.pyc", "launcher/.cli.py.swp", "launcher/cli.py~", "README.md"):
        (other / name).write_text("left behind")
    assert source_digest(other) == before


def test_names_that_are_no_text_are_listed_as_other_tools_do(copy: Path) -> None:
    names = [b"launcher/caf\xe9.py", b"launcher/two\nlines.py", b"launcher/back\\slash.py"]
    for name in names:
        (copy / os.fsdecode(name)).write_text("x")
    found = source_list(copy)
    printed = subprocess.run([b"sha256sum", *names], cwd=copy, capture_output=True, check=True).stdout
    assert set(printed.splitlines()) < set(found.splitlines())


def test_git_gives_every_checkout_the_same_bytes() -> None:
    """Whatever `core.autocrlf` says, no line ends are changed."""
    command = ["git", "-C", str(ROOT), "check-attr", "-z", "--stdin", "text", "filter", "ident"]
    names = "\0".join(sorted(listed()))
    done = subprocess.run(command, input=names, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        unavailable("this is no Git checkout")
    fields = done.stdout.split("\0")[:-1]
    assert len(fields) == 9 * len(listed())
    assert set(zip(fields[1::3], fields[2::3], strict=True)) == {
        ("text", "unset"),
        ("filter", "unspecified"),
        ("ident", "unspecified"),
    }


@pytest.mark.parametrize("name", ["launcher/cli.py", "engine/src/model.c", "notices/zlib/LICENSE", FILES[-1]])
def test_every_change_shows(copy: Path, name: str) -> None:
    found = {source_digest(copy)}
    (copy / name).write_text("changed")
    found.add(source_digest(copy))
    (copy / name).rename(copy / "launcher" / "renamed")
    found.add(source_digest(copy))
    (copy / "launcher" / "renamed").unlink()
    found.add(source_digest(copy))
    assert len(found) == 4


def test_another_source_is_assembled_anew_and_compiled_only_where_that_is_needed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    keys = [{step.stage.name: step.key for step in plan(pipeline.stages("aarch64").values())}]
    monkeypatch.setattr(assemble, "source_digest", lambda: "0" * 64)
    keys.append({step.stage.name: step.key for step in plan(pipeline.stages("aarch64").values())})
    assert {name for name in keys[0] if keys[0][name] != keys[1][name]} == {"assemble", "smoke"}


def test_a_source_that_changes_under_the_build_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    stage = pipeline.stages(zig.host_target(), NO_FREIGHT)["assemble"]
    monkeypatch.setattr(assemble, "source_digest", lambda: "0" * 64)
    with (tmp_path / "log").open("wb") as log:
        workspace = Workspace(
            stage, tmp_path, log=log, needs={}, archives={}, jobs=1, keep_open=0, say=lambda _line: None
        )
        with pytest.raises(BundleError, match="changed while the build ran"):
            stage.run(workspace)


@pytest.mark.parametrize("target", portable.TARGETS)
def test_the_built_program_says_what_it_was_built_from(target: str) -> None:
    facts, gaps = read_program(portable.program(target))
    assert gaps == []
    assert facts is not None
    assert facts.sources == source_digest()
