"""The ``samba`` module: named tensors, and a session that compiles and runs models.

``docs/sambaflow.md`` shows programs whose loss is part of the model, and whose loss is on the host.
Any other name is a function of ``torch`` whose results are SambaTensors.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from abele._torch import distributed_tensors, dynamo
from sambaflow import errors as errors
from sambaflow.samba import nn as nn
from sambaflow.samba import optim as optim
from sambaflow.samba import utils as utils
from sambaflow.samba._session import SambaSession as SambaSession
from sambaflow.samba._session import session as session
from sambaflow.samba.nn.parameter import SambaParameter as SambaParameter
from sambaflow.samba.nn.parameter import from_torch_model_ as from_torch_model_
from sambaflow.samba.sambaloader import SambaLoader as SambaLoader
from sambaflow.samba.sambatensor import SambaTensor as SambaTensor
from sambaflow.samba.sambatensor import from_torch_tensor as from_torch_tensor
from sambaflow.samba.sambatensor import to_torch as to_torch

dynamo.load_when_needed()
distributed_tensors.load_when_needed()

from_torch_ = from_torch_model_
from_torch = from_torch_tensor
to_torch_tensor = to_torch


@contextlib.contextmanager
def patched_torch() -> Iterator[None]:
    """Return a context without effect, for reference models in plain PyTorch."""
    yield


def is_internal() -> bool:
    """Return False: this is not the vendor's internal build."""
    return False


def __getattr__(name: str) -> Any:
    """Return a function of torch by name; factory functions accept ``name`` and ``batch_dim``."""
    value = getattr(torch, name, None)
    if value is None or name.startswith("_"):
        raise AttributeError(f"samba has no {name!r}, and torch has none either.")
    is_function = callable(value) and not isinstance(value, type)
    return _returning_named(value) if is_function else value


def _returning_named(function: Callable) -> Callable:
    @functools.wraps(function)
    def call(*args: Any, name: str | None = None, batch_dim: int | None = None, **kwargs: Any):
        result = function(*args, **kwargs)
        return _wrapped(result, name, batch_dim)

    return call


def _wrapped(result: Any, name: str | None, batch_dim: int | None) -> Any:
    if isinstance(result, torch.Tensor):
        if result.requires_grad and result.is_leaf:  # as a view it would be none
            made = from_torch_tensor(result.detach(), name=name, batch_dim=batch_dim)
            return made.requires_grad_()
        return from_torch_tensor(result, name=name, batch_dim=batch_dim)
    if type(result) in (list, tuple):
        items = [_wrapped(item, None, batch_dim) for item in result]
        return items if type(result) is list else tuple(items)
    return result
