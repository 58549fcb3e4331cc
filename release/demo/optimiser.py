"""The optimiser: orthogonalised momentum for the matrices inside the layers, AdamW for everything else.

Orthogonalised momentum is Muon (Jordan et al. 2024), with the update scaled to the size of an AdamW update (Liu et al.
2025, "Muon is Scalable for LLM Training"). Written here because the experts are stacks of matrices: all matrices of
one shape are orthogonalised in one batch, which is several times faster than one by one.
"""

from collections import defaultdict
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor, nn

# Coefficients of the quintic Newton-Schulz iteration, as published with Muon.
_QUINTIC: Final = (3.4445, -4.7750, 2.0315)
_ITERATIONS: Final = 5


def orthogonalise(matrices: Tensor) -> Tensor:
    """Replaces the singular values of each matrix in [count, rows, columns] by values near one."""
    tall = matrices.shape[1] > matrices.shape[2]
    x: Tensor = matrices.transpose(1, 2) if tall else matrices
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    first, third, fifth = _QUINTIC
    for _ in range(_ITERATIONS):
        gram = x @ x.transpose(1, 2)
        x = first * x + torch.baddbmm(gram, gram, gram, beta=third, alpha=fifth) @ x
    return x.transpose(1, 2) if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum, orthogonalised per matrix; parameters are matrices or stacks of matrices."""

    def __init__(self, parameters: Iterable[nn.Parameter], *, momentum: float = 0.95, decay: float = 0.02) -> None:
        super().__init__(list(parameters), {"lr": 0.0, "momentum": momentum, "decay": decay})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[tuple[int, int], list[nn.Parameter]] = defaultdict(list)
            for parameter in group["params"]:
                shapes[(parameter.shape[-2], parameter.shape[-1])].append(parameter)
            for shape, parameters in shapes.items():
                self._update(shape, parameters, group["lr"], group["momentum"], group["decay"])

    def _update(
        self, shape: tuple[int, int], parameters: list[nn.Parameter], rate: float, momentum: float, decay: float
    ) -> None:
        looked_ahead = []
        for parameter in parameters:
            assert parameter.grad is not None
            memory = self.state[parameter].setdefault("momentum", torch.zeros_like(parameter))
            memory.lerp_(parameter.grad, 1 - momentum)
            looked_ahead.append(parameter.grad.lerp(memory, momentum).reshape(-1, *shape))
        updates = orthogonalise(torch.cat(looked_ahead)).split([len(part) for part in looked_ahead])  # type: ignore[no-untyped-call]
        scale = 0.2 * max(shape) ** 0.5
        for parameter, update in zip(parameters, updates, strict=True):
            parameter.mul_(1 - rate * decay).add_(update.reshape(parameter.shape), alpha=-rate * scale)


def optimisers(model: nn.Module) -> tuple[Muon, torch.optim.AdamW]:
    """Shares the parameters out: matrices inside layers to Muon; tables, head, router, convolutions, norms to AdamW."""
    matrices, others = [], []
    for name, parameter in model.named_parameters():
        inner = parameter.dim() >= 2 and name.startswith("layers.")
        if inner and "conv1d" not in name and ".mlp.gate." not in name:
            matrices.append(parameter)
        else:
            others.append(parameter)
    adam = torch.optim.AdamW(others, lr=0.0, betas=(0.9, 0.95), eps=1e-10, weight_decay=0.0, foreach=True)
    return Muon(matrices), adam
