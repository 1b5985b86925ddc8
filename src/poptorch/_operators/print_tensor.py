"""Printing from inside a program."""

import torch

from abele import _torch
from abele.ops.print_tensor import print_tensor
from abele.ops.tensor_text import FORMATS, Layout
from poptorch._error import error
from poptorch._forward.running import isRunningOnIpu


def ipu_print_tensor(
    tensor: torch.Tensor,
    title: str = "",
    print_gradient: bool = True,
    summarise_threshold: int = 1000,
    edge_items: int = 3,
    max_line_width: int = 80,
    digits: int = 4,
    float_format: str = "auto",
    separator: str = ", ",
    open_bracket: str = "(",
    close_bracket: str = ")",
) -> torch.Tensor:
    """Return ``tensor`` and have the program write it to stderr whenever it is computed.

    That is once per micro-batch and replica, not once per call. Use the result: a print whose
    result nothing reads is left out. Outside of a wrapper nothing is printed.

    Args:
        tensor: any shape and type.
        title: stands before the values; default the value's name in the program.
        print_gradient: when training, also write the gradient, under the title with "_gradient".
        summarise_threshold: with more elements than this only the edges are written.
        edge_items: entries at both ends of each dimension of a summary.
        max_line_width: columns after which rows break; 0 for never.
        digits: digits after the point.
        float_format: "auto", "fixed", "scientific", or "none" for type and shape without values.
        separator: between entries.
        open_bracket: before the entries of a dimension.
        close_bracket: after them.

    Returns:
        The same values; with gradients.

    Raises:
        poptorch.Error: not a tensor.
        KeyError: unknown float_format.
    """
    if not isinstance(tensor, torch.Tensor):
        raise error(
            "The 'tensor' argument of ipu_print_tensor must be a torch.Tensor, found "
            f"{type(tensor).__name__}. Use print() for other values."
        )
    if float_format not in FORMATS:
        raise KeyError(f"Unknown float_format {float_format!r}. Use one of {FORMATS}.")
    if not isRunningOnIpu():
        return tensor
    title = title or _name(tensor)
    layout = Layout(
        summarise_threshold=summarise_threshold,
        edge_items=edge_items,
        max_line_width=max_line_width,
        digits=digits,
        float_format=float_format,
        separator=separator,
        open_bracket=open_bracket,
        close_bracket=close_bracket,
    )
    return print_tensor(tensor, title, f"{title}_gradient" if print_gradient else "", layout)


def _name(tensor: torch.Tensor) -> str:
    node = _torch.traced_node(tensor)
    return "constant" if node is None else node.name
