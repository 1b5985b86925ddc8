"""Stand-ins for the operators of ``torch_scatter``, ``torch_cluster`` and ``torch_spline_conv``.

Element by element, in Python, by the documentation of these libraries. They read values, as the
libraries' C++ does, so that no capture can call them.
"""

import itertools

import torch

_LIBRARIES = []  # torch forgets operators whose library is gone


def _wide(index, src, dim):
    index = index.view([1] * dim + [-1]) if index.dim() == 1 else index
    return index.reshape(*index.shape, *[1] * (src.dim() - index.dim())).expand(src.shape)


def _grouped(src, index, dim, count, reduce):
    """Reduce the elements of each group, given as lists of numbers in their dimension."""
    shape = [*src.shape[:dim], count, *src.shape[dim + 1 :]]
    cells, places = [], []
    for cell in itertools.product(*map(range, shape)):
        members = []
        for element in range(src.shape[dim]):
            at = (*cell[:dim], element, *cell[dim + 1 :])
            if index[at].item() == cell[dim]:
                members.append((element, src[at]))
        value, place = reduce(cell, members)
        cells.append(value)
        places.append(place)
    return torch.stack(cells).reshape(shape), torch.tensor(places).reshape(shape)


def _extreme(src, index, dim, count, out, better):
    def reduce(cell, members):
        best, place = (None if out is None else out[cell].detach().clone()), src.shape[dim]
        for element, value in members:
            if best is None or better(value.item(), best.item()):
                best, place = value, element
        return (src.new_zeros(()) if best is None else best), place

    return _grouped(src, index, dim, count, reduce)


def _product(out):
    def reduce(cell, members):
        value = torch.ones(()) if out is None else out[cell].detach().clone()
        for _, each in members:
            value = value * each
        return value, 0

    return reduce


def _sum(cell, members):
    return sum((value for _, value in members), torch.zeros(())), 0


def _mean(cell, members):
    return _sum(cell, members)[0] / max(len(members), 1), 0


def _of_pointers(src, indptr):
    dim = indptr.dim() - 1
    pointers = indptr.expand(*src.shape[:dim], indptr.shape[-1])
    index = torch.full((*src.shape[:dim], src.shape[dim]), -1)
    for row in itertools.product(*map(range, src.shape[:dim])):
        for group in range(pointers.shape[-1] - 1):
            begin, end = pointers[row][group : group + 2].tolist()
            index[row][begin:end] = group
    return _wide(index, src, dim), dim, pointers.shape[-1] - 1


def _put(result, out):
    return result if out is None else out.copy_(result)


def _scatter(better):
    def scatter(src, index, dim, out, dim_size):
        dim %= src.dim()
        index = _wide(index, src, dim)
        count = out.shape[dim] if out is not None else dim_size
        count = int(index.max()) + 1 if count is None else count
        values, places = _extreme(src, index, dim, count, out, better)
        return _put(values, out), places

    return scatter


def _scatter_mul(src, index, dim, out, dim_size):
    dim %= src.dim()
    count = dim_size if out is None else out.shape[dim]
    index = _wide(index, src, dim)
    return _put(_grouped(src, index, dim, count, _product(out))[0], out)


def _segment(reduce):
    def segment(src, indptr, out):
        index, dim, count = _of_pointers(src, indptr)
        return _put(_grouped(src, index, dim, count, reduce)[0], out)

    return segment


def _segment_extreme(better):
    def segment(src, indptr, out):
        index, dim, count = _of_pointers(src, indptr)
        values, places = _extreme(src, index, dim, count, None, better)
        return _put(values, out), places

    return segment


def _gather_csr(src, indptr, out):
    pointers = indptr.tolist()
    rows = [src[group] for group in range(len(src)) for _ in range(*pointers[group : group + 2])]
    values = torch.stack(rows)
    return values if out is None else out.copy_(torch.cat([values, out.detach()[len(rows) :]]))


def _grid(pos, size, start, end):
    low, high = (pos.amin(0) if start is None else start), (pos.amax(0) if end is None else end)
    counts = [int((h - b) / s) + 1 for h, b, s in zip(high, low, size, strict=True)]
    numbers = []
    for point in pos:
        number, stride = 0, 1
        for x, b, s, count in zip(point, low, size, counts, strict=True):
            number, stride = number + int((x - b) / s) * stride, stride * count
        numbers.append(number)
    return torch.tensor(numbers)


def _piece(v, k, degree):
    """B-splines by the recursion of Cox and de Boor, from the last piece to the first."""

    def spline(x, order):
        if order == 0:
            return torch.ones(()) if 0 <= x.item() < 1 else torch.zeros(())
        left, right = spline(x, order - 1), spline(x - 1, order - 1)
        return (x * left + (order + 1 - x) * right) / order

    return spline(v + degree - k, degree)


def _spline_basis(pseudo, kernel_size, is_open_spline, degree):
    factors, numbers = [], []
    for edge in pseudo:
        for combination in range((degree + 1) ** len(edge)):
            factor, number, stride = torch.ones(()), 0, 1
            for dim, place in enumerate(edge):
                piece, combination = combination % (degree + 1), combination // (degree + 1)
                count = kernel_size[dim].item()
                value = place * (count - degree * is_open_spline[dim].item())
                number += (int(value) + piece) % count * stride
                stride *= count
                factor = factor * _piece(value - value.floor(), piece, degree)
            factors.append(factor)
            numbers.append(number)
    shape = len(pseudo), -1
    return torch.stack(factors).reshape(shape), torch.tensor(numbers).reshape(shape)


def _spline_weighting(x, weight, basis, weight_index):
    return torch.stack(
        [
            sum(b * (row @ weight[i]) for b, i in zip(factors, numbers.tolist(), strict=True))
            for row, factors, numbers in zip(x, basis, weight_index, strict=True)
        ]
    )


_SCATTER = "(Tensor src, Tensor index, int dim, Tensor? out, int? dim_size) -> "
_CSR = "(Tensor src, Tensor indptr, Tensor? out) -> "
_BOTH = "(Tensor, Tensor)"
_MORE, _LESS = float.__gt__, float.__lt__

_OPERATORS = {
    "torch_scatter::scatter_max": (_SCATTER + _BOTH, _scatter(_MORE)),
    "torch_scatter::scatter_min": (_SCATTER + _BOTH, _scatter(_LESS)),
    "torch_scatter::scatter_mul": (_SCATTER + "Tensor", _scatter_mul),
    "torch_scatter::segment_sum_csr": (_CSR + "Tensor", _segment(_sum)),
    "torch_scatter::segment_mean_csr": (_CSR + "Tensor", _segment(_mean)),
    "torch_scatter::segment_max_csr": (_CSR + _BOTH, _segment_extreme(_MORE)),
    "torch_scatter::segment_min_csr": (_CSR + _BOTH, _segment_extreme(_LESS)),
    "torch_scatter::segment_max_coo": (_CSR + _BOTH, lambda src, index, out: src.tolist()),
    "torch_scatter::gather_csr": (_CSR + "Tensor", _gather_csr),
    "torch_cluster::grid": (
        "(Tensor pos, Tensor size, Tensor? start, Tensor? end) -> Tensor",
        _grid,
    ),
    "torch_spline_conv::spline_basis": (
        "(Tensor pseudo, Tensor kernel_size, Tensor is_open_spline, int degree) -> " + _BOTH,
        _spline_basis,
    ),
    "torch_spline_conv::spline_weighting": (
        "(Tensor x, Tensor weight, Tensor basis, Tensor weight_index) -> Tensor",
        _spline_weighting,
    ),
}


def define():
    """Define the operators, unless this process has them."""
    if _LIBRARIES:
        return
    for name, (schema, function) in _OPERATORS.items():
        namespace, operator = name.split("::")
        library = torch.library.Library(namespace, "FRAGMENT")
        library.define(operator + schema)
        library.impl(operator, function, "CompositeImplicitAutograd")
        _LIBRARIES.append(library)
