"""Tables of optimizers' updates."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch

from abele.kernels.binding import Adam, AdamTensor, Sgd, SgdTensor
from abele.kernels.cases.case import TAILS, Case, Table, Tensor, call, numbers, threads_of

# The last is more than one piece that a thread takes.
_SIZES = (*TAILS, 16_400)


def _tensors(index: int, count: int) -> tuple[list[list[Tensor]], list[list[Tensor]]]:
    """Return ``count`` tensors of two parameters, and copies in float64."""
    sizes = _SIZES[index], 5
    each = [
        [numbers(size, seed=10 * at + kind) for kind in range(count)]
        for at, size in enumerate(sizes)
    ]
    return each, [[tensor.double() for tensor in tensors] for tensors in each]


def _adam(library: ctypes.CDLL) -> Iterator[Case]:
    rate, beta1, beta2, eps = 0.125, 0.5, 0.75, 0.25  # exact in float32
    for index, size in enumerate(_SIZES):
        decay = 0.5 * (index % 2)
        each, wide = _tensors(index, 4)
        steps = [torch.tensor(float(at), dtype=torch.float64, device="cpu") for at in (index, 0)]
        exact = list[Tensor]()
        for (param, first, second, grad), step, narrow in zip(wide, steps, each, strict=True):
            second.abs_()
            narrow[2].abs_()
            count = step.item() + 1
            m = first + (1 - beta1) * (grad - first)
            v = beta2 * second + (1 - beta2) * grad * grad
            root = (v / (1 - beta2**count)).sqrt()
            moved = rate / (1 - beta1**count) * m / (root + eps)
            exact += [param * (1 - rate * decay) - moved, m, v]
        rows = (AdamTensor * 2)(
            *(
                (t[0].numel(), *(x.data_ptr() for x in (*t, s)))
                for t, s in zip(each, steps, strict=True)
            )
        )
        call(library.abele_adam, Adam(beta1, beta2, eps, decay), rows, 2, rate, threads_of(index))
        results = [tensor for tensors in each for tensor in tensors[:3]]
        counted = [step - 1 - before for step, before in zip(steps, (index, 0), strict=True)]
        zeros = [torch.zeros_like(step) for step in steps]
        yield Case({"size": size}, [*results, *counted], [*exact, *zeros])


def _sgd(library: ctypes.CDLL) -> Iterator[Case]:
    rate, momentum, rest = 0.125, 0.75, 0.5
    for index, size in enumerate(_SIZES):
        decay, nesterov = 0.25 * (index % 2), index // 2 % 2
        each, wide = _tensors(index, 3)
        exact = list[Tensor]()
        for param, velocity, grad in wide:
            g = grad + decay * param
            v = momentum * velocity + rest * g
            exact += [param - rate * (g + momentum * v if nesterov else v), v]
        rows = (SgdTensor * 2)(*((t[0].numel(), *(x.data_ptr() for x in t)) for t in each))
        settings = Sgd(rate, momentum, rest, decay, float(nesterov))
        call(library.abele_sgd, settings, rows, 2, threads_of(index))
        yield Case({"size": size}, [t for tensors in each for t in tensors[:2]], exact)


TABLES: dict[str, dict[str, Table]] = {"adam": {"abele_adam": _adam}, "sgd": {"abele_sgd": _sgd}}
