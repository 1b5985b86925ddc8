"""Test helpers for SambaFlow programs."""

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch

from sambaflow.samba.utils import assert_close, set_seed

Pairs = Iterable[tuple[str, torch.Tensor]]


def consistency_test(seed: int = 0, threshold: float = 0.0) -> Callable[[Callable], Callable]:
    """Decorate a function to run twice from one seed and compare its results.

    Args:
        seed: of all random numbers, before each run.
        threshold: as for ``assert_close``; by default results have to be the same.

    Returns:
        A decorator for functions that return pairs of a name and a tensor.
    """

    def decorate(function: Callable[..., Pairs]) -> Callable[..., Pairs]:
        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Pairs:
            set_seed(seed)
            first = [(name, torch.clone(value)) for name, value in function(*args, **kwargs)]
            set_seed(seed)
            for (name, value), (_, again) in zip(first, function(*args, **kwargs), strict=True):
                assert_close(again, value, name, threshold)
            return first

        return run

    return decorate
