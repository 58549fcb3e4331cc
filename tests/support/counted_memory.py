"""Anonymous memory that is counted where it is allocated and freed."""

from __future__ import annotations

import mmap
from typing import Any


class CountedMap(mmap.mmap):
    """Anonymous memory that knows how much of it there is."""

    total = 0
    most = 0

    def __new__(cls, handle: int, size: int, **options: Any) -> CountedMap:
        CountedMap.total += size
        CountedMap.most = max(CountedMap.most, CountedMap.total)
        return super().__new__(cls, handle, size, **options)

    def close(self) -> None:
        size = len(self)
        super().close()
        CountedMap.total -= size
