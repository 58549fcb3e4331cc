"""Makes the kernel refuse system calls to this process and its children, as sandboxes do. Linux only, for good.

    python seccomp.py memfd,unnamed,noexec -- PROGRAM ARGUMENTS...

memfd     memfd_create: EPERM
unnamed   openat with O_TMPFILE: EOPNOTSUPP, as file systems say that have no such files
noexec    mmap of a file with PROT_EXEC and MAP_PRIVATE of exactly one byte: EPERM, as on a mount without exec
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys

_LOAD = 0x20  # BPF_LD | BPF_W | BPF_ABS
_EQUAL = 0x15  # BPF_JMP | BPF_JEQ | BPF_K
_BITS = 0x45  # BPF_JMP | BPF_JSET | BPF_K
_RETURN = 0x06
_ALLOW = 0x7FFF0000
_ERRNO = 0x00050000
_NUMBER = 0  # offsets in struct seccomp_data
_ARGUMENTS = 16
_NUMBERS = {
    "x86_64": {"memfd_create": 319, "openat": 257, "mmap": 9},
    "aarch64": {"memfd_create": 279, "openat": 56, "mmap": 222},
}
_TMPFILE_BIT = {"x86_64": 0o20000000, "aarch64": 0o20000000}
_SET_NO_NEW_PRIVS = 38
_SET_SECCOMP = 22
_MODE_FILTER = 2


def _instruction(code: int, true: int, false: int, value: int) -> bytes:
    return struct.pack("<HBBI", code, true, false, value)


def _rule(number: int, argument: int | None, code: int, value: int, error: int) -> bytes:
    """Refuses a call by number, where an argument (its lower half) equals or has the value."""
    refuse = _instruction(_RETURN, 0, 0, _ERRNO | error)
    reload = _instruction(_LOAD, 0, 0, _NUMBER)
    if argument is None:
        return reload + _instruction(_EQUAL, 0, 1, number) + refuse
    test = _instruction(_LOAD, 0, 0, _ARGUMENTS + 8 * argument) + _instruction(code, 0, 1, value)
    return reload + _instruction(_EQUAL, 0, 3, number) + test + refuse


def refuse(what: set[str]) -> None:
    """Installs the filter in this process."""
    machine = platform.machine()
    numbers = _NUMBERS[machine]
    program = b""
    if "memfd" in what:
        program += _rule(numbers["memfd_create"], None, 0, 0, errno.EPERM)
    if "unnamed" in what:
        program += _rule(numbers["openat"], 2, _BITS, _TMPFILE_BIT[machine], errno.EOPNOTSUPP)
    if "noexec" in what:
        program += _rule(numbers["mmap"], 1, _EQUAL, 1, errno.EPERM)
    program += _instruction(_RETURN, 0, 0, _ALLOW)
    code = ctypes.create_string_buffer(program)
    header = struct.pack("@HxxxxxxP", len(program) // 8, ctypes.addressof(code))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_SET_SECCOMP, _MODE_FILTER, header, 0, 0):
        raise OSError(ctypes.get_errno(), "the filter was refused")


if __name__ == "__main__":
    refuse(set(sys.argv[1].split(",")))
    os.execvp(sys.argv[3], sys.argv[3:])
