"""Refusal of what a program would not repeat: other random numbers, prints and logs."""

from __future__ import annotations

import builtins
import contextlib
import inspect
import logging
import random
import warnings
from collections.abc import Callable, Generator
from typing import Any

import numpy as np
import torch

from abele import _torch
from abele.errors import CaptureError
from abele.functions.replaced import replaced
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

    def seeding(original: Callable[..., Any]) -> Callable[..., Any]:
        def seed(number: int) -> torch.Generator:
            seeded.append("manual_seed")
            return original(number)

        return seed

    def forking(original: Callable[..., Any]) -> Callable[..., Any]:
        def fork(*args: Any, **kwargs: Any) -> Any:
            (repeated if is_library(_caller()) else seeded).append("fork_rng")
            return original(*args, **kwargs)

        return fork

    try:
        with replaced((torch, "manual_seed", seeding), (_random, "fork_rng", forking)):
            yield repeated
        now = random.getstate(), repr(np.random.get_state(legacy=False))
        drawn = now != (python, repr(numpys))
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
def without_output() -> Generator[None]:
    """Refuse output of the user's code in a ``with`` block, which a program leaves out.

    Raises:
        CaptureError: at the print, log or warning that is shown.
    """

    def refuse(file: str) -> None:
        if not is_library(file):
            raise CaptureError(
                f"The function prints, logs or warns, at {user_line()}, which a program does not "
                "repeat. Do that in a statement of the decorated function itself, or outside."
            )

    def printing(original: Callable[..., Any]) -> Callable[..., Any]:
        def prints(*args: Any, **kwargs: Any) -> None:
            refuse(_caller())
            original(*args, **kwargs)

        return prints

    def logging_of(original: Callable[..., Any]) -> Callable[..., Any]:
        def handle(logger: logging.Logger, record: logging.LogRecord) -> None:
            refuse(record.pathname)
            original(logger, record)

        return handle

    def warning_of(original: Callable[..., Any]) -> Callable[..., Any]:
        def show(message: Any) -> None:
            refuse(message.filename)
            original(message)

        return show

    with replaced(
        (builtins, "print", printing),
        (logging.Logger, "handle", logging_of),
        (warnings, "_showwarnmsg", warning_of),
    ):
        yield


def _caller() -> str:
    """Return the file of the code that has called a replaced function."""
    frame = inspect.currentframe()
    for _ in range(3):  # this function, the replacement, and what chooses it
        frame = None if frame is None else frame.f_back
    return "" if frame is None else frame.f_code.co_filename
