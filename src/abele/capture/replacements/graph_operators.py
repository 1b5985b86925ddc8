"""Operators of ``torch_scatter``, ``torch_cluster`` and ``torch_spline_conv``, composed of torch's.

The operators of these C++ libraries read the memory of their arguments, which tensors of a trace
do not have. Results are those of the libraries, gradients too: of equal extremes the first has it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from abele import _torch, libraries
from abele.errors import DataDependentError
from abele.trace.decompositions import constant_value
from abele.warn import user_line

_any_torch: Any = torch  # some of its functions have no types


def _expanded(index: torch.Tensor, shape: torch.Size, dim: int) -> torch.Tensor:
    """Expand a scatter index to the shape of the values that it groups along ``dim``."""
    if index.dim() == 1:
        index = index.view([1] * dim + [-1])
    return index.reshape(*index.shape, *[1] * (len(shape) - index.dim())).expand(shape)


def _shape_of_groups(
    function: str, src: torch.Tensor, index: torch.Tensor, dim: int, dim_size: int | None
) -> list[int]:
    if dim_size is None:
        known = constant_value(index)
        if known is None:
            raise DataDependentError(
                f"{function} without dim_size, at {user_line()}, has as many groups as the largest "
                "index says, which is known only when the program runs. Pass dim_size."
            )
        with _torch.outside_the_trace():
            dim_size = int(known.max()) + 1 if known.numel() else 0
    return [*src.shape[:dim], dim_size, *src.shape[dim + 1 :]]


def _extremes(
    src: torch.Tensor, index: torch.Tensor, dim: int, initial: torch.Tensor, reduce: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each group's maximum or minimum beyond ``initial``, and its first index.

    A group without one has zero, and as place the number of elements along ``dim``.
    """
    values, count = src.detach(), src.shape[dim]
    best = initial.scatter_reduce(dim, index, values, reduce)
    is_best = (values == best.gather(dim, index)) & (values != initial.gather(dim, index))
    places = torch.arange(count, device=src.device).view([-1] + [1] * (src.dim() - dim - 1))
    places = torch.where(is_best, places, count)
    nowhere = torch.full(best.shape, count, device=src.device)
    first = nowhere.scatter_reduce(dim, index, places, "amin")
    zero = src.new_zeros([*src.shape[:dim], 1, *src.shape[dim + 1 :]])
    return torch.cat([src, zero], dim).gather(dim, first), first


def _least(shape: list[int], src: torch.Tensor, reduce: str) -> torch.Tensor:
    """Return the initial value of a maximum or minimum for each group."""
    of = torch.finfo if src.is_floating_point() else torch.iinfo
    limits = of(src.dtype)
    return src.new_full(shape, limits.min if reduce == "amax" else limits.max)


def _scatter_extreme(reduce: str) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    function = f"scatter_{reduce.removeprefix('a')}"

    def scatter(
        src: torch.Tensor,
        index: torch.Tensor,
        dim: int,
        out: torch.Tensor | None = None,
        dim_size: int | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the maximum or minimum of each group and its first index."""
        dim %= src.dim()
        if out is None:
            shape = _shape_of_groups(function, src, index, dim, dim_size)
            initial = _least(shape, src, reduce)
        else:
            initial = out.detach().clone()
        values, first = _extremes(src, _expanded(index, src.shape, dim), dim, initial, reduce)
        if out is None:
            return values, first
        return out.copy_(torch.where(first < src.shape[dim], values, initial)), first

    return scatter


def scatter_mul(
    src: torch.Tensor,
    index: torch.Tensor,
    dim: int,
    out: torch.Tensor | None = None,
    dim_size: int | None = None,
) -> torch.Tensor:
    """Compute the product of the values of each group."""
    dim %= src.dim()
    if out is None:
        initial = src.new_ones(_shape_of_groups("scatter_mul", src, index, dim, dim_size))
    else:
        initial = out.detach().clone()
    result = initial.scatter_reduce(dim, _expanded(index, src.shape, dim), src, "prod")
    return result if out is None else out.copy_(result)


def _pointers(src: torch.Tensor, indptr: torch.Tensor) -> tuple[torch.Tensor, int]:
    """Broadcast CSR pointers to the values' leading dimensions; return the grouped dimension."""
    dim = indptr.dim() - 1
    return indptr.expand(*src.shape[:dim], indptr.shape[-1]), dim


def _groups(indptr: torch.Tensor, count: int) -> torch.Tensor:
    """Return the CSR segment of each of ``count`` elements; outside elements get one more."""
    places = torch.arange(count, device=indptr.device).expand(*indptr.shape[:-1], count)
    ends = indptr[..., 1:].contiguous()
    group = torch.searchsorted(ends, places.contiguous(), right=True)
    return torch.where(places < indptr[..., :1], ends.shape[-1], group)


def _segments(
    src: torch.Tensor, indptr: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, int, list[int]]:
    """Return segment indices, CSR pointers, dimension and padded result shape of values."""
    pointers, dim = _pointers(src, indptr)
    index = _expanded(_groups(pointers, src.shape[dim]), src.shape, dim)
    return index, pointers, dim, [*src.shape[:dim], pointers.shape[-1], *src.shape[dim + 1 :]]


def _written(result: torch.Tensor, out: torch.Tensor | None) -> torch.Tensor:
    return result if out is None else out.copy_(result)


def segment_sum_csr(
    src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Sum the elements of each CSR segment.

    Args:
        src: values, any shape.
        indptr: where each segment begins along the last dimension of ``indptr``, and where the last
            one ends.
        out: what is written to.
    """
    index, pointers, dim, shape = _segments(src, indptr)
    sums = src.new_zeros(shape).scatter_add(dim, index, src)
    return _written(sums.narrow(dim, 0, pointers.shape[-1] - 1), out)


def segment_mean_csr(
    src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Compute the mean of each CSR segment, 0 if empty; arguments as of ``segment_sum_csr``."""
    sums = segment_sum_csr(src, indptr)
    pointers, dim = _pointers(src, indptr)
    counts = (pointers[..., 1:] - pointers[..., :-1]).clamp(min=1).to(src.dtype)
    counts = _expanded(counts, sums.shape, dim)
    mode = None if src.is_floating_point() else "trunc"
    return _written(torch.div(sums, counts, rounding_mode=mode), out)


def _segment_extreme(reduce: str) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    def segment(
        src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Compute the maximum or minimum of each CSR segment and its first index."""
        index, pointers, dim, shape = _segments(src, indptr)
        both = _extremes(src, index, dim, _least(shape, src, reduce), reduce)
        values, first = (each.narrow(dim, 0, pointers.shape[-1] - 1) for each in both)
        return _written(values, out), first

    return segment


def gather_csr(
    src: torch.Tensor, indptr: torch.Tensor, out: torch.Tensor | None = None
) -> torch.Tensor:
    """Repeat the value of each CSR segment for each of its elements.

    Args:
        src: one value for each segment.
        indptr: as of ``segment_sum_csr``; a constant, unless there is ``out``.
        out: as many elements as there are; written to.

    Raises:
        DataDependentError: how many elements there are is known only when the program runs.
    """
    pointers, dim = _pointers(src, indptr)
    known = constant_value(indptr) if out is None else None
    if out is None and known is None:
        raise DataDependentError(
            f"gather_csr without out, at {user_line()}, gives as many elements as indptr says, "
            "which is known only when the program runs. Pass out, a tensor of that many elements."
        )
    with _torch.outside_the_trace():
        count = int(known.flatten()[-1]) if known is not None else 0
    count = count if out is None else out.shape[dim]
    group, last = _groups(pointers, count), pointers.shape[-1] - 2
    shape = torch.Size([*src.shape[:dim], count, *src.shape[dim + 1 :]])
    values = src.gather(dim, _expanded(group.clamp(max=last), shape, dim))
    if out is None:
        return values
    return out.copy_(torch.where(_expanded(group <= last, shape, dim), values, out.detach()))


def grid(
    pos: torch.Tensor,
    size: torch.Tensor,
    start: torch.Tensor | None = None,
    end: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the voxel index of each point."""
    pos = pos.reshape(pos.shape[0], -1)
    start = pos.amin(0) if start is None else start
    end = pos.amax(0) if end is None else end
    voxels = (torch.true_divide(end - start, size).long() + 1).cumprod(0)
    strides = torch.cat([voxels.new_ones(1), voxels[:-1]])
    return (torch.true_divide(pos - start, size).long() * strides).sum(1)


#: The segments of a B-spline by degree, as functions of the fraction of its argument.
_SPLINES: dict[int, list[Callable[[torch.Tensor], torch.Tensor]]] = {
    1: [lambda v: 1 - v, lambda v: v],
    2: [lambda v: 0.5 * v * v - v + 0.5, lambda v: -v * v + v + 0.5, lambda v: 0.5 * v * v],
    3: [
        lambda v: (1 - v) * (1 - v) * (1 - v) / 6,
        lambda v: (3 * v * v * v - 6 * v * v + 4) / 6,
        lambda v: (-3 * v * v * v + 3 * v * v + 3 * v + 1) / 6,
        lambda v: v * v * v / 6,
    ],
}


def spline_basis(
    pseudo: torch.Tensor, kernel_size: torch.Tensor, is_open_spline: torch.Tensor, degree: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Compute the B-spline basis values of each edge and the indices of their weights.

    Args:
        pseudo: edges by dimensions, from 0 to 1.
        kernel_size: weights in each dimension.
        is_open_spline: whether a dimension is open, not periodic.
        degree: of the B-splines, 1 to 3.

    Returns:
        Factors, and the numbers of the weights that they belong to: edges by ``(degree + 1) ** d``.
    """
    pieces = degree + 1
    combinations = torch.arange(pieces ** pseudo.shape[1], device=pseudo.device)
    basis = pseudo.new_ones(pseudo.shape[0], len(combinations))
    index, stride = torch.zeros_like(basis, dtype=torch.int64), torch.ones_like(kernel_size[0])
    for dim in range(pseudo.shape[1]):
        piece, count = combinations // pieces**dim % pieces, kernel_size[dim]
        value = pseudo[:, dim : dim + 1] * (count - degree * is_open_spline[dim].long())
        index = index + (value.long() + piece) % count * stride
        stride = stride * count
        # The library rounds once, from double precision.
        fraction = (value - value.floor()).double()
        columns = torch.cat([function(fraction) for function in _SPLINES[degree]], 1)
        basis = basis * columns.to(pseudo.dtype).index_select(1, piece)
    return basis, index


def spline_weighting(
    x: torch.Tensor, weight: torch.Tensor, basis: torch.Tensor, weight_index: torch.Tensor
) -> torch.Tensor:
    """Multiply the features of each edge by its spline-weighted kernel."""
    every = _any_torch.einsum("ei,kio->eko", x, weight)
    chosen = every.gather(1, weight_index.unsqueeze(-1).expand(-1, -1, weight.shape[2]))
    return (basis.unsqueeze(-1) * chosen).sum(1)


def spline_conv(
    x: torch.Tensor,
    edge_index: torch.Tensor,
    pseudo: torch.Tensor,
    weight: torch.Tensor,
    kernel_size: torch.Tensor,
    is_open_spline: torch.Tensor,
    degree: int = 1,
    norm: bool = True,
    root_weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
) -> torch.Tensor:
    """Compute a graph convolution whose kernel is a spline of the edges' attributes."""
    x = x.unsqueeze(-1) if x.dim() == 1 else x
    pseudo = pseudo.unsqueeze(-1) if pseudo.dim() == 1 else pseudo
    target, source = edge_index[0], edge_index[1]
    factors = spline_basis(pseudo, kernel_size, is_open_spline, degree)
    edges = spline_weighting(x[source], weight, *factors)
    out = x.new_zeros(x.shape[0], weight.shape[2])
    out = out.scatter_add(0, target.unsqueeze(-1).expand_as(edges), edges)
    if norm:
        ones = torch.ones(len(target), dtype=x.dtype, device=x.device)
        out = out / x.new_zeros(len(x)).scatter_add(0, target, ones).clamp(min=1).unsqueeze(-1)
    out = out if root_weight is None else out + x @ root_weight
    return out if bias is None else out + bias


def name_callers() -> None:
    """Have error messages name the lines that call graph libraries, not lines inside them."""
    for name in ("torch_scatter", "torch_cluster", "torch_spline_conv"):
        file = getattr(sys.modules.get(name), "__file__", None)
        if file is not None:
            libraries.register(name, Path(file).parent)


#: Replacements by the operator's name in ``torch.ops``.
OPERATORS: dict[str, Callable[..., Any]] = {
    "torch_scatter.scatter_max": _scatter_extreme("amax"),
    "torch_scatter.scatter_min": _scatter_extreme("amin"),
    "torch_scatter.scatter_mul": scatter_mul,
    "torch_scatter.segment_sum_csr": segment_sum_csr,
    "torch_scatter.segment_mean_csr": segment_mean_csr,
    "torch_scatter.segment_max_csr": _segment_extreme("amax"),
    "torch_scatter.segment_min_csr": _segment_extreme("amin"),
    "torch_scatter.gather_csr": gather_csr,
    "torch_cluster.grid": grid,
    "torch_spline_conv.spline_basis": spline_basis,
    "torch_spline_conv.spline_weighting": spline_weighting,
}

# By the qualified name of a TorchScript function, whose operators no mode of Python's sees.
_SCRIPTED: dict[str, Callable[..., Any]] = {
    "__torch__.torch_spline_conv.basis.spline_basis": spline_basis,
    "__torch__.torch_spline_conv.weighting.spline_weighting": spline_weighting,
    "__torch__.torch_spline_conv.conv.spline_conv": spline_conv,
}


def scripted() -> dict[str, Callable[..., Any]]:
    """Return replacements of TorchScript functions of ``torch_spline_conv``, by name, if loaded."""
    return _SCRIPTED if "torch_spline_conv" in sys.modules else {}
