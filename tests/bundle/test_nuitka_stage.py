"""Old constants, changed sources or a report with this machine's paths get out of the compilation of the launcher."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from bundle import nuitka, pipeline, zig
from bundle.errors import BundleError
from bundle.nuitka import CONSTANTS, OBJECTS, REPORT
from bundle.stages import plan
from bundle.workspace import Workspace

REPORT_TEXT = '<report><command_line><option value="--jobs=7" />\n</command_line><module name="one" /></report>'


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    stage = pipeline.stages(zig.host_target())["nuitka"]
    folder = tmp_path / "work-folder"
    folder.mkdir()
    return Workspace(
        stage, folder, log=io.BytesIO(), needs={}, archives={}, jobs=1, keep_open=0, say=lambda _line: None
    )


def build_folder(workspace: Workspace, *, compiled: bytes) -> Path:
    """What Nuitka leaves, with these constants in its object."""
    build = workspace.work / "build"
    (build / "blobs").mkdir(parents=True)
    (build / "static_src").mkdir()
    (build / "blobs" / "__constant.bin").write_bytes(b"constants of now")
    (build / "__constants_data.o").write_bytes(b"\x7fELF" + compiled)
    (build / "static_src" / "MainProgram.o").write_bytes(b"\x7fELF")
    (workspace.work / REPORT).write_text(REPORT_TEXT)
    return build


def test_objects_constants_and_report_are_taken(workspace: Workspace) -> None:
    nuitka._collect(workspace, build_folder(workspace, compiled=b"..constants of now.."))
    assert {path.name for path in (workspace.out / OBJECTS).iterdir()} == {"__constants_data.o", "MainProgram.o"}
    assert (workspace.out / CONSTANTS).read_bytes() == b"constants of now"
    assert (workspace.out / REPORT).read_text() == '<report><module name="one" /></report>'


def test_constants_of_an_earlier_compilation_are_refused(workspace: Workspace) -> None:
    with pytest.raises(BundleError, match="not those of this compilation"):
        nuitka._collect(workspace, build_folder(workspace, compiled=b"constants of then"))


def test_two_objects_of_one_name_are_refused(workspace: Workspace) -> None:
    build = build_folder(workspace, compiled=b"constants of now")
    (build / "MainProgram.o").write_bytes(b"another")
    with pytest.raises(BundleError, match="two objects of one name"):
        nuitka._collect(workspace, build)


def test_sources_that_change_under_the_build_are_refused(tmp_path: Path) -> None:
    digests = {name: nuitka._digest(path.read_bytes()) for name, path in nuitka._program_files().items()}
    nuitka._copy_program(tmp_path / "same", digests)
    assert (tmp_path / "same" / "launcher" / "cli.py").is_file()
    with pytest.raises(BundleError, match="changed while the build ran"):
        nuitka._copy_program(tmp_path / "other", {**digests, "launcher/cli.py": "0" * 64})


def test_every_module_of_the_launcher_decides_the_result() -> None:
    for target in zig.TARGETS:
        [step] = [step for step in plan([pipeline.stages(target)["nuitka"]]) if step.stage.name == "nuitka"]
        assert {"input launcher/cli.py", "input launcher/payload/file.py", "input mindnano_infer.py"} <= set(step.parts)
        assert f"stage python-runtime-{zig.host_target()}" in step.parts
        assert f"stage python-runtime-{target}" in step.parts
