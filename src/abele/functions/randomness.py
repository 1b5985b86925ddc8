"""Refusal of functions that draw from Python's or numpy's random numbers, or set torch's seed."""

from __future__ import annotations

import contextlib
import inspect
import random
from collections.abc import Generator
from typing import Any

import numpy as np
import torch

from abele import _torch
from abele.errors import CaptureError
from abele.program.core import is_library

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

    def seed(number: int) -> torch.Generator:
        seeded.append("manual_seed")
        return originals[0](number)

    def fork(*args: Any, **kwargs: Any) -> Any:
        frame = inspect.currentframe()
        caller = None if frame is None else frame.f_back
        is_checkpoint = caller is not None and is_library(caller.f_code.co_filename)
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
