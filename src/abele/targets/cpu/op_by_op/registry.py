"""Lookup of the library kernel that replaces an operator."""

from __future__ import annotations

import collections
from typing import Any

import torch

from abele.targets.cpu.op_by_op.images import KERNELS_OF_IMAGES
from abele.targets.cpu.op_by_op.kernels import OwnKernel
from abele.targets.cpu.op_by_op.norms import NORMS
from abele.targets.cpu.op_by_op.updates import UPDATES

_BY_OPERATOR = collections.defaultdict[Any, list[OwnKernel]](list)
for _each in (*KERNELS_OF_IMAGES, *NORMS, *UPDATES):
    _BY_OPERATOR[_each.operator].append(_each)


def own_kernel(node: torch.fx.Node) -> OwnKernel | None:
    """Return the library kernel that computes a node, or None if there is none."""
    rows = _BY_OPERATOR.get(node.target, ())
    return next((row for row in rows if row.suits(node)), None)
