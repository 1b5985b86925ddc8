"""Refusal of what a program would not repeat: other random numbers, prints and logs."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import io
import logging
import os
import pickle
import random
import sys
import warnings
from collections.abc import Generator, Iterable
from typing import Any

import numpy as np
import torch

from abele import _torch
from abele._torch.replaced import Function, replaced
from abele.errors import CaptureError, DataDependentError
from abele.functions.frames import is_of_python
from abele.program.core import is_library
from abele.warn import user_line

_random: Any = torch.random
# What reaches outside of the process, or reads what others may set.
_OUTSIDE = (
    *((builtins, "print"), (builtins, "open"), (io, "open")),
    *((os, name) for name in ("stat", "lstat", "listdir", "scandir", "getcwd")),
    *((torch, "initial_seed"), (torch, "get_num_threads")),
    *((torch, "get_float32_matmul_precision"), (np, "geterr")),
)
_OWN = (__file__, inspect.getfile(inspect.unwrap(replaced)))


@contextlib.contextmanager
def without_random_numbers() -> Generator[list[str]]:
    """Refuse random numbers that a program would repeat, in a ``with`` block.

    A program draws from torch's own stream at each call. Numbers of other generators would be those
    of the captured call for ever; the generators are put back.

    Yields:
        A list that has an entry once a checkpoint draws again what its forward drew.

    Raises:
        CaptureError: on leaving, if such numbers were drawn or a seed was set.
    """
    python, numpys = random.getstate(), np.random.get_state(legacy=False)
    torchs, seeded, repeated = _stream(), list[str](), list[str]()

    def seed(original: Function, number: int) -> torch.Generator:
        seeded.append("manual_seed")
        return original(number)

    def fork(original: Function, *args: Any, **kwargs: Any) -> Any:
        (seeded if _is_by_user() else repeated).append("fork_rng")
        return original(*args, **kwargs)

    try:
        with replaced((torch, "manual_seed", seed), (_random, "fork_rng", fork)):
            yield repeated
        now = random.getstate(), pickle.dumps(np.random.get_state(legacy=False))
        drawn = now != (python, pickle.dumps(numpys))
        seeded += [] if _stream() == torchs else ["a seed"]
    finally:
        random.setstate(python)
        np.random.set_state(numpys)
        with _torch.outside_the_trace():
            torch.set_rng_state(torch.frombuffer(bytearray(torchs), dtype=torch.uint8))
    if drawn:
        raise CaptureError(
            "The function draws random numbers of Python's random or of numpy, which a program "
            "would repeat. Draw them with torch, or outside and pass them."
        )
    if seeded:
        raise CaptureError(
            "The function sets torch's seed or stream. Do that outside of the function."
        )


def _stream() -> bytes:
    """Return the state of torch's generator on the host."""
    with _torch.outside_the_trace():
        return torch.get_rng_state().numpy().tobytes()


@contextlib.contextmanager
def without_output(streams: Iterable[io.IOBase]) -> Generator[None]:
    """Refuse output and reading of files by the user's code, which a program leaves out.

    Args:
        streams: those that the code may write to, beside the standard ones.

    Raises:
        DataDependentError: at what prints, logs, warns, opens or looks for a file, writes to a
            stream, or reads a setting of the process. Statements of the host may do so.
    """

    def refuse(*, by_user: bool) -> None:
        if by_user:
            raise DataDependentError(
                "The function prints, logs, warns or writes, or reads a file or a setting of the "
                f"process, at {user_line()}, which a program does not repeat. Do that in a "
                "statement of the decorated function itself, or outside."
            )

    def reach(original: Function, *args: Any, **kwargs: Any) -> Any:
        refuse(by_user=_is_by_user())
        return original(*args, **kwargs)

    def handle(original: Function, logger: logging.Logger, record: logging.LogRecord) -> None:
        refuse(by_user=not is_library(record.pathname))
        original(logger, record)

    def show(original: Function, message: Any) -> None:
        refuse(by_user=not is_library(message.filename))
        original(message)

    known = {id(each): each for each in (sys.stdout, sys.stderr, *streams)}.values()
    with replaced(
        *((module, name, reach) for module, name in _OUTSIDE),
        *((stream, "write", reach) for stream in known if hasattr(stream, "__dict__")),
        (logging.Logger, "handle", handle),
        (warnings, "_showwarnmsg", show),
    ):
        yield


def _is_by_user() -> bool:
    """Return whether the user's code calls a replaced function, by itself or Python's own."""
    frame = inspect.currentframe()
    while frame is not None:
        file = frame.f_code.co_filename
        if file not in _OWN and not is_of_python(file):
            return not is_library(file)
        frame = frame.f_back
    return False
