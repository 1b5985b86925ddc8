"""Run a watched script in the process that ``process.Script`` has started for it.

The script runs as Python would run it, after seeds were set and hooks were placed. An exception
that no ``except Exception`` catches ends it after enough steps.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import random
import runpy
import sys
import traceback
import warnings
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from abele.port.check.watch import Channel, Enough, Original, Port

_HOST = torch.device("cpu")
_Tensor: Any = torch.Tensor  # its methods have no types
_OF_WORKERS = {
    *("num_workers", "timeout", "prefetch_factor", "persistent_workers"),
    *("multiprocessing_context", "worker_init_fn"),
}


def main(text: str) -> None:
    """Run a script and send what it does.

    Args:
        text: JSON with ``script``, ``arguments``, ``port`` (which of the two it is), ``steps`` and
            ``seed``.
    """
    request = json.loads(text)
    channel = Channel(os.dup(0), os.dup(1))
    # What the script prints goes where errors go; it has nothing to read.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    error = None
    try:
        _watched(request, channel)
    except Enough:
        pass
    except SystemExit as ended:
        if ended.code not in (None, 0):
            error = f"It exited with {ended.code!r}."
    except BaseException:  # noqa: BLE001 - whatever ends a script is sent
        error = traceback.format_exc()
    channel.send("end", error=error)
    sys.stdout.flush()
    os._exit(0)  # threads and workers of a script that was stopped may not end by themselves


def _watched(request: dict[str, Any], channel: Channel) -> None:
    script = Path(request["script"])
    sys.argv = [str(script), *request["arguments"]]
    sys.path.insert(0, str(script.resolve().parent))
    loads_in_the_process(channel)
    watch = (Port if request["port"] else Original)(channel, request["steps"])
    host = contextlib.nullcontext() if request["port"] else cuda_is_the_host(channel)
    with host, watch.watching():
        seed(request["seed"])
        runpy.run_path(str(script), run_name="__main__")
        watch.finish()


def seed(number: int) -> None:
    """Seed what scripts draw from; their own seeds come later and win."""
    random.seed(number)
    numpy.random.seed(number)
    untyped: Any = torch
    untyped.manual_seed(number)


def loads_in_the_process(channel: Channel) -> None:
    """Have every data loader load in this process, so that both scripts draw in the same order."""
    made: Any = DataLoader
    construct = made.__init__
    plain = inspect.signature(construct)

    @functools.wraps(construct)
    def without_workers(*args: Any, **kwargs: Any) -> None:
        values = plain.bind(*args, **kwargs).arguments
        if values.get("num_workers"):
            channel.send("note", text="data loaders load in their process, without workers")
            for name in _OF_WORKERS & values.keys():
                del values[name]
        construct(values.pop("self"), **values)

    setattr(made, "__init__", without_workers)  # noqa: B010 - for all loaders of the process
    warnings.filterwarnings("ignore", message=".*pin_memory.*")


class _Host(TorchFunctionMode):
    """A mode that makes tensors on the host that a script wants on a GPU."""

    def __init__(self, note: Callable[[], None]):
        super().__init__()
        self._note = note

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a function, for the host instead of a GPU."""
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
    """While open, put tensors on the host that are asked for on a GPU, and send a note once."""
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
    """Return a function of its own for each name: torch's compiler refuses one with several."""

    def nothing(*args: Any, **kwargs: Any) -> None:
        """Do nothing: there is no GPU to wait for or to choose."""

    nothing.__name__ = name
    return nothing
