"""A package of another version, of another digest or with a compiled part gets into the portable program."""

from __future__ import annotations

import io
import tarfile
import zipfile
from pathlib import Path

import pytest

from bundle import python_packages, zig
from bundle.errors import BundleError
from bundle.python_packages import NUITKA_LOCK, PACKAGES, RUN_LOCK, Pin, read_lock
from bundle.stages import plan

ONE, OTHER = "a" * 64, "b" * 64


def lock(folder: Path, text: str) -> Path:
    path = folder / "lock.txt"
    path.write_text(text)
    return path


def test_the_locks_pin_everything_that_is_taken() -> None:
    pins = read_lock(RUN_LOCK)
    assert set(PACKAGES) <= set(pins)
    assert read_lock(NUITKA_LOCK)["nuitka"].version == "4.3.3"
    assert all(pins[name].digests for name in PACKAGES)


def test_a_pin_has_every_digest_of_its_lines(tmp_path: Path) -> None:
    one = f"one==1.0 \\\n    --hash=sha256:{OTHER} \\\n    --hash=sha256:{ONE}\n"
    text = f"# made by\n{one}two==2 ; python_version > '3'\\\n --hash=sha256:{ONE}\n"
    pins = read_lock(lock(tmp_path, text))
    assert pins["one"] == Pin(name="one", version="1.0", digests=(ONE, OTHER))
    assert pins["two"].version == "2"
    assert pins["one"].line() == f"one==1.0 --hash=sha256:{ONE} --hash=sha256:{OTHER}"


def test_a_pin_without_a_digest_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="pins one without a digest"):
        read_lock(lock(tmp_path, "one==1.0\n"))


def test_a_missing_lock_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"nothing\.txt cannot be read"):
        read_lock(tmp_path / "nothing.txt")


def test_a_wheel_leaves_its_compiled_parts_behind(tmp_path: Path) -> None:
    wheel = tmp_path / "one-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("one/__init__.py", "one/_fast.cpython-313-x86_64-linux-gnu.so", "one/_fast.c", "one/_fast.pyi"):
            archive.writestr(name, b"")
    python_packages._unpack_wheel(wheel, tmp_path / "site")
    found = [path.name for path in (tmp_path / "site").rglob("*") if path.is_file()]
    assert found == ["__init__.py"]


@pytest.mark.parametrize("name", ["../evil.py", "/evil.py", "one/../../evil.py"])
def test_a_wheel_that_leads_out_is_refused(tmp_path: Path, name: str) -> None:
    wheel = tmp_path / "one-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(name, b"")
    with pytest.raises(BundleError, match="leads out of it"):
        python_packages._unpack_wheel(wheel, tmp_path / "site")


def test_modules_and_c_sources_of_a_source_archive_are_kept_apart(tmp_path: Path) -> None:
    source = tmp_path / "one-1.0.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        for name in ("src/one/__init__.py", "src/one/_core.c", "src/one/a.h", "src/one/__init__.pyi", "setup.py"):
            archive.addfile(tarfile.TarInfo(f"one-1.0/{name}"), io.BytesIO())
        archive.addfile(tarfile.TarInfo("one-1.0/src/one.egg-info/PKG-INFO"), io.BytesIO())
    python_packages._unpack_source_tree(source, tmp_path / "out")
    found = sorted(str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert found == ["site/one/__init__.py", "sources/one/_core.c", "sources/one/a.h"]


def test_every_target_has_its_own_llguidance() -> None:
    keys = {step.key for target in zig.TARGETS for step in plan([python_packages.llguidance(target)])}
    assert len(keys) == len(zig.TARGETS)


def test_of_a_source_archive_the_package_and_its_terms_are_taken(tmp_path: Path) -> None:
    source = tmp_path / "nuitka-1.tar.gz"
    with tarfile.open(source, "w:gz") as archive:
        for name in ("nuitka/__main__.py", "LICENSE.txt", "tests/big.py", "setup.py"):
            archive.addfile(tarfile.TarInfo(f"nuitka-1/{name}"), io.BytesIO())
    python_packages._unpack_source(source, tmp_path / "site")
    found = sorted(
        str(path.relative_to(tmp_path / "site")) for path in (tmp_path / "site").rglob("*") if path.is_file()
    )
    assert found == ["LICENSE.txt", "nuitka/__main__.py"]
