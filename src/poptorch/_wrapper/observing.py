"""Inspection of a wrapped model: programs, tensors, names, placement, times.

Times are measured, never modelled. A call transfers the rows of all its micro-batches together and
gets all results back at its end. So a transfer in lasts until a micro-batch can be computed, and
every result is on the host when the call returns.
"""

import dataclasses
from collections.abc import Sequence

import torch

from abele.collectives import Counts
from abele.compilation.build import BuildRecord
from abele.program import Role
from abele.report.card import card
from abele.report.page.overview import per_call
from abele.runtime.observers import CallRecord
from abele.step import batching
from abele.step.config import StepConfig
from poptorch._error import error
from poptorch._forward.blocks import PlacementTable
from poptorch._forward.structure import to_host
from poptorch._state.module_weights import user_class
from poptorch._wrapper.compiled import WrappedModel
from poptorch._wrapper.pipelines import PipelineReport

#: Kinds of transfer times of a call, in chronological order.
INPUT, READY, DONE, OUT = KINDS = ("input", "input_complete", "output", "output_complete")
Counters = dict[str, list[list[float]]]


class Inspection:
    """The wrapper methods that inspect a compiled model without changing it."""

    _wrapped: WrappedModel

    @property
    def build_record(self) -> BuildRecord | None:
        """The build record: target, fallback, cache use and times; None before compiling."""
        return None if self._wrapped.compiled is None else self._wrapped.compiled.record

    @property
    def target(self) -> str | None:
        """The compilation target (``cpu``, ``cuda``, ``reference``); None before compiling."""
        return None if self.build_record is None else self.build_record.target

    @property
    def executable_hash(self) -> str | None:
        """The hash of the compiled executable; None before compiling."""
        return None if self.build_record is None else self.build_record.executable

    @property
    def placement(self) -> PlacementTable | None:
        """The table of where blocks of the model are placed; None before compiling.

        An addition of this project: stages and devices change no number here, and the table shows
        them as the original would count them.
        """
        return None if self._wrapped.compiled is None else self._wrapped.compiled.placement

    @property
    def exchanges(self) -> Counts:
        """Communication statistics of gradient exchange: calls, bytes, seconds.

        An addition of this project. Counted since compiling; zero in a process that trains by
        itself. Bytes are of the tensors that were added up, seconds include waiting for others.
        """
        compiled = self._wrapped.compiled
        exchange = None if compiled is None else compiled.session.exchange
        return Counts() if exchange is None else dataclasses.replace(exchange.counts)

    def _repr_html_(self) -> str:
        """Return a card for notebooks: target, what runs, steps so far, and the loss."""
        wrapped, record = self._wrapped, self.build_record
        kind = "training" if wrapped.training else "inference"
        title = f"{user_class(wrapped.user_module).__name__}: {kind}"
        if record is None or wrapped.compiled is None:
            return card(title, [("", "not compiled yet: the first call does that")])
        session = wrapped.compiled.session
        lowered = session.executable
        facts = [
            ("target", record.target + (f" ({record.fallback})" if record.fallback else "")),
            ("what runs", record.running.sentence()),
            ("programs", ", ".join(f"{n}: {lowered.lowering(n).name}" for n in lowered.compiled)),
            ("cache", record.cache),
            ("calls so far", f"{session.calls:,}"),
            ("one call", per_call(vars(wrapped.config))),
        ]
        return card(title, facts, session.losses.values())

    def program_text(self) -> str:
        """Return the compiled programs as Python, with shapes, dtypes and source lines.

        An addition of this project.

        Raises:
            poptorch.Error: not compiled.
        """
        programs = self._wrapped.session.executable.programs
        return "\n".join(program.text() for program in programs)

    def pipelineReport(self) -> PipelineReport:
        """Return a report of the model's pipeline stages, with times of the latest call.

        An addition of this project.

        Raises:
            poptorch.Error: not compiled.
        """
        if self._wrapped.compiled is None:
            raise error("There is no pipeline report yet: compile the model or call it once.")
        return self._wrapped.compiled.pipeline_report()

    def getTensorNames(self) -> list[str]:
        """Return the names of the tensors that ``options.anchorTensor`` can ask for.

        Parameters and buffers are called as in the state dictionary; ``Gradient___NAME``,
        ``Accum___NAME`` (gradient accumulation or replicas), ``UpdatedVar___NAME`` and the
        optimizer's ``Accl1___NAME`` belong to them. Results of forward are called after the
        modules that computed them: ``encoder/fc1/Gemm:0``.

        Differs from the original: kinds of operations are those of torch's operators.

        Raises:
            AssertionError: not compiled.
        """
        if self._wrapped.compiled is None:
            raise AssertionError(
                "Model must be compiled before its tensors have names: call it, or compile()."
            )
        return list(self._wrapped.compiled.captured.tensor_names)

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
        compiled = self._wrapped.compiled
        value = None if compiled is None else compiled.session.anchored(short_name)
        if value is None:
            known = ", ".join(self._wrapped.options.anchored_tensors) or "none"
            raise AssertionError(
                f"No tensor with name {short_name} found. Anchored by options.anchorTensor: "
                f"{known}; their values exist after the model has run."
            )
        return to_host(value)

    def getPerfCounters(self) -> Counters:
        """Return the transfer times of the tensors of the last call.

        Returns:
            For ``input``, ``input_complete``, ``output`` and ``output_complete`` one list per
            tensor with one float per transfer: seconds from an arbitrary origin. One empty list
            each before the first call; empty lists with synthetic data.

        Differs from the original: the clock counts nanoseconds, and all results of a call are
        complete at the same time, its end.
        """
        compiled = self._wrapped.compiled
        call = None if compiled is None else compiled.session.last_call
        if compiled is None or call is None:
            return {kind: [[]] for kind in KINDS}
        model = compiled.captured.programs[0]
        inputs = sum(slot.role is Role.INPUT for slot in model.inputs)
        outputs = sum(slot.role is Role.OUTPUT for slot in model.outputs)
        times = _transfers(call, compiled.config)
        return {
            kind: [[] if compiled.is_synthetic else list(times[kind]) for _ in range(tensors)]
            for kind, tensors in zip(KINDS, (inputs, inputs, outputs, outputs), strict=True)
        }

    def getHostIpuLatency(self) -> tuple[float, float, float]:
        """Return seconds from host to device in the last call: minimum, maximum, average."""
        return latency(self.getPerfCounters(), INPUT, READY)

    def getComputeLatency(self) -> tuple[float, float, float]:
        """Return seconds of computation in the last call: minimum, maximum, average."""
        return latency(self.getPerfCounters(), READY, DONE)

    def getIpuHostLatency(self) -> tuple[float, float, float]:
        """Return seconds from device to host in the last call: minimum, maximum, average."""
        return latency(self.getPerfCounters(), DONE, OUT)

    def getLatency(self) -> tuple[float, float, float]:
        """Return seconds from first input to last output of a call: minimum, maximum, average."""
        return latency(self.getPerfCounters(), INPUT, OUT)

    def cycleCount(self) -> int:
        """Return the cycles that the micro-steps of replica 0 took in the last call.

        Differs from the original: a cycle is one nanosecond on the device, measured, because
        processors and GPUs change their frequency while they work.

        Raises:
            poptorch.Error: ``options.logCycleCount(True)`` is missing, or the model has not run.
        """
        if not self._wrapped.options._Popart.options.get("instrumentWithHardwareCycleCounter"):
            raise error(
                "Cycle count logging is disabled. Call options.logCycleCount(True) before wrapping."
            )
        compiled = self._wrapped.compiled
        call = None if compiled is None else compiled.session.last_call
        if compiled is None or call is None:
            raise error("There is no cycle count yet: run the model at least once.")
        steps = zip(call.micro_steps(), batching.schedule(compiled.config), strict=True)
        return sum(end - begin for (begin, end), step in steps if step.replica == 0)


def _transfers(call: CallRecord, config: StepConfig) -> dict[str, list[float]]:
    """Return the times in seconds of a call's transfers, by kind (input, output, completion).

    An input has one transfer per micro-step, an output one per micro-step whose rows come out.
    """
    steps = call.micro_steps()
    # Sums leave with the last micro-step of each replica, as final results do.
    leaving = steps[-batching.parts_out(config) :]
    if batching.parts_out(config) != config.replicas:
        kept = zip(steps, batching.schedule(config), strict=True)
        leaving = [step for step, micro in kept if micro.keeps]
    return {
        INPUT: _seconds([call.began_ns, *(end for _, end in steps[:-1])]),
        READY: _seconds([begin for begin, _ in steps]),
        DONE: _seconds([end for _, end in leaving]),
        OUT: _seconds([max(call.ended_ns, end) for _, end in leaving]),
    }


def _seconds(moments: Sequence[int]) -> list[float]:
    return [moment / 1e9 for moment in moments]


def latency(moments: Counters, first: str, last: str) -> tuple[float, float, float]:
    """Return the minimum, maximum and average seconds between two kinds of transfers.

    A step begins with its first transfer in (or when the last one is complete) and ends with its
    last transfer out. Where fewer steps come out than go in, those that go in are grouped evenly.

    Args:
        moments: result of ``getPerfCounters``.
        first: one of ``KINDS``.
        last: a later one.
    """
    choose = max if first == READY else min
    starts = [choose(each) for each in zip(*moments[first], strict=True)]
    ends = [max(each) for each in zip(*moments[last], strict=True)]
    if not starts or not ends:
        return 0.0, 0.0, 0.0
    size = len(starts) // len(ends)
    grouped = [min(starts[i * size : (i + 1) * size]) for i in range(len(ends))]
    spans = [end - start for start, end in zip(grouped, ends, strict=True)]
    return min(spans), max(spans), sum(spans) / len(spans)
