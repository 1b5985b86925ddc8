"""Calls of modules in forward, and the operations that follow each call.

The beginning of a module's call is where a stage can begin. While a capture runs, each operation is
marked with the number of the latest call.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Generator, Iterator
from typing import Any, cast

import torch
from torch.nn.modules.module import register_module_forward_pre_hook

from abele.pipeline.assignment import STAGE
from abele.trace import scopes


@dataclasses.dataclass
class Entries:
    """The calls of modules in one forward.

    Attributes:
        paths: of the modules, in the order of the calls; empty for the model itself.
    """

    paths: list[str] = dataclasses.field(default_factory=list[str])


@contextlib.contextmanager
def recorded(module: torch.nn.Module) -> Generator[Entries]:
    """While open, a capture of ``module`` marks its operations with numbers of calls.

    Args:
        module: the model; its forward runs once.
    """
    named = cast("Iterator[tuple[str, torch.nn.Module]]", module.named_modules())
    entries, paths = Entries(), {child: path for path, child in named}
    inside: list[bool] = []

    def enter(child: torch.nn.Module, args: Any) -> None:
        # Once the model itself has been entered, in this thread or one that forward waits for.
        if child is module:
            inside.append(True)
        if inside and child in paths:
            scopes.mark(STAGE, len(entries.paths))
            entries.paths.append(paths[child])

    handle = register_module_forward_pre_hook(enter)
    try:
        yield entries
    finally:
        handle.remove()
