"""Every module and optimizer of torch's own databases, with the inputs that torch tests it with."""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from helpers import random_operators
from helpers.random_networks import Network

# Inputs of each module, spread over those of the database: some have hundreds.
_INPUTS = 8


@dataclasses.dataclass(frozen=True)
class Optimizer:
    """An optimizer and its arguments.

    Attributes:
        name: in torch's database, with a description of the arguments.
        kind: the class.
        arguments: by name.
    """

    name: str
    kind: type[torch.optim.Optimizer]
    arguments: dict[str, Any]


class _Trained(nn.Module):
    """A module whose floating inputs are scaled by parameters, and a loss of its results."""

    def __init__(self, inner: nn.Module, arguments: Any):
        super().__init__()
        self.inner, self._arguments = inner, arguments
        first = random_operators._tensors(arguments)[:1]  # gradients of targets are seldom defined
        self.scales = nn.ParameterList(
            nn.Parameter(torch.tensor(0.875)) for each in first if each.dtype.is_floating_point
        )

    def forward(self, *tensors: torch.Tensor) -> list[torch.Tensor]:
        """Return the results and, last, the sum of squares of the floating ones."""
        scaled = [x * s for x, s in zip(tensors, self.scales, strict=False)]
        given = iter([*scaled, *tensors[len(scaled) :]])
        positional, named = random_operators._mapped(self._arguments, lambda _: next(given))
        results = random_operators._tensors(self.inner(*positional, **named))
        floating = [each.flatten() for each in results if each.dtype.is_floating_point]
        joined = torch.cat(floating)
        return [*results, F.mse_loss(joined, torch.zeros_like(joined), reduction="sum")]


def modules() -> Iterator[tuple[str, Network]]:
    """Yield the name and a trainable form of each module and inputs that eager PyTorch trains."""
    from torch.testing._internal.common_modules import module_db

    for info in module_db:
        torch.manual_seed(0)
        inputs = list(
            info.module_inputs_func(
                info, device="cpu", dtype=torch.float32, requires_grad=False, training=True
            )
        )
        for i in range(0, len(inputs), -(-len(inputs) // _INPUTS)):
            torch.manual_seed(i)
            built, call = inputs[i].constructor_input, inputs[i].forward_input
            arguments = call.args, call.kwargs
            inner = info.module_cls(*built.args, **built.kwargs).train()
            batch = [each.detach().clone() for each in random_operators._tensors(arguments)]
            made = Network(_Trained(inner, arguments), batch, "sgd", [info.name])
            if _trains(made):
                yield f"{info.name} {i}", made


def _trains(made: Network) -> bool:
    if not all(each.layout is torch.strided for each in made.batch):
        return False
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            loss = made.module(*(each.clone() for each in made.batch))[-1]
            gradients = torch.autograd.grad(loss, list(made.module.parameters()), allow_unused=True)
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
        return False
    return all(bool(each.isfinite().all()) for each in (loss, *gradients) if each is not None)


def optimizers() -> Iterator[Optimizer]:
    """Yield each optimizer with each set of arguments that torch tests it with."""
    from torch.testing._internal.common_optimizers import optim_db

    for info in optim_db:
        for each in info.optim_inputs_func(device="cpu"):
            yield Optimizer(f"{info.name}, {each.desc}", info.optim_cls, each.kwargs)
