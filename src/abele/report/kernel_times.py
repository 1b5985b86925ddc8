"""Times of a program's kernels and the machine's limits, as typed values of ``run.json``.

All are from runs apart from those that are timed; numbers are bytes, seconds, or counts.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Kernel:
    """Work between two readings of the clock, in a run of its own.

    Attributes:
        what: backend: ``torch``, ``loop``, or the name of a kernel.
        operators: operators it computes, each with its share of the time, in proportion to bytes.
        phase: ``forward``, ``backward`` or ``update``.
        module: path of the module, names joined by ``/``; empty outside all.
        line: ``FILE:LINE in FUNCTION`` of the user's source; empty if unknown.
        began: seconds since the program began.
        seconds: mean time in the fastest quarter of the runs.
        quarters: seconds in all runs: minimum, quartiles and maximum; zeros in older files.
        operations: FLOPs of the operators for which torch has a formula.
        bytes: least bytes read and written.
        least: least seconds of this machine for so many FLOPs and bytes.
    """

    what: str
    operators: tuple[tuple[str, float], ...]
    phase: str
    module: str
    line: str
    began: float
    seconds: float
    operations: int
    bytes: int
    least: float
    quarters: tuple[float, float, float, float, float] = (0.0, 0.0, 0.0, 0.0, 0.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Timing:
    """A program that was run with clocks and without, in turns, on copies of its state.

    Attributes:
        runs: number of runs of each kind that are averaged, the fastest quarter.
        seconds: of a run without clocks.
        clocked: of a run with clocks.
        clocks: what of that the clocks took, from measuring them alone.
        kernels: in the order in which they run.
        all_runs: number of runs with clocks; 0 in older files.
        made_up: the state was made up, because the run was over.
    """

    runs: int
    seconds: float
    clocked: float
    clocks: float
    kernels: tuple[Kernel, ...]
    all_runs: int = 0
    made_up: bool = False

    @property
    def attributed(self) -> float:
        """Seconds in kernels."""
        return sum(each.seconds for each in self.kernels)

    @property
    def unattributed(self) -> float:
        """Seconds between kernels, without what the clocks took."""
        return max(0.0, self.clocked - self.clocks - self.attributed)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Limits:
    """Peak rates of this machine, measured with some number of threads.

    Attributes:
        threads: number of threads of torch.
        operations: FLOPs per second of a GEMM.
        bandwidths: pairs of bytes touched by an operator, and bytes per second.
    """

    threads: int
    operations: float
    bandwidths: tuple[tuple[int, float], ...]

    def least(self, operations: int, moved: int) -> float:
        """Seconds that so many operations on so many bytes take at least."""
        fitting = [rate for size, rate in self.bandwidths if size <= moved]
        rate = fitting[-1] if fitting else self.bandwidths[0][1]
        return max(operations / self.operations, moved / rate)
