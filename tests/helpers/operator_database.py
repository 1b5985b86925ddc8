"""Each operator of torch's database alone, called with a sample that torch tests it with."""

from __future__ import annotations

import dataclasses
import itertools
import warnings
from collections.abc import Iterator
from typing import Any

import torch

from abele.capture.replacements.portable import portable_functions
from helpers import random_operators

Tensors = list[torch.Tensor]

# Samples that are looked at for one that is small and has finite gradients.
_MOST = 12


@dataclasses.dataclass(frozen=True)
class Alone:
    """An operator and a sample.

    Attributes:
        name: in torch's database, with that of its variant.
        operator: of the database.
        arguments: of the sample, by position and by name.
    """

    name: str
    operator: Any
    arguments: Any

    @property
    def inputs(self) -> Tensors:
        """Copies of the sample's tensors."""
        return [each.clone() for each in random_operators._tensors(self.arguments)]

    def __call__(self, *tensors: torch.Tensor) -> Tensors:
        """The results for other tensors, as forward is captured."""
        with portable_functions(training=True, whole_layers=True):
            return self.plain(*tensors)

    def plain(self, *tensors: torch.Tensor) -> Tensors:
        """The results of plain PyTorch."""
        given = iter(tensors)
        positional, named = random_operators._mapped(self.arguments, lambda _: next(given))
        return random_operators._tensors(self.operator(*positional, **named))

    def eagerly(self) -> Tensors:
        """Results and the gradients of the sum of their squares, as ``program_of`` has them."""
        leaves = [each.requires_grad_(each.dtype.is_floating_point) for each in self.inputs]
        results = self.plain(*leaves)
        squares = [(each * each).sum() for each in results if each.dtype.is_floating_point]
        total = torch.stack([each.to(squares[0].dtype) for each in squares]).sum()
        wanted = [each for each in leaves if each.requires_grad]
        gradients = torch.autograd.grad(total, wanted, allow_unused=True)
        return [each.detach() for each in (*results, *gradients) if each is not None]


def alone() -> Iterator[Alone]:
    """Every operator whose gradients plain PyTorch computes for one of its samples."""
    for operator in random_operators.operators():
        variant = f" {operator.variant_test_name}" if operator.variant_test_name else ""
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            samples = operator.sample_inputs("cpu", torch.float32, requires_grad=False)
            for sample in itertools.islice(samples, _MOST):
                arguments = (sample.input, *sample.args), sample.kwargs
                case = Alone(f"{operator.name}{variant}", operator.op, arguments)
                if random_operators._is_small(sample) and _is_finite(case):
                    yield case
                    break


def _is_finite(case: Alone) -> bool:
    tensors = case.inputs
    if any(each.layout is not torch.strided for each in tensors) or not sum(
        map(torch.numel, tensors)
    ):
        return False
    try:
        return all(bool(each.isfinite().all()) for each in case.eagerly())
    except (RuntimeError, ValueError, TypeError, IndexError, NotImplementedError):
        return False
