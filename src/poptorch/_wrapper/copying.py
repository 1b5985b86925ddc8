"""Copies and pickles of wrapped models: the model, the options and the optimizer, wrapped anew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self


class Copying:
    """What a wrapped model does when it is copied or pickled.

    A deep copy, or what comes out of a pickle, is a wrapper of its own around a copy of the module
    and of the optimizer, with the newest weights. It is not compiled yet: its first call does it.
    State travels with optimizers of ``poptorch.optim``. Those of ``torch.optim`` have none on the
    host, so that the copy starts with none.
    """

    def __copy__(self) -> Self:
        other = object.__new__(type(self))
        other.__dict__.update(self.__dict__)
        return other

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable, tuple]:
        del protocol
        executor: Any = self
        optimizer = executor._optimizer_state.optimizer or executor._rule
        parts = (executor.model, executor.options, executor._training, optimizer)
        return _wrapped_again, (type(self), parts, executor.per_replica_params)


def _wrapped_again(cls: type, parts: tuple, per_replica_params: dict) -> Any:
    model, options, training, optimizer = parts
    options._freeze()
    executor = cls(model, options, training, None, optimizer=optimizer, user_model=model)
    executor.per_replica_params = per_replica_params
    return executor
