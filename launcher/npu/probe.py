"""Asks the NPU's driver who it is, with our own ioctls, before any vendor library is loaded.

The numbers are those of the kernel's drm.h and of Rockchip's rknpu_ioctl.h (drivers/rknpu in the vendor kernels 5.10
and 6.1). Only questions are asked: no flag that is used here changes anything. A driver that hangs in the kernel
cannot be timed out from the thread that asked; that is for a child process with a watchdog.
"""

from __future__ import annotations

import errno
import struct
from array import array
from dataclasses import dataclass
from enum import Enum
from typing import Final

from launcher.host import Devices, errno_name

RKNPU = "rknpu"  # what the vendor's driver calls itself in DRM
RK3588_HARDWARE: Final = 0x46495245

_WRITE, _READ = 1, 2
_ACTION_NUMBER: Final = 0x40  # the first of a DRM driver's own requests
_ACTION = struct.Struct("=II")  # flag, value
_VERSION = struct.Struct("=iii4xQQQQQQ")  # major, minor, patch; length and address of name, date and description
_NAME_BYTES: Final = 64
_RETRIES: Final = 8


class Magic(Enum):
    """The ioctl type of a node: the DRM build of the driver, or the misc device of its DMA heap build."""

    DRM = "d"
    MISC = "r"


class Question(Enum):
    """Flags of RKNPU_ACTION that only read."""

    HARDWARE = 0
    DRIVER = 1
    FREQUENCY = 2  # Hz
    IOMMU = 18  # 1 where it is in use


class Failure(Enum):
    """Why a node gave no answer."""

    ABSENT = "absent"
    FORBIDDEN = "forbidden"
    REFUSED = "refused"
    FOREIGN = "foreign"
    TIMEOUT = "timeout"
    INTERRUPTED = "interrupted"
    BUSY = "busy"
    OTHER = "other"


_FAILURES: Final = {
    errno.ENOENT: Failure.ABSENT,
    errno.ENODEV: Failure.ABSENT,
    errno.ENXIO: Failure.ABSENT,
    errno.EACCES: Failure.FORBIDDEN,  # the mode of the node
    errno.EPERM: Failure.REFUSED,  # the device rules of a control group
    errno.ENOTTY: Failure.FOREIGN,  # another driver answers
    errno.EINVAL: Failure.FOREIGN,
    errno.ETIMEDOUT: Failure.TIMEOUT,
    errno.EINTR: Failure.INTERRUPTED,
    errno.EBUSY: Failure.BUSY,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeError:
    """An open or a request that failed. `code` is the name of the errno, e.g. ``EACCES``."""

    failure: Failure
    code: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeProbe:
    """What one node answered.

    Attributes:
        opened: whether it could be opened for reading and writing.
        error: the first failure, of the open or of a request that every rknpu driver knows.
        driver: the DRM driver's name, ``rknpu`` for a misc device that answers, empty where unknown.
        hardware: hardware version of the NPU, 0x46495245 for every RK3588.
        version: of the driver.
        frequency: of the NPU in Hz.
        iommu: whether the NPU sees memory through an IOMMU.
    """

    opened: bool
    error: ProbeError | None = None
    driver: str = ""
    hardware: int | None = None
    version: tuple[int, int, int] | None = None
    frequency: int | None = None
    iommu: bool | None = None


def request_number(direction: int, magic: str, number: int, size: int) -> int:
    """_IOC of the kernel's asm-generic/ioctl.h, which x86-64 and arm64 use: 2 bits, 14 bits of size, type, number."""
    return direction << 30 | size << 16 | ord(magic) << 8 | number


def version_request() -> int:
    """DRM_IOCTL_VERSION on a 64-bit kernel."""
    return request_number(_READ | _WRITE, Magic.DRM.value, 0, _VERSION.size)


def action_request(magic: Magic) -> int:
    """RKNPU_ACTION."""
    return request_number(_READ | _WRITE, magic.value, _ACTION_NUMBER, _ACTION.size)


def probe_node(devices: Devices, path: str, magic: Magic) -> NodeProbe:
    """Opens a node, asks and closes it. A DRM node of another driver is asked for its name only."""
    try:
        handle = devices.open(path)
    except OSError as error:
        return NodeProbe(opened=False, error=_typed(error))
    try:
        return _ask_all(devices, handle, magic)
    finally:
        devices.close(handle)


def _ask_all(devices: Devices, handle: int, magic: Magic) -> NodeProbe:
    driver = RKNPU
    if magic is Magic.DRM:
        named = _drm_driver(devices, handle)
        if isinstance(named, ProbeError):
            return NodeProbe(opened=True, error=named)
        driver = named
        if driver != RKNPU:
            return NodeProbe(opened=True, driver=driver)
    answers: dict[Question, int | ProbeError] = {
        question: _ask(devices, handle, magic, question) for question in Question
    }
    error = next(
        (
            answer
            for question, answer in answers.items()
            if isinstance(answer, ProbeError) and question in {Question.HARDWARE, Question.DRIVER}
        ),
        None,
    )
    values = {question: answer for question, answer in answers.items() if isinstance(answer, int)}
    version = values.get(Question.DRIVER)
    iommu = values.get(Question.IOMMU)
    return NodeProbe(
        opened=True,
        error=error,
        driver=driver,
        hardware=values.get(Question.HARDWARE),
        version=None if version is None else (version // 10000, version // 100 % 100, version % 100),
        frequency=values.get(Question.FREQUENCY),
        iommu=None if iommu is None else bool(iommu),
    )


def _drm_driver(devices: Devices, handle: int) -> str | ProbeError:
    # The kernel writes the name where the structure points. An array has an address that can be put there, so the
    # port needs no method of its own for this, and a test can answer just as the kernel does.
    name = array("B", bytes(_NAME_BYTES))
    address, _ = name.buffer_info()
    argument = bytearray(_VERSION.pack(0, 0, 0, _NAME_BYTES, address, 0, 0, 0, 0))
    error = _ioctl(devices, handle, version_request(), argument)
    if error is not None:
        return error
    length = _VERSION.unpack(argument)[3]
    return name.tobytes()[: min(length, _NAME_BYTES)].rstrip(b"\0").decode(errors="replace")


def _ask(devices: Devices, handle: int, magic: Magic, question: Question) -> int | ProbeError:
    argument = bytearray(_ACTION.pack(question.value, 0))
    error = _ioctl(devices, handle, action_request(magic), argument)
    if error is not None:
        return error
    value: int = _ACTION.unpack(argument)[1]
    return value


def _ioctl(devices: Devices, handle: int, request: int, argument: bytearray) -> ProbeError | None:
    # Python does not repeat an interrupted ioctl by itself.
    for attempt in range(_RETRIES):
        try:
            devices.ioctl(handle, request, argument)
        except OSError as error:
            if error.errno != errno.EINTR or attempt == _RETRIES - 1:
                return _typed(error)
        else:
            break
    return None


def _typed(error: OSError) -> ProbeError:
    return ProbeError(failure=_FAILURES.get(error.errno or 0, Failure.OTHER), code=errno_name(error))
