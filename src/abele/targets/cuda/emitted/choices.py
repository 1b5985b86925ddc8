"""GEMM autotuning choices, measured on a GPU at compile time and stored with the kernels.

A loaded program uses the stored choices, so its results are bitwise those of the compiled one.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import statistics
from collections.abc import Callable, Iterator, Sequence

import torch

from abele.errors import CorruptExecutable
from abele.targets.cuda.emitted import gemms
from abele.targets.cuda.emitted.blocks import Blocks
from abele.targets.cuda.emitted.gemms import ConcurrentGemms
from abele.targets.cuda.emitted.source import Launch
from abele.targets.kernel_choice import LOOP, TORCH
from abele.targets.streams import capture_stream
from abele.targets.translation.groups import Unit
from abele.targets.translation.operations import Foreign
from abele.targets.translation.places import Place

Step = Launch | Foreign | ConcurrentGemms
Work = Callable[[], object]
#: Returns the microseconds of each of several works, measured in turns.
Clock = Callable[[Sequence[Work]], list[float]]

# What is not usual has to be faster by more than what measurements differ by.
_GAIN = 0.95
_REPEATED, _WARM, _WINDOWS = 10, 2, 5
# Larger tensors are not made for a measurement.
_MOST_BYTES = 1 << 28


@dataclasses.dataclass(frozen=True)
class Choices:
    """The BLAS library of each GEMM of a program, and which GEMMs run in parallel.

    Attributes:
        libraries: for each GEMM, in step order; see ``gemms.NAMES``.
        together: for each group of independent GEMMs, whether they run in parallel.
    """

    libraries: list[str]
    together: list[bool]

    def fit(self, steps: Sequence[Step]) -> bool:
        """Return whether the numbers of GEMMs and of parallel groups match a program's steps."""
        groups = [step for step in steps if isinstance(step, ConcurrentGemms)]
        counts = len(list(products_of(steps))), len(groups)
        return counts == (len(self.libraries), len(self.together))


def products_of(steps: Sequence[Step]) -> Iterator[Foreign]:
    """Yield the GEMMs of a program in step order."""
    for step in steps:
        for each in step.operations if isinstance(step, ConcurrentGemms) else [step]:
            if isinstance(each, Foreign) and gemms.is_product(each):
                yield each


def measured(steps: Sequence[Step], device: torch.device, clock: Clock | None = None) -> Choices:
    """Choose the fastest BLAS library of each GEMM, and whether groups run in parallel.

    Args:
        steps: of a program.
        device: the GPU.
        clock: times callables; None for ``microseconds``.
    """
    measurement = _Measurement(device, clock or microseconds)
    libraries = [measurement.library(each) for each in products_of(steps)]
    groups = [step.operations for step in steps if isinstance(step, ConcurrentGemms)]
    return Choices(libraries, [measurement.together(group) for group in groups])


class _Measurement:
    """An autotuner of GEMMs on tensors shaped like the program's."""

    def __init__(self, device: torch.device, clock: Clock):
        self._device, self._clock = device, clock
        self._libraries: dict[object, str] = {}
        self._together: dict[object, bool] = {}

    def library(self, product: Foreign) -> str:
        """Return the faster BLAS library for a GEMM."""
        key = _kind(product)
        if key not in self._libraries:
            self._libraries[key] = self._faster(product)
        return self._libraries[key]

    def _faster(self, product: Foreign) -> str:
        if _bytes(product) > _MOST_BYTES:
            return gemms.USUAL
        work = self._work(product)
        usual, other = self._clock([_by(name, work) for name in (gemms.USUAL, gemms.OTHER)])
        return gemms.OTHER if other < _GAIN * usual else gemms.USUAL

    def together(self, group: Sequence[Foreign]) -> bool:
        """Return whether a group of GEMMs is faster in parallel."""
        key = tuple(map(_kind, group))
        if key not in self._together:
            works = [_by(self.library(each), self._work(each)) for each in group]

            def one_after_the_other() -> None:
                for work in works:
                    work()

            def side_by_side() -> None:
                gemms.together(works)

            usual, other = self._clock([one_after_the_other, side_by_side])
            self._together[key] = other < _GAIN * usual
        return self._together[key]

    def _work(self, product: Foreign) -> Work:
        operands = [self._numbers(each) for each in _operands(product)]
        return lambda: product.target(*operands, **product.options)

    def _numbers(self, place: Place) -> torch.Tensor:
        """Return a nonzero tensor with the layout of an operand; zeros multiply faster."""
        size = 1 + sum((n - 1) * step for n, step in zip(place.shape, place.stride, strict=True))
        numbers = torch.linspace(-1, 1, size if place.size else 0, device=self._device)
        return numbers.to(place.dtype).as_strided(place.shape, place.stride)


def _kind(product: Foreign) -> object:
    """Return a key that is equal for GEMMs with equal operator and layouts."""
    layouts = ((each.dtype, each.shape, each.stride) for each in _operands(product))
    return product.target, *layouts


def _operands(product: Foreign) -> list[Place]:
    return [each for each in product.arguments if isinstance(each, Place)]


def _bytes(product: Foreign) -> int:
    places = *_operands(product), *product.writes
    return sum(each.size * each.dtype.itemsize for each in places)


def _by(library: str, work: Work) -> Work:
    def by_library() -> None:
        with gemms.using(library):
            work()

    return by_library


def microseconds(works: Sequence[Work]) -> list[float]:
    """Time callables on the current GPU in turns, several repeats in one CUDA graph each.

    Args:
        works: callables that can be captured.

    Returns:
        Median microseconds of each.
    """
    graphs = [_captured(work) for work in works]
    times: list[list[float]] = [[] for _ in graphs]
    for window in range(_WARM + _WINDOWS):
        for graph, of_graph in zip(graphs, times, strict=True):
            took = _replayed(graph)
            if window >= _WARM:
                of_graph.append(took)
    return [statistics.median(each) / _REPEATED for each in times]


def _captured(work: Work) -> torch.cuda.CUDAGraph:
    graph, stream = torch.cuda.CUDAGraph(), capture_stream()
    with torch.cuda.stream(stream):
        work()  # libraries make what they need
    with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
        for _ in range(_REPEATED):
            work()
    return graph


def _replayed(graph: torch.cuda.CUDAGraph) -> float:
    began, ended = (torch.cuda.Event(enable_timing=True) for _ in (0, 1))
    began.record()
    graph.replay()
    ended.record()
    ended.synchronize()
    return began.elapsed_time(ended) * 1e3


def encoded(choices: Choices, codes: Sequence[bytes]) -> bytes:
    """Serialize GEMM choices and compiled kernels as JSON."""
    texts = [base64.b64encode(code).decode() for code in codes]
    return json.dumps({**dataclasses.asdict(choices), "codes": texts}).encode()


def decoded(payload: bytes) -> tuple[Choices, list[bytes]]:
    """Parse GEMM choices and compiled kernels from JSON.

    Raises:
        CorruptExecutable: the payload is incomplete or malformed.
    """
    try:
        data = json.loads(payload)
        codes = [base64.b64decode(text, validate=True) for text in data.pop("codes")]
        choices = Choices(**data)
        usable = {*gemms.NAMES} >= {*choices.libraries} and {True, False} >= {*choices.together}
    except (AttributeError, KeyError, TypeError, ValueError) as problem:
        raise CorruptExecutable(f"the kernels of a program cannot be read: {problem}") from problem
    if not usable:
        raise CorruptExecutable("the kernels of a program have choices that are not known here")
    return choices, codes


def backend(unit: Unit) -> str:
    """Return the backend of a unit: ``torch``, ``loop`` or a device function's name."""
    first = unit.operations[0]
    if isinstance(first, Blocks):
        return first.what
    return TORCH if isinstance(first, Foreign) else LOOP
