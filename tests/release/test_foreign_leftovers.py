"""A command that deletes or overwrites somebody else's files because they lie where its own unfinished work would."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from launcher.errors import UsageError
from release import cli
from release.output import claimed_folder, partial_file
from release.package.pack import PackOptions, pack
from release.quantization.quantize import QuantizeOptions, quantize
from tests.support.demo import require_demo
from tests.support.release_folders import make_release

Maker = Callable[[Path], object]


@pytest.fixture(params=["quantize", "finalize"])
def make(request: pytest.FixtureRequest, micro: Path, program: Path) -> Maker:
    """What makes a folder."""
    if request.param == "quantize":
        return lambda output: quantize(QuantizeOptions(source=micro, output=output, recipe="f32"))
    return lambda output: make_release(output, program, require_demo())


def _foreign(caught: pytest.ExceptionInfo[UsageError]) -> None:
    assert (caught.value.slug, caught.value.exit_code) == ("output-foreign", 2)
    assert ".partial" in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("kind", ["file in it", "folder in it", "link", "link to nothing", "file"])
def test_a_folder_of_that_name_keeps_what_is_in_it(make: Maker, tmp_path: Path, kind: str) -> None:
    partial, thesis = tmp_path / "out.partial", tmp_path / "documents" / "thesis"
    thesis.parent.mkdir()
    thesis.write_text("years")
    if kind == "file in it":
        thesis = thesis.rename(_made(partial) / "thesis")
    elif kind == "folder in it":
        thesis = thesis.parent.rename(_made(partial) / "documents") / "thesis"
    elif kind == "file":
        thesis = thesis.rename(partial)
    else:
        partial.symlink_to(thesis.parent if kind == "link" else tmp_path / "none")
    with pytest.raises(UsageError) as caught:
        make(tmp_path / "out")
    _foreign(caught)
    assert thesis.read_text() == "years"
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "none").exists()


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


@pytest.mark.parametrize("kind", ["link", "link to nothing", "hard link", "folder", "pipe"])
def test_a_file_of_that_name_keeps_what_is_behind_it(tmp_path: Path, kind: str) -> None:
    partial, thesis = tmp_path / "x.l3r.partial", tmp_path / "thesis"
    thesis.write_text("years")
    if kind == "hard link":
        os.link(thesis, partial)
    elif kind == "folder":
        partial.mkdir()
    elif kind == "pipe":
        os.mkfifo(partial)
    else:
        partial.symlink_to(thesis if kind == "link" else tmp_path / "none")
    with pytest.raises(UsageError) as caught, partial_file(tmp_path / "x.l3r", force=True) as file:
        file.write(b"ours")
    _foreign(caught)
    assert thesis.read_text() == "years"
    assert os.path.lexists(partial)
    assert not (tmp_path / "none").exists()


def test_a_link_is_something_that_exists(tmp_path: Path) -> None:
    link = tmp_path / "x.l3r"
    link.symlink_to(tmp_path / "not mounted now")
    with pytest.raises(UsageError, match="exists"), partial_file(link, force=False) as file:
        file.write(b"ours")
    assert link.is_symlink()


def test_what_a_killed_run_left_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "x.partial").write_bytes(b"longer than what comes now")
    with partial_file(tmp_path / "x", force=False) as file:
        file.write(b"ours")
    assert (tmp_path / "x").read_bytes() == b"ours"


def test_two_at_once_do_not_write_into_each_other(micro: Path, tmp_path: Path) -> None:
    manifest = quantize(QuantizeOptions(source=micro, output=tmp_path / "assets", recipe="f32"))
    output = tmp_path / "x.l3r"
    with partial_file(output, force=False) as file:
        file.write(b"first")
        for force in (False, True):
            with pytest.raises(UsageError) as caught:
                pack(PackOptions(manifest=manifest, output=output, force=force))
            assert (caught.value.slug, caught.value.exit_code) == ("output-busy", 2)
    assert output.read_bytes() == b"first"


def test_a_file_that_got_its_name_while_another_waited_is_not_written_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second opens the preliminary file, the first finishes, then the second locks what is now the result."""
    from release import output

    lock, opened = output._lock, threading.Event()

    def late(handle: int, path: Path) -> None:
        (tmp_path / "x.partial").rename(tmp_path / "x")
        opened.set()
        lock(handle, path)

    (tmp_path / "x.partial").write_bytes(b"first")
    monkeypatch.setattr(output, "_lock", late)
    with pytest.raises(UsageError) as caught, partial_file(tmp_path / "x", force=True) as file:
        file.write(b"second")
    assert caught.value.slug == "output-busy"
    assert opened.is_set()
    assert (tmp_path / "x").read_bytes() == b"first"


def test_the_folder_of_another_run_is_left_to_it(make: Maker, tmp_path: Path) -> None:
    with claimed_folder(tmp_path / "out.partial", is_own=lambda _name: True):
        with pytest.raises(UsageError) as caught:
            make(tmp_path / "out")
        assert caught.value.slug == "output-busy"


@pytest.mark.parametrize("name", [".", "", ".."])
def test_a_folder_without_a_name_of_its_own_is_refused(
    make: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with pytest.raises(UsageError) as caught:
        make(Path(name))
    assert caught.value.slug == "output-name"
    assert caught.value.hint
    assert [path.name for path in tmp_path.rglob("*")] == ["here"]


def test_names_that_the_system_refuses_are_the_callers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Not a bug of the program, which is what exit code 1 says."""
    assert cli.main(["pack", "x", str(tmp_path / ("x" * 300))]) == 4  # the manifest first
    assert cli.main(["quantize", "--source", str(tmp_path), "--output", str(tmp_path / ("x" * 300))]) == 2
    assert "File name too long" in capsys.readouterr().err
