"""Where the parts are that are not Python: today the Rockchip runtime, which a source checkout does not have."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

RUNTIME_VARIABLE: Final = "MINDNANO_RKNN_RUNTIME"


def rknn_runtime(environ: Mapping[str, str]) -> str | None:
    """Absolute path of the librknnrt.so that this program may load, or None where it carries none.

    A copy that the system has is never used: boards carry versions of all ages under the same name.
    """
    named = environ.get(RUNTIME_VARIABLE, "")
    return named if named.startswith("/") else None
