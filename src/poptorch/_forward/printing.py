"""The text form of annotated modules."""

import builtins
import textwrap
from typing import Any

import torch

from abele import _torch


def module_repr(m: torch.nn.Module) -> str:
    """Return the text form of a module, in which hooks that run before forward precede the names.

    Args:
        m: a module, such as one annotated by ``BeginBlock``.

    Raises:
        AssertionError: it is not a module.
    """
    if not isinstance(m, torch.nn.Module):
        raise AssertionError(f"module_repr takes a torch.nn.Module, not {m!r}")
    hooks = "".join(f"{hook!r} " for hook in _torch.forward_pre_hooks(m).values())
    extra = m.extra_repr()
    children = [
        f"({name}): {_indented(module_repr(child)) if child is not None else None}"
        for name, child in _torch.children_by_name(m).items()
    ]
    if children or "\n" in extra:
        lines = [*(extra.split("\n") if extra else []), *children]
        inside = "".join(f"\n  {line}" for line in lines) + "\n"
    else:
        inside = extra
    return f"{hooks}{type(m).__name__}({inside})"


def _indented(text: str) -> str:
    first, separator, rest = text.partition("\n")
    return first + separator + textwrap.indent(rest, "  ")


def print(m: Any) -> None:
    """Print a module with its annotations, and then once more as Python prints it.

    Args:
        m: a module; anything else is printed once.
    """
    if isinstance(m, torch.nn.Module):
        builtins.print(module_repr(m))
    builtins.print(m)
