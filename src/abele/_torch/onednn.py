"""What torch leaves to oneDNN, and whether it chooses operators that exist for oneDNN alone.

The public ``torch.backends.mkldnn.flags`` also touches settings for Intel GPUs and warns where
there are none.
"""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Generator

import torch

_outer: contextvars.ContextVar[bool] = contextvars.ContextVar("outer", default=True)


def computes_half_convolutions() -> bool:
    """Whether torch leaves convolutions of half numbers to oneDNN on this processor."""
    if not torch.backends.mkldnn.is_available():
        return False
    return bool(torch.ops.mkldnn._is_mkldnn_fp16_supported())


@contextlib.contextmanager
def without_onednn() -> Generator[None]:
    """While open, torch does not choose operators that exist for oneDNN alone."""
    token = _outer.set(torch._C._get_mkldnn_enabled())
    try:
        with _onednn(enabled=False):
            yield
    finally:
        _outer.reset(token)


def with_outer_onednn() -> contextlib.AbstractContextManager[None]:
    """Within ``without_onednn``, torch chooses as it did outside while this is open."""
    return _onednn(enabled=_outer.get())


@contextlib.contextmanager
def _onednn(*, enabled: bool) -> Generator[None]:
    before = torch._C._get_mkldnn_enabled()
    torch._C._set_mkldnn_enabled(enabled)
    try:
        yield
    finally:
        torch._C._set_mkldnn_enabled(before)
