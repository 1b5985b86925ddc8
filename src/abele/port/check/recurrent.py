"""Lets recurrent layers of an original compute what programs compute, in the same roundings."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Generator
from typing import Any

import torch

from abele import _torch
from abele.port.check.channel import Channel


@contextlib.contextmanager
def step_by_step(channel: Channel) -> Generator[None]:
    """While open, ``torch.nn.LSTM`` computes its steps one by one; a note says so once.

    On the host torch has a layer of oneDNN that does all steps at once and rounds otherwise.
    Programs have the steps, because nothing is known of what that layer does inside.
    """
    layer: Any = torch.nn.LSTM
    plain = layer.forward
    said: list[bool] = []

    @functools.wraps(plain)
    def forward(*args: Any, **kwargs: Any) -> Any:
        if not said:
            said.append(True)
            text = "LSTM layers of the original run step by step, without oneDNN's other roundings"
            channel.send("note", text=text)
        with _torch.without_onednn():
            return plain(*args, **kwargs)

    layer.forward = forward
    try:
        yield
    finally:
        layer.forward = plain
