"""A node that is a convolution, or the backward of one: what it is given, whatever its operator."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from abele import _torch

aten = torch.ops.aten


@dataclasses.dataclass(frozen=True, kw_only=True)
class Convolution:
    """A convolution of images or its backward.

    Attributes:
        image: what it convolves, ``[N, C, H, W]``; may be without data. Likewise ``weight``.
        slope: of the activation of its result below zero; 1 for none.
        backward: whether the node computes gradients.
    """

    image: torch.Tensor
    weight: torch.Tensor
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    slope: float
    backward: bool

    @property
    def suits_kernels(self) -> bool:
        """Whether our kernels know its kind: float32, on a processor with wide registers."""
        capability = torch.backends.cpu.get_cpu_capability()
        return (
            self.image.dim() == 4
            and self.image.dtype is torch.float32
            and capability in ("AVX2", "AVX512")
        )

    @property
    def reads_channels_last(self) -> bool:
        """Whether its image has channels last in memory, and no planes."""
        image = self.image
        formats = {4: torch.channels_last, 5: torch.channels_last_3d}
        last = formats.get(image.dim())
        dense = last is not None and image.is_contiguous(memory_format=last)
        return dense and not image.is_contiguous()

    @property
    def moves_by_one(self) -> bool:
        """Whether it is plain: stride and dilation one, one group, not transposed."""
        return {*self.stride, *self.dilation, self.groups} == {1} and not self.transposed


def convolution_of(node: torch.fx.Node) -> Convolution | None:
    """Return what a node convolves; ``None`` for other operators and activations.

    Args:
        node: any node of a graph; its values are described in ``meta["val"]``.
    """
    arguments: tuple[Any, ...] = node.args
    slope, backward, transposed, extra = 1.0, False, False, (0, 0)
    if node.target is aten.convolution.default:
        x, weight, _, stride, padding, dilation, transposed, extra, groups = arguments
    elif node.target is aten.convolution_backward.default:
        _, x, weight, _, stride, padding, dilation, transposed, extra, groups, _ = arguments
        backward = True
    elif node.target is not None and node.target is _torch.convolution_with_activation():
        x, weight, _, padding, stride, dilation, groups, activation, scalars, _ = arguments
        if activation not in ("none", "leaky_relu"):
            return None
        slope = float(scalars[0]) if scalars else 1.0
    else:
        return None
    return Convolution(
        image=x.meta["val"],
        weight=weight.meta["val"],
        stride=tuple(stride),
        padding=tuple(padding),
        dilation=tuple(dilation),
        transposed=transposed,
        output_padding=tuple(extra),
        groups=groups,
        slope=slope,
        backward=backward,
    )
