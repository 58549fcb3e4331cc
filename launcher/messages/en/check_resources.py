"""English: `--check`: memory, limits and storage."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

TEXTS: Final[Mapping[str, str]] = {
    # memory
    "check-memory": "{available} available of {total}",
    "check-memory-unknown": "/proc/meminfo cannot be read",
    "check-memory-small": "{available} available of {total}; the released model needs about {need}",
    "check-memory-small-next": "a board with 8 GB or more; mindnano-infer --demo runs here",
    "check-memory-enough": "{available} available of {total}; a context of {context} needs {need}",
    "check-memory-tight": "{available} available of {total}; a context of {context} needs {need}, "
    "and little remains for anything else",
    "check-memory-tight-next": "close other programs, or use a smaller --context",
    "check-memory-context": "{available} available of {total}; a context of {context} needs {need}",
    "check-memory-context-next": "--context {largest}",
    "check-memory-machine": "{available} available of {total}; the model needs {need}, more than there is",
    "check-memory-machine-next": "a board with more memory, or a smaller model; mindnano-infer --demo runs here",
    "check-memory-busy": "{available} available of {total}; the model needs {need}",
    "check-memory-busy-next": "close other programs or raise the memory limit; "
    "ps -eo rss,comm --sort=-rss shows who uses memory",
    "check-memory-cgroup": "a control group limits this process to {limit} of {total}: {group}",
    "check-memory-no-swap": "no swap; none is needed",
    "check-memory-swap": "swap {swap}; NPU buffers cannot be swapped",
    "check-memory-zram": "swap {swap}, {zram} of it zram, which takes memory itself ({used} now); "
    "NPU buffers cannot be swapped",
    "check-memory-cma": "CMA: {free} free of {total}, for an NPU without IOMMU",
    "check-memory-cma-unneeded": "CMA: {free} free of {total}; nothing here needs it",
    "check-memory-cma-small": "CMA: only {free} free of {total}, and this NPU has no IOMMU",
    "check-memory-cma-small-next": "start the kernel with cma=512M, or use an image whose NPU has its IOMMU on",
    "check-memory-npu-domains": "the weights ({weights}) fit into {used} of {domains} NPU address spaces: {per_domain}",
    "check-memory-npu-domain-single": "driver {driver} has one NPU address space of 4 GB; {missing} of {buffer} "
    "({weights} in all) find no place, {free} are free",
    "check-memory-npu-domain-single-next": "update the board's image: the driver is part of the kernel, "
    "and 0.9.6 or newer has 16; the CPU needs none",
    "check-memory-npu-domains-small": "{missing} of {buffer} ({weights} in all) find no place in {domains} NPU address "
    "spaces, {free} are free",
    "check-memory-npu-domains-small-next": "use a smaller model; the CPU needs no such address space",
    # limits
    "check-limits-unknown": "/proc/self/limits says nothing about open files",
    "check-limits-files": "open files: {soft}, {need} are enough",
    "check-limits-files-raised": "open files: {soft}, and up to {hard} where the NPU needs {need}",
    "check-limits-files-few": "open files: {soft}, at most {hard}; the NPU needs {need} "
    "(two per product, one per buffer) and its runtime crashes without them",
    "check-limits-files-few-next": "as root, ulimit -n {need} before the start; in a systemd unit, LimitNOFILE={need}",
    "check-limits-memlock": "locked memory: {soft}, at most {hard}; nothing is locked",
    "check-limits-address-space": "address space: {soft}; a model larger than that cannot be mapped",
    "check-limits-address-space-next": "ulimit -v unlimited",
    "check-limits-address-space-small": "address space: {soft}, the model needs {need}",
    "check-limits-address-space-small-next": "ulimit -v unlimited",
    "check-limits-address-space-enough": "address space: {soft}, the model needs {need}",
    "check-limits-core": "core dumps up to {soft}; one of this program can be as large as its model",
    "check-limits-core-next": "ulimit -c 0",
    # storage
    "check-storage-unknown": "nothing is known about {path}",
    "check-storage-model": "model folder: {free} free, {medium}, {path}",
    "check-storage-model-full": "model folder: {free} free, the model needs {need}; {medium}, {path}",
    "check-storage-model-full-next": "free some space, or choose another folder with --model-dir",
    "check-storage-model-read-only": "model folder: nothing can be written to {path} ({filesystem})",
    "check-storage-model-read-only-next": "choose another folder with --model-dir",
    "check-storage-cache": "cache folder: {free} free, {medium}, {path}",
    "check-storage-cache-none": "cache folder: neither XDG_CACHE_HOME nor HOME names one, so nothing is remembered",
    "check-storage-cache-none-next": "set XDG_CACHE_HOME to a folder that can be written",
    "check-storage-cache-full": "cache folder: only {free} free, {need} are wanted; {path}",
    "check-storage-cache-full-next": "free some space, or set XDG_CACHE_HOME to another folder",
    "check-storage-cache-read-only": "cache folder: nothing can be written to {path}, so nothing is remembered",
    "check-storage-cache-read-only-next": "set XDG_CACHE_HOME to a folder that can be written",
    "check-storage-cache-noexec": "cache folder: {path} is mounted noexec; "
    "libraries that the one-file program unpacks cannot be loaded from there (a source checkout unpacks none)",
    "check-storage-cache-noexec-next": "set XDG_CACHE_HOME to a folder without noexec",
    "check-storage-temporary": "temporary folder: {free} free, {medium}, {path}",
    "check-storage-temporary-full": "temporary folder: only {free} free, {need} are wanted; {path}",
    "check-storage-temporary-full-next": "free some space, or set TMPDIR to another folder",
    "check-storage-temporary-read-only": "temporary folder: nothing can be written to {path}",
    "check-storage-temporary-read-only-next": "set TMPDIR to a folder that can be written",
    "check-storage-temporary-noexec": "temporary folder: {path} is mounted noexec; "
    "libraries that the one-file program unpacks cannot be loaded from there (a source checkout unpacks none)",
    "check-storage-temporary-noexec-next": "set TMPDIR to a folder without noexec, e.g. TMPDIR=$HOME/tmp",
}
