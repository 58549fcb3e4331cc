"""English: `--list-contexts`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    "contexts-title": "{name}: {available} available; sizes in MiB",
    "contexts-fixed": "the same for every context",
    "contexts-reserved": "reserved",
    "contexts-idle": "idle",
    "contexts-full": "full",
    "contexts-weights-mapped": "weights, mapped",
    "contexts-weights-resident": "weights, resident",
    "contexts-tables": "tokenizer and rest of the package",
    "contexts-recurrent": "recurrent state",
    "contexts-checkpoints": "prefix checkpoints",
    "contexts-session-cache": "session cache",
    "contexts-npu": "NPU staging",
    "contexts-mtp": "MTP weights",
    "contexts-runtime": "program and Python",
    "contexts-context": "context",
    "contexts-kv": "{kv} cache",
    "contexts-scratch": "scratch",
    "contexts-verdict": "verdict",
    "contexts-fits": "fits",
    "contexts-beyond-package": "- more than the {limit} tokens that the package allows",
    "contexts-beyond-native": "* beyond the {native} tokens that the model was made for",
    "contexts-largest": "largest that fits when it is full: {context}",
    "contexts-none": "none fits",
}
