"""The library of kernels, compiled for this machine, for tests that call kernels."""

import ctypes
import functools
from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from abele.kernels import binding, build, on_tensors, sources
from abele.targets.cpu.compiler import instruction_set
from abele.targets.cpu.op_by_op.registry import own_kernel

COMPILER = sources.compiler()
#: For ``pytestmark`` of a module.
NEEDS_COMPILER = [
    pytest.mark.compiler,
    pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on PATH"),
]


@functools.cache
def kernels() -> ctypes.CDLL:
    """The library that programs use, loaded."""
    assert COMPILER is not None
    return binding.load(build.shared_library(COMPILER, instruction_set()))


def compiled(folder: Path, names: Iterable[str | Path], flags=sources.FLAGS):
    """Compile sources with other flags into a folder; return the objects' paths."""
    return build.compile_with(COMPILER, str(folder), map(str, names), flags)


def error(actual: torch.Tensor, exact: torch.Tensor) -> float:
    """Return the distance of a result from that of float64, relative to the norm of the latter."""
    return ((actual.double() - exact).norm() / exact.norm().clamp_min(1e-30)).item()


def conv(own, x, weight, bias, stride, padding, **how):
    """A convolution of tensors; ``how`` is as for ``on_tensors.conv``."""
    return on_tensors.conv(own, x.shape, weight.shape, stride, padding, **how)(x, weight, bias)


def conv_backward(own, grad, x, weight, stride, padding, mask, **how):
    """The gradients of its images, weight and bias that the mask asks for."""
    sizes = x.shape, weight.shape, stride, padding, mask
    return on_tensors.conv_backward(own, *sizes, **how)(grad, x, weight)


def replacement(node, own):
    """Return the function of the library kernel that computes a node, or None."""
    kernel = own_kernel(node)
    return None if kernel is None else kernel.function(node, own, False)
