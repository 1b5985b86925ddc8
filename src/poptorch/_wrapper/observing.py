"""Inspection of a wrapped model: programs, tensors, names, placement, times."""

import dataclasses

import torch

from abele.collectives import Counts
from abele.compile.build import BuildRecord
from poptorch._compiled import call_times
from poptorch._compiled.call_times import DONE, INPUT, OUT, READY, Counters
from poptorch._compiled.wrapped import WrappedModel
from poptorch._error import error
from poptorch._forward.blocks import PlacementTable
from poptorch._report.pipeline import PipelineReport, report_of


class Observing:
    """Looks into a wrapped model; changes nothing.

    Args:
        model: the wrapped model.
    """

    def __init__(self, model: WrappedModel):
        self._model = model

    @property
    def record(self) -> BuildRecord | None:
        """Origin of the executable; None before compiling."""
        return None if self._model.compiled is None else self._model.compiled.record

    @property
    def placement(self) -> PlacementTable | None:
        """Placement of the model's blocks; None before compiling."""
        return None if self._model.compiled is None else self._model.compiled.placement

    def exchanges(self) -> Counts:
        """Return the communication statistics of updates since compiling."""
        compiled = self._model.compiled
        exchange = None if compiled is None else compiled.session.exchange
        return Counts() if exchange is None else dataclasses.replace(exchange.counts)

    def program_text(self) -> str:
        """Return the compiled programs as Python, with shapes, dtypes and source lines.

        An addition of this project.

        Raises:
            poptorch.Error: not compiled.
        """
        programs = self._model.session.executable.programs
        return "\n".join(program.text() for program in programs)

    def pipelineReport(self) -> PipelineReport:
        """Return how the model's stages run, with times of the latest call.

        An addition of this project.

        Raises:
            poptorch.Error: not compiled.
        """
        if self._model.compiled is None:
            raise error("There is no pipeline report yet: compile the model or call it once.")
        return report_of(self._model.compiled)

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
        if self._model.compiled is None:
            raise AssertionError(
                "Model must be compiled before its tensors have names: call it, or compile()."
            )
        return list(self._model.compiled.captured.tensor_names)

    def getAnchoredTensor(self, short_name: str) -> torch.Tensor:
        """Return the values of an anchored tensor in the last call.

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
        compiled = self._model.compiled
        value = None if compiled is None else compiled.anchored(short_name)
        if value is None:
            known = ", ".join(self._model.options.anchored_tensors) or "none"
            raise AssertionError(
                f"No tensor with name {short_name} found. Anchored by options.anchorTensor: "
                f"{known}; their values exist after the model has run."
            )
        return value

    def getPerfCounters(self) -> Counters:
        """Transfer times of the tensors of the last call.

        Returns:
            For ``input``, ``input_complete``, ``output`` and ``output_complete`` one list per
            tensor with one float per transfer: seconds from an arbitrary origin. One empty list
            each before the first call; empty lists with synthetic data.

        Differs from the original: the clock counts nanoseconds, and all results of a call are
        complete at the same time, its end.
        """
        compiled = self._model.compiled
        counters = None if compiled is None else compiled.perf_counters()
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
        if not self._model.options._Popart.options.get("instrumentWithHardwareCycleCounter"):
            raise error(
                "Cycle count logging is disabled. Call options.logCycleCount(True) before wrapping."
            )
        compiled = self._model.compiled
        call = None if compiled is None else compiled.last_call
        if compiled is None or call is None:
            raise error("There is no cycle count yet: run the model at least once.")
        return call_times.cycles(call, compiled.config)
