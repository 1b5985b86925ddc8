"""The members of a wrapped model that look into it: tensors, names and times."""

from __future__ import annotations

import torch

from poptorch._compiled import call_times
from poptorch._compiled.call_times import DONE, INPUT, OUT, READY, Counters
from poptorch._compiled.model import CompiledModel
from poptorch._error import error
from poptorch.options import Options


class Observing:
    """What ``PoplarExecutor`` lets a user see."""

    _compiled: CompiledModel | None
    _options: Options

    def getTensorNames(self) -> list[str]:
        """Names of the tensors that ``options.anchorTensor`` can ask for.

        Parameters and buffers are called as in the state dictionary; ``Gradient___NAME``,
        ``Accum___NAME`` (gradient accumulation or replicas), ``UpdatedVar___NAME`` and the
        optimizer's ``Accl1___NAME`` belong to them. Results of forward are called after the
        modules that made them: ``encoder/fc1/Gemm:0``.

        Differs from the original: kinds of operations are those of torch's operators.

        Raises:
            AssertionError: not compiled.
        """
        if self._compiled is None:
            raise AssertionError(
                "Model must be compiled before its tensors have names: call it, or compile()."
            )
        return list(self._compiled.captured.tensor_names)

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """The values that an anchored tensor had in the last call.

        Args:
            short_name: the first argument of ``options.anchorTensor``.

        Returns:
            A host tensor, its rows joined by the anchor's output mode. A gradient is that of each
            micro-batch in each replica, scaled by the loss scaling, before the optimizer. A
            parameter is the one that forward used. What exists once per update (optimizer state,
            ``UpdatedVar___NAME``) comes once per device iteration and replica.

        Raises:
            AssertionError: the model has not run, its last call failed, or nothing was anchored
                under this name.
        """
        value = None if self._compiled is None else self._compiled.anchored(short_name)
        if value is None:
            known = ", ".join(self._options.anchored_tensors) or "none"
            raise AssertionError(
                f"No tensor with name {short_name} found. Anchored by options.anchorTensor: "
                f"{known}; their values exist after the model has run."
            )
        return value

    # -- times -----------------------------------------------------------------------------

    def getPerfCounters(self) -> Counters:
        """When the tensors of the last call came and went.

        Returns:
            For ``input``, ``input_complete``, ``output`` and ``output_complete`` one list per
            tensor with one float per transfer: seconds from an arbitrary origin. One empty list
            each before the first call; empty lists with synthetic data.

        Differs from the original: the clock counts nanoseconds, and all results of a call are
        complete at the same time, its end.
        """
        counters = None if self._compiled is None else self._compiled.perf_counters()
        return call_times.no_counters() if counters is None else counters

    def getHostIpuLatency(self) -> tuple[float, float, float]:
        """Seconds from the host to the device in the last call: minimum, maximum, average."""
        return call_times.latency(self.getPerfCounters(), INPUT, READY)

    def getComputeLatency(self) -> tuple[float, float, float]:
        """Seconds of computing in the last call: minimum, maximum, average."""
        return call_times.latency(self.getPerfCounters(), READY, DONE)

    def getIpuHostLatency(self) -> tuple[float, float, float]:
        """Seconds from the device to the host in the last call: minimum, maximum, average."""
        return call_times.latency(self.getPerfCounters(), DONE, OUT)

    def getLatency(self) -> tuple[float, float, float]:
        """Seconds from first input to last output in the last call: minimum, maximum, average."""
        return call_times.latency(self.getPerfCounters(), INPUT, OUT)

    def cycleCount(self) -> int:
        """Cycles that the micro-steps of replica 0 took in the last call.

        Differs from the original: a cycle is one nanosecond on the device, measured, because
        processors and GPUs change their frequency while they work.

        Raises:
            poptorch.Error: ``options.logCycleCount(True)`` is missing, or the model has not run.
        """
        if not self._options._Popart.options.get("instrumentWithHardwareCycleCounter"):
            raise error(
                "Cycle count logging is disabled. Call options.logCycleCount(True) before wrapping."
            )
        times = None if self._compiled is None else self._compiled.times
        if times is None:
            raise error("There is no cycle count yet: run the model at least once.")
        return times.cycles()
