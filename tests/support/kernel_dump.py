"""What tests/engine/kernel_driver.c writes, read back as arrays by name."""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[Any]
Dump = dict[str, Values]

GUARD = 3
"""Values that the driver puts behind every result; a kernel must leave them as they are."""
GUARD_VALUE = np.float32(-77)

_TYPES = {b"f": "<f4", b"b": "u1", b"i": "<i4", b"h": "<u2"}


def read_dump(data: bytes) -> Dump:
    """Arrays by name, in the order of the dump; two of the same name are an error of the driver."""
    arrays: Dump = {}
    at = 0
    while at < len(data):
        (length,) = struct.unpack_from("<I", data, at)
        name = data[at + 4 : at + 4 + length].decode()
        at += 4 + length
        (count,) = struct.unpack_from("<Q", data, at + 1)
        dtype = np.dtype(_TYPES[data[at : at + 1]])
        values = np.frombuffer(data, dtype, count, at + 9)
        assert name not in arrays, f"two arrays are called {name}"
        arrays[name] = values
        at += 9 + values.nbytes
    return arrays


def differences(expected: Mapping[str, Values], actual: Mapping[str, Values]) -> list[str]:
    """Where two dumps differ in a bit. Any NaN equals any other: its sign and payload are the processor's affair."""
    assert list(expected) == list(actual)
    lines = []
    for name, values in expected.items():
        other = actual[name]
        assert values.shape == other.shape, name
        same = bits(values) == bits(other)
        if values.dtype == np.float32:
            same |= np.isnan(values) & np.isnan(other)
        if not same.all():
            at = int(np.flatnonzero(~same)[0])
            lines.append(f"{name}: {np.count_nonzero(~same)} values, first [{at}] {other[at]!r} for {values[at]!r}")
    return lines


def bits(values: Values) -> Values:
    """Bit patterns of float32 values; integers as they are."""
    return values.view(np.uint32) if values.dtype == np.float32 else values


def dump_of(command: list[str]) -> Dump:
    """Runs the driver to its end."""
    result = subprocess.run(command, capture_output=True)
    assert result.returncode == 0, result.stderr.decode(errors="replace")
    return read_dump(result.stdout)


def matching(dump: Dump, pattern: str) -> Iterator[tuple[re.Match[str], Values]]:
    """Arrays whose name matches as a whole; there must be some."""
    found = [(match, values) for name, values in dump.items() if (match := re.fullmatch(pattern, name))]
    assert found, pattern
    yield from found
