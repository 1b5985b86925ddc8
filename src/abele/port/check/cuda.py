"""Lets a script that asks for a GPU run on the host, where the port is compared with it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from abele.port.check.channel import Channel

_HOST = torch.device("cpu")
_Tensor: Any = torch.Tensor  # its methods have no types


class _Host(TorchFunctionMode):
    """Makes tensors on the host that a script wants on a GPU."""

    def __init__(self, note: Callable[[], None]):
        super().__init__()
        self._note = note

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Calls a function, for the host instead of a GPU."""
        kwargs = kwargs or {}
        if func is _Tensor.cuda:
            self._note()
            return args[0]
        if func is _Tensor.to and len(args) > 1 and type(args[1]) is int:
            args = (args[0], self._host(f"cuda:{args[1]}"), *args[2:])
        if getattr(func, "__name__", "") == "_parse_to" and args and type(args[0]) is int:
            args = (self._host(f"cuda:{args[0]}"), *args[1:])  # of Module.to
        args = tuple(self._host(each) for each in args)
        return func(*args, **{name: self._host(each) for name, each in kwargs.items()})

    def _host(self, value: Any) -> Any:
        is_name = isinstance(value, str) and (value == "cuda" or value.startswith("cuda:"))
        if is_name or (isinstance(value, torch.device) and value.type == "cuda"):
            self._note()
            return _HOST
        return value


@contextlib.contextmanager
def cuda_is_the_host(channel: Channel) -> Generator[None]:
    """While open, tensors that are asked for on a GPU are on the host; a note says so once."""
    said: list[bool] = []

    def note() -> None:
        if not said:
            said.append(True)
            channel.send("note", text="the original asks for a GPU and runs on the host instead")

    cuda: Any = torch.cuda
    plain = {name: getattr(cuda, name) for name in ("synchronize", "set_device", "empty_cache")}
    for name in plain:
        setattr(cuda, name, _nothing(name))
    try:
        with _Host(note):
            yield
    finally:
        for name, function in plain.items():
            setattr(cuda, name, function)


def _nothing(name: str) -> Callable[..., None]:
    """A function of its own for each name: torch's compiler refuses one object with several."""

    def nothing(*args: Any, **kwargs: Any) -> None:
        """There is no GPU to wait for or to choose."""

    nothing.__name__ = name
    return nothing
