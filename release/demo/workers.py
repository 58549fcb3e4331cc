"""Several single-threaded processes that train one model: each has its own text, gradients are averaged every step.

On few cores this beats one process with several threads: the operations are small, so threads would meet thousands of
times a step, and each meeting waits for the slowest; processes meet once.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, distributed, multiprocessing


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """One worker's view of all: its rank and how many there are."""

    rank: int
    size: int

    def average(self, tensors: list[Tensor]) -> None:
        """Replaces each tensor by its mean over all workers."""
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        distributed.all_reduce(flat)
        flat /= self.size
        for tensor, part in zip(tensors, flat.split([tensor.numel() for tensor in tensors]), strict=True):  # type: ignore[no-untyped-call]
            tensor.copy_(part.view_as(tensor))

    def gather(self, value: Any) -> list[Any]:
        """Every worker's value, at rank 0; an empty list elsewhere."""
        values: list[Any] = [None] * self.size
        distributed.gather_object(value, values if self.rank == 0 else None)
        return values if self.rank == 0 else []


def _start(rank: int, size: int, meeting: str, work: Callable[..., None], arguments: tuple[Any, ...]) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    distributed.init_process_group("gloo", init_method=meeting, rank=rank, world_size=size)
    work(Team(rank=rank, size=size), *arguments)
    distributed.destroy_process_group()


def run_team(size: int, folder: Path, work: Callable[..., None], *arguments: Any) -> None:
    """Runs `work(team, *arguments)` in `size` processes and waits for all; a failure in one ends all."""
    meeting = folder / "meeting"
    meeting.unlink(missing_ok=True)
    multiprocessing.spawn(  # type: ignore[attr-defined,no-untyped-call]
        _start, args=(size, f"file://{meeting.resolve()}", work, arguments), nprocs=size
    )
    meeting.unlink(missing_ok=True)
