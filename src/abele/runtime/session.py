"""The session: the device's copy of a model's state, and the steps that change it.

Batches flow in, outputs flow out; parameters, buffers, optimizer state, accumulators and random
streams live here between calls. It is the only mutable object of the engine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from typing import Any, TypeVar, cast

import torch

from abele.collectives.torch_group import Collective
from abele.compilation.executable import Executable
from abele.program import Program, Role
from abele.runtime.busy_cores import cores
from abele.runtime.device_state import DeviceState
from abele.runtime.micro_steps import Alone, Plan, Returned, Step, Update, sequential
from abele.runtime.observers import CallRecord, Hooks, Observer, hooks_of
from abele.runtime.proving import Change, FirstUse, first_use, pending_change
from abele.step import batching
from abele.step.config import OutputMode, StepConfig

_Result = TypeVar("_Result")
_MOST_LOSSES = 128


class Session(DeviceState):
    """A model's state on its device, and the executable that changes it.

    The other arguments are those of ``DeviceState``.

    Args:
        executable: programs: ``forward``, ``step``, or ``accumulate`` and ``apply``; or
            those that ``plan`` runs.
        anchors: tensors to save; the programs were captured with their names.
        plan: how micro-steps run; one after the other by default.
        observers: observers of its calls; see ``add_observer``.
        loss: which output is the loss that is trained; None if none is.

    Attributes:
        executable: the running executable, which compiled programs may replace.
        runner: runs the micro-steps.
        marks: of the latest call, before and after each micro-step; see ``runtime.observers``.
        loss: which output is the trained loss.
        losses: a sample of its values.
        calls: how many calls have ended well.
        replays: inputs and outputs are host tensors; the call replays a captured graph.
    """

    def __init__(
        self,
        executable: Executable,
        config: StepConfig,
        params: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        optimizer_state: Mapping[str, torch.Tensor] | None = None,
        hyper: Mapping[str, float] | None = None,
        anchors: Sequence[Anchor] = (),
        collective: Collective | None = None,
        *,
        plan: Plan | None = None,
        observers: Sequence[Observer] = (),
        loss: int | None = None,
    ):
        batching.check_output_period(config)
        self._is_sequential = plan is None
        plan = plan or sequential(executable)
        # The whole also has what a part of it may leave out, such as a parameter nobody reads.
        super().__init__(
            (plan.model, *executable.programs),
            executable.target.device(),
            config,
            params,
            buffers,
            optimizer_state or {},
            hyper or {},
            collective,
        )
        self.executable, self.loss = executable, loss
        self.calls, self.losses, self._due = 0, Losses(), 1
        self._plan = plan
        self._batch = [slot.name for slot in plan.model.inputs if slot.role is Role.INPUT]
        self.runner = self._plan.start(executable, self, Update(executable, self))
        self._steps = list(batching.schedule(config))
        self._shared_and_written = _shared_and_written(plan.model, config)
        self._first_replicas = set(config.input_groups.firsts())
        self._anchors = self._anchor_store(anchors, plan.model)
        self._observers: tuple[Observer, ...] = ()
        self._hooks: Hooks | None = None  # of the observers; None without any
        made = [each for make in _makers if (each := make(self)) is not None]
        self._observe((*observers, *made))
        self._alone: Alone | None = None
        self.prepare()
        self.marks: list[Any] = []
        self._last: tuple[int, Sequence[Any], int, None, int] | CallRecord | None = None
        self._change = pending_change(executable, self)

    def _anchor_store(self, anchors: Sequence[Anchor], model: Program) -> AnchorStore | None:
        if not anchors:
            return None
        by_name = {program.name: program for program in self.executable.programs}
        return AnchorStore(anchors, model, by_name.get("apply"), self.config)

    def prepare(self) -> None:
        """Choose the code path of calls; run again if the runner is replaced between calls."""
        several = len(self._steps) > 1 or self._anchors is not None or self.exchange is not None
        self._alone = None if several else self.runner.alone()
        self.replays = self._alone is not None and self.runner.replays

    # -- observing -------------------------------------------------------------------------

    def add_observer(self, observer: Observer) -> None:
        """Attach an observer, from the next call on."""
        self._observe((*self._observers, observer))

    def remove_observer(self, observer: Observer) -> None:
        """Detach an observer, from the next call on, also from within a hook.

        Raises:
            ValueError: it does not observe this session.
        """
        if not any(each is observer for each in self._observers):
            raise ValueError(f"{observer!r} does not observe this session.")
        self._observe([each for each in self._observers if each is not observer])

    def _observe(self, observers: Sequence[Observer]) -> None:
        self._observers = tuple(observers)
        self._hooks = hooks_of(self._observers) if observers else None

    @property
    def last_call(self) -> CallRecord | None:
        """The record of the latest call that did not end in an error, or None."""
        return None if self._last is None else CallRecord(*self._last)

    @property
    def was_stopped(self) -> bool:
        """True if the latest call failed after its first micro-step had begun."""
        return bool(self.marks) and (self._last is None or self.marks is not self._last[1])

    # -- running ---------------------------------------------------------------------------

    def step(self, batch: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Run one call: every micro-step of ``batching.schedule`` and its updates.

        Args:
            batch: one tensor per input slot, contiguous, with the rows of the whole call.

        Returns:
            The outputs, fresh tensors on the device or the host, with the rows of
            ``batching.parts_out`` micro-batches; one without rows, such as a loss, stays 0-d where
            that is 1.

        Raises:
            BatchError: the rows do not divide into micro-batches.
            CollectiveError: another process has ended, or cancelled the update.
            Exception: of a host call; what was summed since the last update is dropped.
            TrappedError: an operation produced an infinity or NaN, which the configuration traps;
                state is as after the last complete update.
        """
        return self.call(batch, time.perf_counter_ns(), lambda outputs: outputs)

    def call(
        self,
        batch: Sequence[torch.Tensor],
        began_ns: int,
        deliver: Callable[[list[torch.Tensor]], _Result],
    ) -> _Result:
        """Run ``step`` between the caller's preparation and the delivery of the outputs.

        Args:
            batch: as for ``step``.
            began_ns: when the caller was called, on the clock of ``time.perf_counter_ns``.
            deliver: converts or moves the outputs for the caller; the call ends with it.

        Returns:
            What ``deliver`` returned.

        Raises:
            Exception: as from ``step``, or what ``deliver`` or an observer raised.
        """
        if began_ns > cores.due_ns:
            cores.look(began_ns)
        following_ns = 0 if self._change is None else self._follow(self._change, batch)
        self.marks = []
        if self._hooks is not None:
            return self._observed(self._hooks, batch, began_ns, deliver, following_ns)
        result = deliver(self._run(batch, ()))
        self._last = (began_ns, self.marks, time.perf_counter_ns(), None, following_ns)
        return result

    def _observed(
        self,
        hooks: Hooks,
        batch: Sequence[torch.Tensor],
        began_ns: int,
        deliver: Callable[[list[torch.Tensor]], _Result],
        following_ns: int,
    ) -> _Result:
        """Run a call between the hooks of observers."""
        error: BaseException | None = None
        try:
            for tell in hooks.begin:
                tell(began_ns)
            for tell in hooks.inputs:
                tell(batch)
            outputs = self._run(batch, hooks.watching)
            for tell in hooks.outputs:
                tell(outputs)
            return deliver(outputs)
        except BaseException as raised:
            error = raised
            raise
        finally:
            call = CallRecord(began_ns, self.marks, time.perf_counter_ns(), error, following_ns)
            for tell in hooks.end:
                tell(call)
            # Not before: where an observer ends the call with an error, it did not end well.
            self._last = self._last if error is not None else call

    def _run(
        self, batch: Sequence[torch.Tensor], observers: Sequence[Observer]
    ) -> list[torch.Tensor]:
        """Run a call's micro-steps, by the faster path for a single, unobserved micro-step."""
        try:
            if self._alone is not None and not observers:
                outputs = self._alone(batch, self.marks)
            else:
                outputs = self._micro_steps(batch, observers)
        except BaseException as error:
            if self.exchange is not None and isinstance(error, Exception):
                self.exchange.give_up(error)
            # The next call starts with its first micro-batch; nothing may be left of this one.
            self.drop_unfinished_sums()
            raise
        # Plain integers: at every call, which may take some microseconds alone.
        self.calls = calls = self.calls + 1
        if calls == self._due and self.loss is not None:
            self._due = self.losses.keep(calls, outputs[self.loss])
        return outputs

    def prove(self, batch: Sequence[torch.Tensor]) -> None:
        """Compare compiled programs with interpreted ones now, if the first call would.

        Raises:
            CompilerError: the target was insisted on, and no compiled programs agree.
        """
        if isinstance(self._change, FirstUse):
            self._follow(self._change, batch)

    @property
    def is_unproven(self) -> bool:
        """True if the first call, or ``prove``, compares programs before they run."""
        return isinstance(self._change, FirstUse)

    def _follow(self, change: Change, batch: Sequence[torch.Tensor]) -> int:
        """Switch to other programs from this call on, if any are due; return the time in ns."""
        began_ns = time.perf_counter_ns()
        made = change.due(lambda: self._first_micro_batch(batch))
        if made is not None:
            before, self.executable = self.executable, made
            if made.compiled is not before.compiled:
                self.runner.close()
                plan = sequential(made) if self._is_sequential else self._plan
                self.runner = plan.start(made, self, Update(made, self))
                self.prepare()
        if change.over:
            self._change = None
            change.announce()
        change.count()
        return time.perf_counter_ns() - began_ns

    def _first_micro_batch(self, batch: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the first micro-batch of a call on the device, by the names of slots."""
        _, rows = next(self._micro_batches([tensor.to(self.device) for tensor in batch]))
        return dict(zip(self._batch, rows, strict=True))

    def _micro_steps(
        self, batch: Sequence[torch.Tensor], observers: Sequence[Observer]
    ) -> list[torch.Tensor]:
        if self._anchors is not None:
            self._anchors.begin()
        if self.exchange is not None:
            self.exchange.begin()
        if self.replays:  # then the batch may be on the host
            batch = [tensor.to(self.device) for tensor in batch]
        steps = self._steps
        if len(steps) > 1:
            return self._joined(batch, observers)
        # The batch is that of the micro-step, so it is neither divided nor joined.
        return self._group([(steps[0], batch)], observers)[0][0]

    def _joined(
        self, batch: Sequence[torch.Tensor], observers: Sequence[Observer]
    ) -> list[torch.Tensor]:
        kept: list[list[torch.Tensor]] = []
        for group in self.runner.groups(self._micro_batches(batch), bool(observers)):
            for (step, _), (outputs, _) in zip(group, self._group(group, observers), strict=True):
                if step.keeps:
                    kept.append(outputs)
        return assemble(kept, self.config)

    def _group(self, group: Sequence[Step], observers: Sequence[Observer]) -> Sequence[Returned]:
        """Run a group of micro-steps; separate anchored tensors from their outputs."""
        anchors = self._anchors
        returned = self.runner.run(group, self.marks, anchors is not None)
        if observers:
            self._tell(observers, group)
        if anchors is None:
            return returned
        return [
            (anchors.take(step.index, outputs, applied), applied)
            for (step, _), (outputs, applied) in zip(group, returned, strict=True)
        ]

    def _tell(self, observers: Sequence[Observer], group: Sequence[Step]) -> None:
        begins, ends = self.marks[-2 * len(group) :: 2], self.marks[1 - 2 * len(group) :: 2]
        for (step, _), begin, end in zip(group, begins, ends, strict=True):
            for observer in observers:
                if step.updates:
                    observer.on_update(step)
                observer.on_micro_step(step, begin, end)

    def _micro_batches(self, batch: Sequence[torch.Tensor]) -> Iterator[Step]:
        """Yield each micro-step of a call with its slice of every input."""
        pieces = [self._pieces(tensor) for tensor in batch]
        # Replicas that share their input each see it as it came; the first one's writes stay.
        unwritten = {i: self._pieces(batch[i].clone()) for i in self._shared_and_written}
        for step in self._steps:
            rows = [of_input[step.piece] for of_input in pieces]
            if unwritten and step.replica not in self._first_replicas:
                for index, of_input in unwritten.items():
                    rows[index] = of_input[step.piece].clone()
            yield step, rows

    def _pieces(self, tensor: torch.Tensor) -> Sequence[torch.Tensor]:
        """Split an input into micro-batches; repeat a tensor without a batch dimension."""
        size = batching.micro_batch_size(tensor.shape[0], self.config) if tensor.dim() else 0
        if not size:
            return [tensor] * batching.micro_batches(self.config)
        return cast("Any", tensor).split(size)

    def lasting_executable(self) -> Executable:
        """Return the programs that are worth storing: compiled ones, waited for if need be.

        Interpreted ones if nothing else will come. What runs does not change.
        """
        return self.executable if self._change is None else self._change.awaited()

    def close(self) -> None:
        """Free a session's threads, compilers and files, and notify other processes.

        Alone, the session can be used again.
        """
        if self._change is not None:
            self._change.close()
            self._change = None if self._change.over else self._change
        if self.exchange is not None:
            self.exchange.close()
        self.runner.close()

    def anchored(self, name: str) -> torch.Tensor | None:
        """Return an anchored tensor's values from the last call, concatenated like outputs.

        Returns:
            A tensor on the device; ``None`` before the first call and for unknown names.
        """
        kept = None if self._anchors is None else self._anchors.kept(name)
        return None if kept is None else assemble([[value] for value in kept[0]], kept[1])[0]


Maker = Callable[[Session], Observer | None]
_makers: list[Maker] = []


@contextlib.contextmanager
def of_new_sessions(make: Maker) -> Generator[None]:
    """Attach an observer to each session created in a ``with`` block, in any thread.

    Args:
        make: returns the observer of a session under construction, or None.
    """
    _makers.append(make)
    try:
        yield
    finally:
        _makers.remove(make)


def _shared_and_written(model: Program, config: StepConfig) -> list[int]:
    """Return the indices of inputs that replicas share and the forward pass writes."""
    if config.input_group_size == 1:
        return []
    inputs = [slot for slot in model.inputs if slot.role is Role.INPUT]
    return [index for index, slot in enumerate(inputs) if slot.mutated]


def assemble(kept: list[list[torch.Tensor]], config: StepConfig) -> list[torch.Tensor]:
    """Concatenate the outputs of micro-steps; 0-d outputs of several become 1-d."""
    if config.output_mode is OutputMode.SUM:
        replicas = config.replicas
        kept = [
            [
                torch.stack(values).sum(0, dtype=values[0].dtype)
                for values in zip(*group, strict=True)
            ]
            for group in (kept[replica::replicas] for replica in range(replicas))
        ]
    if len(kept) == 1:
        return kept[0]
    return [
        torch.stack(values) if values[0].dim() == 0 else torch.cat(values)
        for values in zip(*kept, strict=True)
    ]


class SectionSession(DeviceState):
    """A session whose programs run as separate sections of a step, in the caller's order.

    The caller stores values between programs, and may run a section again.

    Attributes:
        programs: by name.
    """

    def __init__(
        self,
        executable: Executable,
        config: StepConfig,
        params: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        optimizer_state: Mapping[str, torch.Tensor],
        hyper: Mapping[str, float],
    ):
        programs, device = executable.programs, executable.target.device()
        super().__init__(
            programs, device, config, params, buffers, optimizer_state, hyper, collective=None
        )
        self.executable = executable
        self.programs: dict[str, Program] = {program.name: program for program in programs}
        self._arguments = {program.name: self.arguments(program, 0) for program in programs}
        self._unproven = set[str]() if executable.is_proven() else set(self.programs)
        self._inputs = {
            program.name: [
                (i, s.name) for i, s in enumerate(program.inputs) if s.role is Role.INPUT
            ]
            for program in programs
        }

    def run(self, name: str, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Run one program of a sectioned session by its name.

        Returns:
            Its outputs by slot, fresh tensors on the device.

        Raises:
            CompilerError: it does not agree with the interpreted program on this machine, nor does
                other code, and the target was insisted on.
        """
        arguments = self._arguments[name].copy()
        for position, slot in self._inputs[name]:
            arguments[position] = inputs[slot].to(self.device).contiguous()
        if name in self._unproven:
            given = {slot: arguments[position] for position, slot in self._inputs[name]}
            self.executable = first_use(self.executable, name, self, given)
            self._unproven.discard(name)
        with self.stream(0):
            outputs = self.executable.compiled[name].run(arguments)
        slots = self.programs[name].outputs
        return {slot.name: value for slot, value in zip(slots, outputs, strict=True)}

    def taken_by(self, name: str, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Select the values that a program of a session reads, by slot."""
        return {slot: values[slot] for _, slot in self._inputs[name] if slot in values}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Anchor:
    """A tensor whose values a session saves for the user.

    Attributes:
        name: what it is fetched by.
        tensor: its name in the programs, one of ``Captured.tensor_names``.
        mode: which of its values are saved; ``None`` for those returned of the model's outputs.
        period: with ``EVERY_N``, one device iteration in this many.
    """

    name: str
    tensor: str
    mode: OutputMode | None = None
    period: int = 1


class AnchorStore:
    """The anchored tensors among the results of a session's programs.

    Args:
        anchors: the tensors to save.
        model: the program that runs at every micro-step.
        apply: the program that runs at every update, if it is another one.
        config: the schedule of a call.
    """

    def __init__(
        self, anchors: Sequence[Anchor], model: Program, apply: Program | None, config: StepConfig
    ):
        self._replicas = config.replicas
        self._outputs = sum(slot.role is Role.OUTPUT for slot in model.outputs)
        self._configs = {anchor.name: _own_config(anchor, config) for anchor in anchors}
        self._keeps = {
            name: [step.keeps for step in batching.schedule(anchor_config)]
            for name, anchor_config in self._configs.items()
        }
        self._of_model = _positions(anchors, model)
        self._of_apply = _positions(anchors, apply)
        self._kept: dict[str, list[torch.Tensor]] = {}
        self._last, self._complete = max(step.index for step in batching.schedule(config)), False

    def begin(self) -> None:
        """Drop the anchored values of the previous call."""
        self._complete = False
        self._kept = {name: [] for name in self._configs}

    def take(
        self, index: int, outputs: list[torch.Tensor], applied: list[torch.Tensor] | None
    ) -> list[torch.Tensor]:
        """Store anchored tensors and return the outputs of the model alone.

        Args:
            index: which micro-step of the call.
            outputs: what the model's program returned.
            applied: what the update's program returned, if it ran.
        """
        for name, position in self._of_model.items():
            if self._keeps[name][index]:
                self._kept[name].append(outputs[position])
        for name, position in self._of_apply.items():
            if applied is not None and self._keeps[name][index]:
                self._kept[name] += [applied[position]] * self._replicas
        self._complete = index == self._last
        return outputs[: self._outputs]

    def kept(self, name: str) -> tuple[list[torch.Tensor], StepConfig] | None:
        """Return an anchor's values from the last call and how they combine, or None."""
        values = self._kept.get(name) if self._complete else None
        return (values, self._configs[name]) if values else None


def _own_config(anchor: Anchor, config: StepConfig) -> StepConfig:
    if anchor.mode is None:
        return config
    anchor_config = dataclasses.replace(
        config, output_mode=anchor.mode, output_period=anchor.period
    )
    batching.check_output_period(anchor_config)
    return anchor_config


def _positions(anchors: Sequence[Anchor], program: Program | None) -> Mapping[str, int]:
    outputs = () if program is None else program.outputs
    at = {s.name: i for i, s in enumerate(outputs) if s.role is Role.ANCHOR}
    return {anchor.name: at[anchor.tensor] for anchor in anchors if anchor.tensor in at}


class Losses:
    """A sample of the losses of a session's calls, for charts.

    At most 128, evenly spread over the calls; of several elements, the mean.
    Every call's loss is kept at first. When there is no more room, every second one is dropped, and
    later calls keep losses half as often, so that long runs pay nothing for most of their calls.
    """

    def __init__(self):
        self._every = 1
        self._kept: list[tuple[int, torch.Tensor]] = []

    def keep(self, call: int, loss: torch.Tensor) -> int:
        """Keep the loss of a call; return the number of the next call whose loss is kept.

        A GPU computes the mean later, and nothing waits for it.
        """
        # A copy: programs add up losses in place. A mean takes three times as long as a clone.
        self._kept.append((call, loss.float().mean() if loss.dim() else loss.clone()))
        if len(self._kept) == _MOST_LOSSES:
            del self._kept[1::2]
            self._every *= 2
        return self._kept[-1][0] + self._every

    def values(self) -> list[tuple[int, float]]:
        """Return pairs of a call's number and its loss; waits for a GPU."""
        return [(call, float(value)) for call, value in self._kept]
