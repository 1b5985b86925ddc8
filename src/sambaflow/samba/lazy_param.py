"""Lazy parameters: models without allocated weights."""

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def lazy_param(enabled: bool = True) -> Iterator[None]:
    """Return a context in which modules get parameters without memory; see ``materialize``."""
    with torch.device("meta") if enabled else contextlib.nullcontext():
        yield
