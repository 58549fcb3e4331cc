"""A release that is written where it cannot lie, or that spoils another one, after all of its files were read."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from launcher.errors import UsageError
from release.folder import finalize
from tests.support.demo import require_demo
from tests.support.release_folders import edit, faults, files_of, look, make_release


@pytest.fixture(scope="module")
def released(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Not to be changed."""
    return make_release(tmp_path_factory.mktemp("release") / "demo", program, require_demo())


@pytest.fixture
def nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A place must be refused before any work."""

    def read(*_arguments: object) -> None:
        raise AssertionError("the files were read first")

    monkeypatch.setattr(finalize, "read_program", read)


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize("kind", ["nothing", "folder", "itself"])
def test_a_link_is_no_place_for_a_release(program: Path, tmp_path: Path, kind: str) -> None:
    (tmp_path / "folder").mkdir()
    out = tmp_path / "out"
    out.symlink_to({"nothing": "nowhere", "folder": "folder", "itself": "out"}[kind])
    with pytest.raises(UsageError, match="is a link") as caught:
        make_release(out, program, require_demo())
    assert caught.value.slug == "output-exists"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "out"]


@pytest.mark.usefixtures("nothing_is_read")
@pytest.mark.parametrize("inside", ["inner", "notices/deeper/inner", "../link/inner"])
def test_a_release_inside_another_one_is_refused(program: Path, released: Path, tmp_path: Path, inside: str) -> None:
    folder = Path(shutil.copytree(released, tmp_path / "release"))
    (tmp_path / "link").symlink_to("release")
    before = files_of(folder)
    with pytest.raises(UsageError, match="is inside the release") as caught:
        make_release(folder / inside, program, require_demo())
    assert caught.value.slug == "output-inside-release"
    assert files_of(folder) == before
    edit(folder / "MANIFEST.json", '"version": 1', '"version": 2')  # as a later program writes it
    with pytest.raises(UsageError, match="is inside the release"):
        make_release(folder / inside, program, require_demo())


def test_a_manifest_of_another_program_is_no_release(program: Path, tmp_path: Path) -> None:
    (tmp_path / "MANIFEST.json").write_text('{"schema": "other"}')
    assert faults(look(make_release(tmp_path / "out", program, require_demo()))) == {}
