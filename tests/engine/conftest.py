"""The engine, the random models and the C programs that its tests share."""

from __future__ import annotations

import ctypes
import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # read when NumPy is imported; small products gain nothing by more

from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.build import build_executable, build_library
from launcher.engine_library import Library
from tests.support.kernel_dump import Dump, dump_of
from tests.support.models import Models
from tests.support.package_bytes import Image, Workbench
from tests.support.packages import write_package
from tests.support.programs import PackageDriver, package_driver

KERNEL_DRIVER = Path(__file__).with_name("kernel_driver.c")


@pytest.fixture(scope="session")
def library() -> Library:
    """The engine of this tree."""
    return Library(build_library())


@pytest.fixture(scope="session")
def all_models(library: Library, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Models]:
    """Checkpoints and packages, made on demand."""
    models = Models(tmp_path_factory.mktemp("models"), library)
    yield models
    models.delete()


@pytest.fixture(scope="module")
def models(all_models: Models) -> Iterator[Models]:
    """The same. After a module, what it opened is closed and what it freed is the system's: together two gigabytes."""
    yield all_models
    all_models.close()
    give_back = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc alone keeps so much that it has to be told
    if give_back is not None:
        give_back(0)


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PackageDriver]:
    with package_driver(tmp_path_factory.mktemp("driver")) as driver:
        yield driver


@pytest.fixture(scope="module")
def bench(driver: PackageDriver, tmp_path_factory: pytest.TempPathFactory) -> Workbench:
    folder = tmp_path_factory.mktemp("package")
    return Workbench(Image(write_package(folder / "sound.l3r")), folder / "damaged.l3r", driver)


@pytest.fixture(scope="session")
def native_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_executable([KERNEL_DRIVER], "kernel_driver", out=tmp_path_factory.mktemp("native"))


@pytest.fixture(scope="session")
def arm_driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_executable(
        [KERNEL_DRIVER], "kernel_driver", "aarch64", static=True, out=tmp_path_factory.mktemp("arm")
    )


@pytest.fixture(scope="session")
def scalar(native_driver: Path) -> Dump:
    return dump_of([str(native_driver), "scalar"])
