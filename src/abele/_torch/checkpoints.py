"""What activation checkpoints compute again in backward."""

# pyright: reportPrivateUsage=false

from __future__ import annotations

import contextlib
import functools
import threading
from collections.abc import Callable, Generator
from typing import Any

from torch.utils import checkpoint


@contextlib.contextmanager
def recomputed_within(context: Callable[[], Any]) -> Generator[None]:
    """While open, checkpoints of this thread compute again within a context of their own.

    Backward runs without the modes that were open in forward, and torch refuses to go on where the
    second computation saves other tensors than the first.

    Args:
        context: makes a context manager, once for each computation.
    """
    module: Any = checkpoint
    original, thread = module._checkpoint_without_reentrant_generator, threading.get_ident()

    def generator(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        @functools.wraps(function)
        def again(*args: Any, **kwargs: Any) -> Any:
            with context():
                return function(*args, **kwargs)

        ours = threading.get_ident() == thread
        return original(again if ours else function, *args, **kwargs)

    module._checkpoint_without_reentrant_generator = generator
    try:
        yield
    finally:
        module._checkpoint_without_reentrant_generator = original
