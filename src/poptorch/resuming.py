"""The state of a training wrapper and its optimizer, for checkpoints to resume training from.

``popdist.checkpoint`` is made of these functions; programs that keep checkpoints of their own can
use them too. States are plain: dictionaries, lists, tensors, numbers and strings.
"""

from collections.abc import Mapping
from typing import Any, TypeGuard

import torch

from poptorch._files.resuming import optimizer_state, put_optimizer
from poptorch._wrapper.executor import PoplarExecutor

__all__ = [
    "is_training_wrapper",
    "named_weights",
    "optimizer_state",
    "processes_of",
    "put_back",
    "put_optimizer",
    "state_of",
]


def is_training_wrapper(model: object) -> TypeGuard[PoplarExecutor]:
    """Return whether an object is a ``poptorch.trainingModel``."""
    return isinstance(model, PoplarExecutor) and model._wrapped.training


def processes_of(model: PoplarExecutor) -> int:
    """Return the number of processes that train a model, from its wrapper's options."""
    return model._wrapped.config.processes


def state_of(model: PoplarExecutor) -> dict[str, Any]:
    """Return the state of a training wrapper, from which training resumes bit for bit.

    Returns:
        ``tensors``: copies of parameters, buffers of each replica, optimizer state, values and
        counters by ``kind/name``; ``random``: its random numbers; ``told``: the optimizer's values
        as last set; ``schedule``: options that must be equal on restoring; ``device``: its type;
        ``programs``: a text on the running programs.

    Raises:
        poptorch.Error: not compiled, so that there is no state yet.
    """
    return model._resuming.state()


def named_weights(model: PoplarExecutor, tensors: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return a saved state's weights under the module's names, for ``load_state_dict``.

    Args:
        model: the wrapper.
        tensors: those of ``state_of``; buffers are taken from the first replica.
    """
    return model._resuming.named_weights(tensors)


def put_back(model: PoplarExecutor, state: Mapping[str, Any], optimizer: Any = None) -> None:
    """Restore a training wrapper's state; before its first call, it is restored at that call.

    Args:
        model: a wrapper made as the one whose state it is.
        state: what ``state_of`` returned; buffers and random numbers may be of another process of
            the same run.
        optimizer: the one in use, with its groups put back; None if there is no object.

    Raises:
        poptorch.Error: another model, or other options; the message names what differs.
    """
    model._resuming.put_back(state, optimizer)
