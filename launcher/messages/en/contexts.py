"""English: `--list-contexts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "contexts-title": "{name}, {kv} attention cache, {available} available",
    "contexts-context": "context",
    "contexts-total": "total",
    "contexts-verdict": "verdict",
    "contexts-fits": "fits",
    "contexts-beyond-package": "- more than the {limit} tokens that the package allows",
    "contexts-beyond-native": "* beyond the {native} tokens that the model was made for",
    "contexts-largest": "largest that fits: {context}",
    "contexts-none": "none fits",
}
