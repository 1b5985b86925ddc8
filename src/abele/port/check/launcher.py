"""Runs a watched script, in the process that ``run`` has started for it.

The script is run as Python would run it, after seeds were set and hooks were placed. It is stopped
after enough steps by an exception that no ``except Exception`` of its catches.
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
from pathlib import Path
from typing import Any

import numpy
import torch
from torch.utils.data import DataLoader

from abele.port.check.channel import Channel
from abele.port.check.watch import Enough
from abele.port.check.watch_original import Original
from abele.port.check.watch_port import Port

_OF_WORKERS = {
    *("num_workers", "timeout", "prefetch_factor", "persistent_workers"),
    *("multiprocessing_context", "worker_init_fn"),
}


def main(text: str) -> None:
    """Run a script and tell what it does.

    Args:
        text: as JSON: ``script``, ``arguments``, ``port`` (which of the two it is), ``steps``,
            ``seed``.
    """
    request = json.loads(text)
    channel = Channel(os.dup(0), os.dup(1))
    _leave_streams_to_the_script()
    error = None
    try:
        _watched(request, channel)
    except Enough:
        pass
    except SystemExit as ended:
        if ended.code not in (None, 0):
            error = f"It exited with {ended.code!r}."
    except BaseException:  # noqa: BLE001 - whatever ends a script is to be told
        error = traceback.format_exc()
    channel.send("end", error=error)
    sys.stdout.flush()
    # Threads and workers of a script that was stopped may not end by themselves.
    os._exit(0)


def _watched(request: dict[str, Any], channel: Channel) -> None:
    script = Path(request["script"])
    sys.argv = [str(script), *request["arguments"]]
    sys.path.insert(0, str(script.resolve().parent))
    loads_in_the_process(channel)
    watch = (Port if request["port"] else Original)(channel, request["steps"])
    with contextlib.ExitStack() as stack:
        stack.enter_context(watch.watching())
        seed(request["seed"])
        runpy.run_path(str(script), run_name="__main__")
        watch.finish()


def seed(number: int) -> None:
    """Seed what scripts draw from; their own seeds come later and win."""
    random.seed(number)
    numpy.random.seed(number)
    untyped: Any = torch
    untyped.manual_seed(number)


def _leave_streams_to_the_script() -> None:
    """What the script prints goes where errors go; it has nothing to read."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.dup2(2, 1)


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
