"""Places a library in memory, loads it and says how that went; runs in a process of its own, alone or under emulation.

    python load_library.py ROOT LIBRARY FUNCTION

FUNCTION is `stand_in` or `rknn`. Prints one JSON object.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import sys
from pathlib import Path

sys.path.insert(0, sys.argv[1])

from launcher.errors import EngineError
from launcher.payload.memory_file import place


def facts(path: Path, kind: str) -> dict[str, object]:
    data = path.read_bytes()
    try:
        placed = place(data, "librknnrt.so", os.environ)
    except EngineError as error:
        return {"error": error.slug, "message": error.message}
    with placed:
        library = ctypes.CDLL(placed.path)
        same = Path(placed.path).read_bytes() == data
        result: dict[str, object] = {"method": placed.method.name, "refused": placed.refused, "same": same}
        try:
            os.close(os.open(placed.path, os.O_WRONLY))
            result["writable"] = True
        except OSError as error:
            result["writable"] = error.strerror
        if placed.method.name == "MEMFD":
            descriptor = os.open(placed.path, os.O_RDWR)
            try:
                os.pwrite(descriptor, b"x", 0)
            except PermissionError:
                result["writable"] = False
    if kind == "stand_in":
        result["sum"] = library.stand_in_sum(40, 2)
        return result
    context = ctypes.c_uint64()
    blob = ctypes.create_string_buffer(4096)  # larger than the three structures that the function takes
    result["version"] = re.findall(rb"librknnrt version: [^\0]+", data)[0].decode()
    result["create"] = library.rknn_matmul_create(ctypes.byref(context), blob, blob)
    return result


print(json.dumps(facts(Path(sys.argv[2]), sys.argv[3])), flush=True)
