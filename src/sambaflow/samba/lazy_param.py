"""Models whose weights are not allocated before they are needed."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def lazy_param(enabled: bool = True) -> Iterator[None]:
    """While open, modules get parameters with a shape and no memory; see ``materialize``."""
    with torch.device("meta") if enabled else contextlib.nullcontext():
        yield
