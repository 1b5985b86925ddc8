"""Refusal of what a program would not repeat: other random numbers, prints and logs."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import logging
import random
import threading
from collections.abc import Generator
from typing import Any

import numpy as np
import torch

from abele import _torch
from abele.errors import CaptureError
from abele.program.core import is_library
from abele.warn import user_line

_random: Any = torch.random


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
    functions: Any = torch
    originals = functions.manual_seed, _random.fork_rng

    thread = threading.get_ident()

    def seed(number: int) -> torch.Generator:
        seeded.extend(["manual_seed"] if threading.get_ident() == thread else [])
        return originals[0](number)

    def fork(*args: Any, **kwargs: Any) -> Any:
        frame = inspect.currentframe()
        caller = None if frame is None else frame.f_back
        is_checkpoint = caller is not None and is_library(caller.f_code.co_filename)
        if threading.get_ident() == thread:
            (repeated if is_checkpoint else seeded).append("fork_rng")
        return originals[1](*args, **kwargs)

    functions.manual_seed, _random.fork_rng = seed, fork
    try:
        yield repeated
        now = random.getstate(), repr(np.random.get_state(legacy=False))
        drawn = now != (python, repr(numpys))
        seeded += [] if _stream() == torchs else ["a seed"]
    finally:
        functions.manual_seed, _random.fork_rng = originals
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
def without_output() -> Generator[None]:
    """Refuse prints and logs of the user's code in a ``with`` block, which a program leaves out.

    Raises:
        CaptureError: at the print or log.
    """
    prints, handle = builtins.print, logging.Logger.handle
    thread = threading.get_ident()

    def refuse(file: str) -> None:
        if threading.get_ident() == thread and not is_library(file):
            raise CaptureError(
                f"The function prints or logs, at {user_line()}, which a program does not repeat. "
                "Do that in a statement of the decorated function itself, or outside."
            )

    def refused_print(*args: Any, **kwargs: Any) -> None:
        frame = inspect.currentframe()
        caller = None if frame is None else frame.f_back
        refuse("" if caller is None else caller.f_code.co_filename)
        prints(*args, **kwargs)

    def refused_handle(logger: logging.Logger, record: logging.LogRecord) -> None:
        refuse(record.pathname)
        handle(logger, record)

    changed: Any = (builtins, logging.Logger)
    changed[0].print, changed[1].handle = refused_print, refused_handle
    try:
        yield
    finally:
        changed[0].print, changed[1].handle = prints, handle
