"""Convolutions of few channels on a GPU and their two gradients: cuDNN's kernels and ours.

python -m benchmarks.gpu_convolutions                  sizes of CosmicTagger's A21 and others
python -m benchmarks.gpu_convolutions --out out/gpu    keeps convolutions.json there
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import torch
from benchmarks import gpu_records

from abele.capture import capture
from abele.step.config import StepConfig
from abele.targets.cuda.emitted import convolutions
from abele.targets.cuda.emitted.choices import microseconds
from abele.targets.cuda.emitted.lowering import Emitted

aten = torch.ops.aten

# Samples, channels, results, height, width, and taps of a side.
SIZES = (
    *((2, n, n, height, width, 3) for n, height, width in ((8, 320, 512), (16, 160, 256))),
    *((2, n, n, height, width, 3) for n, height, width in ((24, 80, 128), (32, 40, 64))),
    *((2, n, n, height, width, 3) for n, height, width in ((40, 20, 32), (48, 10, 16))),
    *((2, 16, 16, 256, 256, 3), (2, 32, 32, 128, 128, 3), (2, 64, 64, 64, 64, 3)),
    *((2, 32, 16, 256, 256, 3), (32, 64, 64, 32, 32, 3), (16, 1, 32, 28, 28, 3)),
    *((16, 32, 64, 26, 26, 3), (2, 3, 16, 256, 256, 3), (8, 16, 16, 64, 64, 3)),
    *((2, 16, 8, 320, 512, 1), (2, 24, 16, 160, 256, 1), (2, 32, 24, 80, 128, 1)),
    *((2, 8, 3, 320, 512, 1), (2, 48, 40, 20, 32, 1), (2, 56, 48, 10, 16, 1)),
    *((2, 64, 32, 128, 128, 1), (16, 64, 64, 28, 28, 1)),
)
OPERATORS = ("result", "gradient of images", "gradient of weights")
_LIBRARY, _OURS = "cuDNN", "ours"
_ALL, _NONE = 1 << 30, -1


def main() -> int:
    """Measure and print; keeps the result where ``--out`` says."""
    return gpu_records.run("convolutions", str(__doc__), _answers)


def _answers() -> Iterator[tuple[str, Any, str]]:
    for sizes in SIZES:
        answer = {operator: measured(sizes, operator) for operator in OPERATORS}
        times = (f"{name} {each[_LIBRARY]:.1f} {each[_OURS]:.1f}" for name, each in answer.items())
        text = f"{sizes!s:28s} us of cuDNN and ours: {', '.join(times)}"
        yield " x ".join(map(str, sizes)), answer, text


def measured(sizes: tuple[int, ...], operator: str) -> dict[str, float]:
    """Return microseconds by cuDNN's kernels and by ours; the copy of a result counts for both.

    Args:
        sizes: samples, channels, results, height, width, and taps of a side.
        operator: one of ``OPERATORS``.
    """
    samples, channels, results, height, width, side = sizes
    inputs = [
        torch.randn(shape)
        for shape in (
            (samples, results, height, width),
            (samples, channels, height, width),
            (results, channels, side, side),
        )
    ]
    works: list[Callable[[], object]] = []
    for most in (_NONE, _ALL):
        with limited(most):
            run, given = _compiled(inputs, operator, side), [each.cuda() for each in inputs]
            works.append(lambda run=run, given=given: run(list(given)))
    return dict(zip((_LIBRARY, _OURS), microseconds(works), strict=True))


@contextlib.contextmanager
def limited(most: int) -> Generator[None]:
    """While open, convolutions of up to so many channels are ours."""
    before = convolutions.LEAST_PIXELS, convolutions.MOST_CHANNELS_OF_WEIGHTS
    convolutions.LEAST_PIXELS = {9: ((most, 1),), 1: ((most, 1),)}
    convolutions.MOST_CHANNELS_OF_WEIGHTS = {9: most, 1: most}
    try:
        yield
    finally:
        convolutions.LEAST_PIXELS, convolutions.MOST_CHANNELS_OF_WEIGHTS = before


def _compiled(inputs: list[torch.Tensor], operator: str, side: int) -> Any:
    """Return a call of an operator without a captured graph."""
    plain = [1, 1], [side // 2, side // 2], [1, 1], False, [0, 0], 1

    def function(given: Any) -> list[torch.Tensor]:
        grad, x, weight = given
        if operator == OPERATORS[0]:
            return [aten.convolution(x, weight, None, *plain)]
        mask = [operator == each for each in OPERATORS[1:]]
        every = aten.convolution_backward(grad, x, weight, None, *plain, [*mask, False])
        return [each for each, wanted in zip(every, mask, strict=False) if wanted]

    module, lowering = torch.nn.Module(), Emitted()
    (program,) = capture(function, module, tuple(inputs), StepConfig(training=False)).programs
    for change in lowering.passes:
        program = change(program)
    compiled: Any = lowering.compile(program)
    return compiled._plain


if __name__ == "__main__":
    sys.exit(main())
