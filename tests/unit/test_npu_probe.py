"""A request number or a structure that is not the kernel's, an error that loses its meaning, a handle left open."""

from __future__ import annotations

import errno
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from launcher.host import Node, RealDevices
from launcher.npu.probe import (
    Failure,
    Magic,
    NodeProbe,
    ProbeError,
    action_request,
    probe_node,
    request_number,
    version_request,
)
from tests.fixtures.boards.builder import Board, FakeDevices, NoDriver
from tests.fixtures.boards.drivers import DrmDriver, MiscRknpu, Rknpu

NODE = "/dev/dri/card1"

KERNEL = r"""
#include <stddef.h>
#include <drm/drm.h>
#include <sys/ioctl.h>
struct action { unsigned int flags, value; };
_Static_assert(DRM_IOCTL_VERSION == %(version)#xu, "version");
_Static_assert(_IOWR('d', DRM_COMMAND_BASE + 0, struct action) == %(drm)#xu, "action of the DRM build");
_Static_assert(_IOWR('r', 0x40, struct action) == %(misc)#xu, "action of the misc build");
_Static_assert(sizeof(struct drm_version) == 64, "size");
_Static_assert(offsetof(struct drm_version, name_len) == 16, "length");
_Static_assert(offsetof(struct drm_version, name) == 24, "name");
"""


def probe(driver: object, root: Path, magic: Magic = Magic.DRM, open_error: int | None = None) -> NodeProbe:
    board = Board().file("/proc/self/status", "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n")
    board.node(NODE, driver, open_error=open_error)  # type: ignore[arg-type]
    system = board.build(root)
    found = probe_node(system.devices, NODE, magic)
    assert isinstance(system.devices, FakeDevices)
    assert system.devices.open_handles == 0
    return found


def test_numbers_are_those_of_the_specification() -> None:
    assert version_request() == 0xC0406400
    assert action_request(Magic.DRM) == 0xC0086440
    assert action_request(Magic.MISC) == 0xC0087240
    assert request_number(1, "T", 0x31, 4) == 0x40045431  # TIOCSPTLCK


def test_numbers_are_those_of_the_kernel_headers(tmp_path: Path) -> None:
    """Compiled for arm64 against the headers that come with the compiler."""
    pytest.importorskip("ziglang")
    source = tmp_path / "numbers.c"
    source.write_text(
        KERNEL % {"version": version_request(), "drm": action_request(Magic.DRM), "misc": action_request(Magic.MISC)}
    )
    made = tmp_path / "numbers.o"
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-target",
        "aarch64-linux-gnu",
        "-c",
        str(source),
        "-o",
        str(made),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_rknpu_tells_all(tmp_path: Path) -> None:
    assert probe(Rknpu(version=(0, 9, 8)), tmp_path) == NodeProbe(
        opened=True,
        driver="rknpu",
        hardware=0x46495245,
        version=(0, 9, 8),
        frequency=1_000_000_000,
        iommu=True,
    )


def test_misc_device_is_asked_with_its_own_magic(tmp_path: Path) -> None:
    assert probe(MiscRknpu(version=(0, 9, 6)), tmp_path / "r", Magic.MISC).version == (0, 9, 6)
    wrong = probe(MiscRknpu(), tmp_path / "d", Magic.DRM)
    assert wrong.error == ProbeError(failure=Failure.FOREIGN, code="ENOTTY")


@pytest.mark.parametrize("name", ["rocket", "i915", "", "x" * 200, "rknpu2", "RKNPU"])
def test_another_driver_is_asked_for_its_name_only(name: str, tmp_path: Path) -> None:
    found = probe(DrmDriver(name=name), tmp_path)
    assert found == NodeProbe(opened=True, driver=name[:64])


@pytest.mark.parametrize(
    ("number", "failure"),
    [
        (errno.EACCES, Failure.FORBIDDEN),
        (errno.EPERM, Failure.REFUSED),
        (errno.ENOENT, Failure.ABSENT),
        (errno.ENODEV, Failure.ABSENT),
        (errno.ENXIO, Failure.ABSENT),
        (errno.EBUSY, Failure.BUSY),
        (errno.EMFILE, Failure.OTHER),
    ],
)
def test_failed_open_keeps_its_meaning(number: int, failure: Failure, tmp_path: Path) -> None:
    found = probe(Rknpu(), tmp_path, open_error=number)
    assert found == NodeProbe(opened=False, error=ProbeError(failure=failure, code=errno.errorcode[number]))


@pytest.mark.parametrize(
    ("number", "failure"),
    [
        (errno.ENOTTY, Failure.FOREIGN),
        (errno.EINVAL, Failure.FOREIGN),
        (errno.EACCES, Failure.FORBIDDEN),
        (errno.EPERM, Failure.REFUSED),
        (errno.ENODEV, Failure.ABSENT),
        (errno.ETIMEDOUT, Failure.TIMEOUT),
        (errno.EINTR, Failure.INTERRUPTED),
        (errno.EIO, Failure.OTHER),
    ],
)
@pytest.mark.parametrize("flag", [0, 1])
def test_failed_question_keeps_its_meaning(number: int, failure: Failure, flag: int, tmp_path: Path) -> None:
    found = probe(Rknpu(errors={flag: number}), tmp_path)
    assert found.opened
    assert found.error == ProbeError(failure=failure, code=errno.errorcode[number])


def test_questions_of_newer_drivers_may_fail(tmp_path: Path) -> None:
    found = probe(Rknpu(errors={2: errno.EINVAL, 18: errno.EINVAL}), tmp_path)
    assert (found.error, found.frequency, found.iommu) == (None, None, None)


def test_interrupted_request_is_repeated(tmp_path: Path) -> None:
    assert probe(Rknpu(interruptions=5), tmp_path).error is None


class Liar:
    """Claims a name longer than there is room for, and values that no driver has."""

    def ioctl(self, request: int, argument: bytearray) -> None:
        if request == version_request():
            struct.pack_into("=Q", argument, 16, 1 << 63)
        else:
            struct.pack_into("=I", argument, 4, 0xFFFFFFFF)


def test_lying_driver_reads_nothing_beyond_the_buffer(tmp_path: Path) -> None:
    assert probe(Liar(), tmp_path).driver == ""
    assert probe(Liar(), tmp_path, Magic.MISC).version == (429496, 72, 95)


def test_handle_is_closed_when_the_driver_breaks_the_port(tmp_path: Path) -> None:
    class Broken:
        def ioctl(self, request: int, argument: bytearray) -> None:
            raise RuntimeError("not an OSError")

    board = Board().file("/proc/self/status", "Uid:\t0\t0\t0\t0\nGid:\t0\t0\t0\t0\n").node(NODE, Broken())
    system = board.build(tmp_path)
    with pytest.raises(RuntimeError):
        probe_node(system.devices, NODE, Magic.DRM)
    assert isinstance(system.devices, FakeDevices)
    assert system.devices.open_handles == 0


def test_real_port_on_devices_that_every_machine_has() -> None:
    """The kernel itself answers: /dev/null knows no DRM request, and a missing node is missing."""
    found = probe_node(RealDevices(), "/dev/null", Magic.DRM)
    assert found == NodeProbe(opened=True, error=ProbeError(failure=Failure.FOREIGN, code="ENOTTY"))
    found = probe_node(RealDevices(), "/dev/no-such-node", Magic.MISC)
    assert found == NodeProbe(opened=False, error=ProbeError(failure=Failure.ABSENT, code="ENOENT"))
    null = RealDevices().stat("/dev/null")
    assert isinstance(null, Node)
    assert (null.is_device, null.major, null.minor) == (True, 1, 3)


def test_real_port_leaves_no_descriptor_behind() -> None:
    place = Path("/proc/self/fd")
    if not place.is_dir():
        pytest.skip("no /proc here")
    before = len(list(place.iterdir()))
    for _ in range(20):
        probe_node(RealDevices(), "/dev/null", Magic.MISC)
    assert len(list(place.iterdir())) == before


def test_driver_that_knows_nothing(tmp_path: Path) -> None:
    assert probe(NoDriver(), tmp_path).error == ProbeError(failure=Failure.FOREIGN, code="ENOTTY")
