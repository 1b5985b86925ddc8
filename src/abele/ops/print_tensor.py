"""An operator that prints a tensor in each run of a program, and its gradient in backward.

The operator returns its argument (a copy: an operator of our own may not return an alias), so a
print happens exactly where its result is used. Importing this module registers it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from abele.ops._register import register_gradient, shapes_of
from abele.ops.silence import is_silenced
from abele.ops.tensor_text import Layout, tensor_text
from abele.program import declare_effect
from abele.warn import show

_NAME = "abele::print_tensor"
_LAYOUT = (
    "int threshold, int edge, int width, int digits, str form, str between, str left, str right"
)


@torch.library.custom_op(
    _NAME,
    mutates_args=(),
    schema=f"(Tensor x, Tensor? after, str title, str gradient_title, {_LAYOUT}) -> Tensor",
)
def _print(
    x: torch.Tensor, after: torch.Tensor | None, title: str, gradient_title: str, *layout: Any
) -> torch.Tensor:
    del after, gradient_title
    if not is_silenced():
        show(f"{title}: {tensor_text(x, Layout(**_by_name(layout)))}")
    return x.clone()


@shapes_of(_NAME)
def _shape(
    x: torch.Tensor, after: torch.Tensor | None, title: str, gradient_title: str, *layout: Any
) -> torch.Tensor:
    return torch.empty_like(x)


def _setup(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
    _, _, _, ctx.title, *ctx.layout = inputs


def _backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
    if ctx.title:
        grad = operator(grad, None, ctx.title, "", *ctx.layout)
    return (grad, *[None] * (3 + len(ctx.layout)))


register_gradient(_NAME, _backward, _setup)


def _by_name(layout: tuple[Any, ...]) -> dict[str, Any]:
    fields = [field.name for field in dataclasses.fields(Layout)]
    return dict(zip(fields, layout, strict=True))


operator = declare_effect(torch.ops.abele.print_tensor.default)


def print_tensor(
    x: torch.Tensor, title: str, gradient_title: str = "", layout: Layout | None = None
) -> torch.Tensor:
    """Return ``x`` and write it to stderr under ``title`` whenever the program runs.

    Args:
        x: any shape and type.
        title: stands before the values.
        gradient_title: stands before the gradient's values; empty to print none.
        layout: how values are written.
    """
    values = dataclasses.astuple(layout or Layout())
    return operator(x, None, title, gradient_title, *values)
