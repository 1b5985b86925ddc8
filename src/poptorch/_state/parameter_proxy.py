"""A parameter read through a wrapper, with ``replicaGrouping``."""

import operator
from collections.abc import Callable, Iterator
from typing import Any

import torch

from poptorch._error import error
from poptorch.enums import CommGroupType, VariableRetrievalMode


class ParameterProxy:
    """Stands for a parameter of a wrapped model; not a ``torch.nn.Parameter`` itself.

    Attributes, operators and torch functions are those of the parameter.

    Args:
        executor: the wrapper that it was read from.
        name: the parameter's name in the model.
        parameter: what it stands for.
    """

    __slots__ = ("_executor", "_name", "_parameter")
    _executor: Any
    _name: str
    _parameter: torch.nn.Parameter

    def __init__(self, executor: Any, name: str, parameter: torch.nn.Parameter):
        for slot, value in zip(self.__slots__, (executor, name, parameter), strict=True):
            object.__setattr__(self, slot, value)

    def replicaGrouping(
        self,
        comm_group_type: CommGroupType,
        shards: int,
        variable_retrieval_mode: VariableRetrievalMode,
    ) -> None:
        """Give groups of replicas their own values; call it before the first run.

        The parameter must have a leading dimension, one entry per group; forward sees it without.

        Args:
            comm_group_type: which replicas are in a group; All means no groups.
            shards: replicas per group; ignored by All and NoGrouping.
            variable_retrieval_mode: whether the host gets one value per group or per replica.

        Raises:
            poptorch.Error: the model is compiled already.
        """
        if self._executor.isCompiled():
            raise error(
                f"replicaGrouping() of {self._name} comes too late: the model is compiled. Call it "
                "before the first run, or call destroy() first."
            )
        self._executor.per_replica_params[self._name] = (
            comm_group_type,
            shards,
            variable_retrieval_mode,
        )

    @classmethod
    def __torch_function__(
        cls, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        return func(*_plain(args), **_plain(kwargs or {}))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._parameter, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._parameter, name, _plain(value))

    def __delattr__(self, name: str) -> None:
        delattr(self._parameter, name)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._parameter), "replicaGrouping"})

    def __hash__(self) -> int:
        return hash(self._parameter)

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(self._parameter)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self._parameter.__reduce_ex__(protocol)


def _plain(value: Any) -> Any:
    """Replace proxies by parameters in a structure."""
    if isinstance(value, ParameterProxy):
        return value._parameter
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if type(value) in (tuple, list):
        return type(value)(map(_plain, value))
    return value


# Python looks operators up on the class, so __getattr__ is not asked for them.
_NAMES = {
    "binary": "add sub mul matmul truediv floordiv mod pow lshift rshift and or xor",
    "unary": "neg pos abs invert int float complex bool index len contains repr str format array",
    "others": "eq ne lt le gt ge getitem setitem delitem divmod",
}
_BINARY = _NAMES["binary"].split()
_ALL = [*" ".join(_NAMES.values()).split(), *(f"r{name}" for name in (*_BINARY, "divmod"))]


def _forwarded(name: str) -> Callable:
    def method(self: ParameterProxy, *args: Any, **kwargs: Any) -> Any:
        return getattr(self._parameter, name)(*_plain(args), **_plain(kwargs))

    method.__name__ = name
    return method


def _in_place(name: str) -> Callable:
    function = getattr(operator, f"i{name}")

    def method(self: ParameterProxy, other: Any) -> Any:
        function(self._parameter, _plain(other))
        return self

    return method


for _name in _ALL:
    if hasattr(torch.Tensor, f"__{_name}__"):
        setattr(ParameterProxy, f"__{_name}__", _forwarded(f"__{_name}__"))
for _name in _BINARY:
    if hasattr(torch.Tensor, f"__i{_name}__"):
        setattr(ParameterProxy, f"__i{_name}__", _in_place(_name))
