"""Programs with clocks inside: when each kernel began and ended in the latest run.

Made apart from what runs, for reports: a program with clocks takes longer, so none of its times may
be mixed with those of the program itself.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from abele._torch import OpOverload
from abele.targets.base import Run
from abele.targets.kernel_choice import Kernel

_TORCH = "torch"
LOOP = "loop"
#: Kernels that are beside others of the same operator: they add a bias, copy or pack an operand.
BESIDE = frozenset({LOOP, "pack"})
_REPEATS = 2000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Clocked:
    """A program with clocks.

    Attributes:
        run: computes what the program does.
        kernels: in the order in which they run.
        times: gives beginning and end of each in the latest run, in ns of
            ``time.perf_counter_ns``; zeros for what did not run.
        cost_ns: of the clocks of one kernel.
    """

    run: Run
    kernels: tuple[Kernel, ...]
    times: Callable[[], Sequence[tuple[int, int]]]
    cost_ns: float


class GraphClocks:
    """Clocks around the operators that Python runs.

    Args:
        nodes: those of the program by name, if the graph that gets clocks is another one.

    Attributes:
        look: at the clock, in ns.
        moments: beginning and end of each kernel in the latest run.
    """

    def __init__(self, nodes: Mapping[str, torch.fx.Node] | None = None) -> None:
        self.look = time.perf_counter_ns
        self.moments: list[int] = []
        self._nodes = nodes
        self._kernels: list[Kernel] = []

    def place(self, node: torch.fx.Node) -> int:
        """Where the beginning of a node goes in ``moments``; its end comes after it.

        Args:
            node: that calls something.
        """
        of = node if self._nodes is None else self._nodes[node.name]
        self._kernels.append(Kernel(what=_who(node.target), nodes=(of,)))
        self.moments.extend((0, 0))
        return len(self.moments) - 2

    def clocked(self, run: Run) -> Clocked:
        """The program, of which ``run`` calls what has clocks around it."""

        def begun(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            self.moments[:] = [0] * len(self.moments)
            return run(inputs)

        look = _look_ns()

        def times() -> list[tuple[int, int]]:
            moments = zip(self.moments[::2], self.moments[1::2], strict=True)
            return [(began, max(began, ended - look)) for began, ended in moments]

        return Clocked(run=begun, kernels=tuple(self._kernels), times=times, cost_ns=2 * look)


def _who(target: Any) -> str:
    called: Any = target
    if isinstance(target, OpOverload) and called.namespace != "abele":
        return _TORCH
    return str(getattr(called, "__name__", called)).removesuffix(".default")


def _look_ns() -> int:
    """What one look at the clock takes, with keeping it."""
    look, moments = time.perf_counter_ns, [0, 0]
    costs: list[int] = []
    for _ in range(_REPEATS):
        moments[0] = look()
        moments[1] = look()
        costs.append(moments[1] - moments[0])
    return sorted(costs)[_REPEATS // 4]
