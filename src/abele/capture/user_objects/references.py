"""Parameters and buffers that forward reaches by another way than its modules.

    self.weights = [self.fc.weight]   ->   forward finds the traced weight in the list, too

While a forward is captured its modules hold tensors of the trace. A list, a dictionary or a closure
still holds the user's own objects; functions of torch get the traced ones in their place.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.overrides import TorchFunctionMode


class References(TorchFunctionMode):
    """While open, functions of torch get other tensors in place of some.

    Args:
        instead: what to pass, by the ``id`` of the object that is replaced.
    """

    def __init__(self, instead: Mapping[int, torch.Tensor]):
        super().__init__()
        self._instead = instead

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls the function with the other tensors."""
        named: dict[str, Any] = kwargs or {}
        named = {name: self.resolved(value) for name, value in named.items()}
        return func(*map(self.resolved, args), **named)

    def resolved(self, value: Any) -> Any:
        """The same value with the other tensors in it."""
        if isinstance(value, torch.Tensor):
            return self._instead.get(id(value), value)
        if type(value) in (list, tuple):
            return type(value)(map(self.resolved, value))
        return value
