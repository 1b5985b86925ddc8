"""Products of linear layers on a GPU: either of NVIDIA's libraries, and gradients side by side.

python -m benchmarks.gpu_products                    layers of the table's models
python -m benchmarks.gpu_products --out out/gpu      keeps products.json there
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from benchmarks import gpu_records

from abele.targets.cuda.emitted import gemms
from abele.targets.cuda.emitted.choices import microseconds
from abele.targets.cuda.emitted.gemms import together

# Of a layer: its name, rows of a batch, and the sizes of an input and of a result.
LAYERS = (
    ("MLP, first", 64, 784, 1024),
    ("MLP, inner", 64, 1024, 1024),
    ("introduction", 16, 5408, 128),
    ("small", 16, 256, 256),
    ("GPT, attention", 768, 128, 384),
    ("GPT, into", 768, 128, 512),
    ("GPT, out of", 768, 512, 128),
    ("encoder, attention", 1024, 256, 768),
    ("encoder, into", 1024, 256, 1024),
    ("encoder, out of", 1024, 1024, 256),
    ("large", 2048, 2048, 2048),
)


def main() -> int:
    """Measure and print; keeps the result where ``--out`` says."""
    return gpu_records.run("products", str(__doc__), _answers)


def _answers() -> Iterator[tuple[str, Any, str]]:
    for name, rows, inputs, results in LAYERS:
        answer = measured(rows, inputs, results)
        yield name, {"sizes": [rows, inputs, results], **answer}, _text(name, answer)


def measured(rows: int, inputs: int, results: int, device: str = "cuda") -> dict[str, Any]:
    """Return the microseconds of a layer's products with each library, and of its two gradients.

    Args:
        rows: of a batch.
        inputs: numbers of a row.
        results: numbers of a row of what the layer returns.
        device: where.
    """
    x, weight, grad = (
        torch.randn(size, device=device)
        for size in ((rows, inputs), (results, inputs), (rows, results))
    )
    works: dict[str, Callable[[], object]] = {
        "forward": lambda: x @ weight.t(),
        "gradient of the input": lambda: grad @ weight,
        "gradient of the weight": lambda: grad.t() @ x,
    }
    answer: dict[str, Any] = {}
    for name, work in works.items():
        answer[name] = microseconds([functools.partial(_by, each, work) for each in gemms.NAMES])
    gradients = list(works.values())[1:]
    in_turn = functools.partial(_all, gradients)
    answer["both gradients"] = microseconds([in_turn, functools.partial(together, gradients)])
    return answer


def _by(library: str, work: Callable[[], object]) -> None:
    with gemms.using(library):
        work()


def _all(works: list[Callable[[], object]]) -> None:
    for work in works:
        work()


def _text(name: str, answer: dict[str, Any]) -> str:
    products = {
        key: value for key, value in answer.items() if key not in ("sizes", "both gradients")
    }
    lines = [f"{name:20s} {key:22s} {a:8.1f} {b:8.1f}" for key, (a, b) in products.items()]
    a, b = answer["both gradients"]
    return "\n".join([*lines, f"{name:20s} one after the other {a:.1f}, side by side {b:.1f}"])


if __name__ == "__main__":
    sys.exit(main())
