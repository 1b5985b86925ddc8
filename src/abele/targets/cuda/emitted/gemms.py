"""GEMMs on a GPU: the BLAS library of each, and which run concurrently.

cuBLAS and cuBLASLt choose among the same kinds of kernels by rules of their own, and each is
slower than the other for some sizes: on an H200, 64 x 1024 x 1024 takes 12 us with cuBLAS and 23
with cuBLASLt, 16 x 256 x 256 takes 31 and 3.

Small GEMMs leave much of a GPU idle, so several run at a time. The gradients of a layer's input and
of its weight are independent: with 768 rows and 128 columns either takes some twenty blocks of an
H200's 132 multiprocessors.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import graphlib
import math
import os
import sys
from collections.abc import Callable, Generator, Sequence

import torch

from abele.targets.streams import side_streams
from abele.targets.translation.groups import Unit
from abele.targets.translation.operations import Foreign, Operation

aten = torch.ops.aten

#: What torch calls unless told otherwise, and the other one.
USUAL, OTHER = "cublas", "cublaslt"
NAMES = (USUAL, OTHER)

_PRODUCTS = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default}


def is_product(step: object) -> bool:
    """Return whether a step is a GEMM of cuBLAS or cuBLASLt."""
    return isinstance(step, Foreign) and step.target in _PRODUCTS


@contextlib.contextmanager
def using(name: str | None) -> Generator[None]:
    """Set torch's preferred BLAS library within a context; None changes nothing."""
    if name is None:
        yield
        return
    before = torch.backends.cuda.preferred_blas_library()
    if name == OTHER:
        _use_silently_once()
    torch.backends.cuda.preferred_blas_library(name)
    try:
        yield
    finally:
        torch.backends.cuda.preferred_blas_library(before)


@functools.cache
def _use_silently_once() -> None:
    """Select cuBLASLt for the first time, hiding torch's message on stderr."""
    sys.stderr.flush()
    try:
        stderr = os.dup(2)
    except OSError:  # it is closed
        return
    try:
        with open(os.devnull, "wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        torch.backends.cuda.preferred_blas_library(OTHER)
    finally:
        os.dup2(stderr, 2)
        os.close(stderr)


# Libraries give so many rows and columns of a result to a block, more or less.
_TILE = 64
# Products of more blocks fill most GPUs alone.
_MOST_BLOCKS = 256
#: So many at a time.
MOST = 4


@dataclasses.dataclass(eq=False)
class ConcurrentGemms:
    """A group of GEMMs that do not depend on each other.

    Attributes:
        operations: two or more GEMMs.
    """

    operations: list[Foreign]


def leaves_room(operation: Operation) -> bool:
    """Return whether an operation is a GEMM small enough to run in parallel with another."""
    if not is_product(operation):
        return False
    *batch, rows, columns = operation.writes[0].shape
    return math.prod(batch) * -(-rows // _TILE) * -(-columns // _TILE) <= _MOST_BLOCKS


def together(works: Sequence[Callable[[], object]]) -> None:
    """Queue independent callables on parallel CUDA streams, the first on the current stream.

    The side streams start after work already on the current stream, which waits for them at the
    end. So freed memory is reused only after its last use on any stream.
    """
    first, *others = works
    current, streams = torch.cuda.current_stream(), side_streams(len(others))
    for stream, work in zip(streams, others, strict=True):
        stream.wait_stream(current)
        with torch.cuda.stream(stream):
            work()
    first()
    for stream in streams:
        current.wait_stream(stream)


def scheduled(units: Sequence[Unit]) -> list[list[Unit]]:
    """Return steps in order: an ATen call, parallel GEMMs, or loops of one launch.

    A launch takes microseconds at least, so loops wait until nothing else can run, and then all
    ready ones share a launch. Small GEMMs run in parallel. Ties keep program order, so that memory
    is freed early.

    Args:
        units: with dependencies in ``before``.
    """
    sorter = graphlib.TopologicalSorter({unit: unit.before for unit in units})
    sorter.prepare()
    position = {unit: index for index, unit in enumerate(units)}
    ready: list[Unit] = []
    steps: list[list[Unit]] = []
    while sorter.is_active():
        ready = sorted([*ready, *sorter.get_ready()], key=position.__getitem__)
        others = [unit for unit in ready if isinstance(unit.operations[0], Foreign)]
        step = _first(others) or ready
        steps.append(step)
        sorter.done(*step)
        ready = [unit for unit in ready if unit not in step]
    return steps


def _first(others: Sequence[Unit]) -> list[Unit]:
    """Return the first ATen call, with independent small GEMMs that may run in parallel."""
    room = [unit for unit in others if leaves_room(unit.operations[0])]
    return room[:MOST] if room[:1] == [*others[:1]] else [*others[:1]]
