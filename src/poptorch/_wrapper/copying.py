"""Copies and pickles of wrapped models: the model, the options and the optimizer, wrapped anew.

A deep copy, or what comes out of a pickle, is a wrapper of its own around a copy of the module
and of the optimizer, with the newest weights. It is not compiled yet: its first call does it.
State travels with optimizers of ``poptorch.optim``. Those of ``torch.optim`` have none on the
host, so that the copy starts with none.
"""

from typing import Any

from poptorch._compiled.wrapped import WrappedModel
from poptorch._optim.state import OptimizerInUse


def parts_of(model: WrappedModel, optimizer: OptimizerInUse) -> tuple:
    """Return the arguments of ``wrapped_again`` for copy and pickle."""
    chosen = optimizer.state.optimizer or optimizer.rule
    parts = (model.user_module, model.options, model.training, chosen)
    return parts, model.per_replica_params


def wrapped_again(cls: type, parts: tuple, per_replica_params: dict) -> Any:
    """Create a wrapper of the class around copied parts."""
    model, options, training, optimizer = parts
    options._freeze()
    executor = cls(model, options, training, None, optimizer=optimizer, user_model=model)
    executor.per_replica_params = per_replica_params
    return executor
