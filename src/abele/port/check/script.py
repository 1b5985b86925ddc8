"""Runs a watched script in the process that ``process.recorded`` has started.

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
from collections.abc import Callable, Generator, Sized
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader

from abele.port.check.watch import LEFT_OUT, Enough, Original, Port, Record

WATCHERS: dict[str, Callable[[Record], Original | Port]] = {"original": Original, "port": Port}
_HOST = torch.device("cpu")
_Tensor: Any = torch.Tensor  # its methods have no types
_OF_WORKERS = {
    *("num_workers", "timeout", "prefetch_factor", "persistent_workers"),
    *("multiprocessing_context", "worker_init_fn"),
}


def main(text: str) -> None:
    """Run a script and record its training updates.

    Args:
        text: JSON with the fields of ``process.Run``, and ``records``, the file of the record.
    """
    request = json.loads(text)
    record = Record(request["records"])
    error, ended = None, False
    try:
        _watched(request, record)
        ended = True
    except Enough:
        pass
    except SystemExit as exited:
        error = f"It exited with {exited.code!r}."
    except BaseException:  # noqa: BLE001 - whatever ends a script is recorded
        error = traceback.format_exc()
    record.add("end", error=error, ended=ended)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # threads and workers of a script that was stopped may not end by themselves


def _watched(request: dict[str, Any], record: Record) -> None:
    script = Path(request["script"])
    sys.argv = [str(script), *request["arguments"]]
    sys.path.insert(0, str(script.resolve().parent))
    with_loaders_noted(record)
    record.steps, record.save = request["steps"], request["save"]
    watch = WATCHERS[request["watcher"]](record)
    host = cuda_is_the_host(record) if isinstance(watch, Original) else contextlib.nullcontext()
    with host, watch.watching():
        seed(request["seed"])
        try:
            runpy.run_path(str(script), run_name="__main__")
        except SystemExit as exited:
            if exited.code not in (None, 0):
                raise
        watch.finish()


def seed(number: int) -> None:
    """Seed all random generators before a script runs; seeds set by the script take precedence."""
    random.seed(number)
    numpy.random.seed(number)
    untyped: Any = torch
    untyped.manual_seed(number)


def with_loaders_noted(record: Record) -> None:
    """Disable data loader workers, so that random numbers are drawn in a fixed order.

    Rows that a loader leaves out are noted.
    """
    made: Any = DataLoader
    construct = made.__init__
    plain = inspect.signature(construct)

    @functools.wraps(construct)
    def without_workers(*args: Any, **kwargs: Any) -> None:
        values = plain.bind(*args, **kwargs).arguments
        if values.get("num_workers"):
            record.note("data loaders load in their process, without workers")
            for name in _OF_WORKERS & values.keys():
                del values[name]
        construct(values.pop("self"), **values)
        data, size = values["dataset"], values.get("batch_size")
        if values.get("drop_last") and size and isinstance(data, Sized) and len(data) % size:
            record.note(f"{len(data) % size} of {len(data):,} rows {LEFT_OUT}")

    setattr(made, "__init__", without_workers)  # noqa: B010 - for all loaders of the process
    warnings.filterwarnings("ignore", message=".*pin_memory.*")


class _Host(TorchFunctionMode):
    """A torch function mode that redirects CUDA devices to the CPU."""

    def __init__(self, note: Callable[[], None]):
        super().__init__()
        self._note = note

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Call a torch function with CUDA devices replaced by the CPU."""
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
def cuda_is_the_host(record: Record) -> Generator[None]:
    """Place tensors that a script creates on CUDA on the CPU instead, and record a note."""
    cuda: Any = torch.cuda
    for name in ("synchronize", "set_device", "empty_cache"):
        setattr(cuda, name, _nothing(name))
    with _Host(lambda: record.note("the original asks for a GPU and runs on the host instead")):
        yield


def _nothing(name: str) -> Callable[..., None]:
    """Return a new no-op function with a name: torch.compile refuses one with several names."""

    def nothing(*args: Any, **kwargs: Any) -> None:
        """Do nothing, because no GPU exists to synchronize or select."""

    nothing.__name__ = name
    return nothing
