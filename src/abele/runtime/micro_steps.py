"""Runners of micro-steps: sequentially, or as another ``Plan`` says.

The session says which micro-steps there are and takes what they return; a runner knows the programs
that compute them. It sees the state through ``DeviceState`` and ends updates through ``Update``.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol, cast

import torch

from abele.compilation.executable import Executable
from abele.errors import TrappedError
from abele.program import Check, Program, Role
from abele.runtime.device_state import DeviceState
from abele.runtime.observers import clock
from abele.step.batching import MicroStep
from abele.targets.base import OfBatch, Repeated, Run

#: A micro-step, and its slice of each input.
Step = tuple[MicroStep, Sequence[torch.Tensor]]
# Target duration of a group of micro-steps, which bounds the wait after an interrupt.
_TOGETHER_NS, _MOST_TOGETHER = 5_000_000, 64
#: Runs the only micro-step of a call: takes its inputs and the call's marks, returns its outputs.
Alone = Callable[[Sequence[torch.Tensor], list[Any]], list[torch.Tensor]]
#: Outputs of the model's program (empty if not wanted), and of the update if it ran.
Returned = tuple[list[torch.Tensor], list[torch.Tensor] | None]


class Runner(Protocol):
    """Interface of objects that run the micro-steps of one session.

    Attributes:
        replays: ``alone`` returns what a target bound that replays programs; see ``Compiled``.
    """

    replays: bool

    def groups(self, steps: Iterable[Step], watched: bool) -> Iterable[Sequence[Step]]:
        """Divide the micro-steps of a call into groups that run together, in their order.

        Args:
            steps: of the call.
            watched: an observer wants the state after each micro-step, if possible.
        """
        ...

    def run(self, group: Sequence[Step], marks: list[Any], wanted: bool) -> Sequence[Returned]:
        """Run the micro-steps of one group and the update at its end.

        Args:
            group: one of ``groups``.
            marks: gets two marks for each micro-step, of its beginning and its end. Where an error
                ends the group, there is one at least if anything may have changed.
            wanted: results of all micro-steps are wanted, also those that the call does not
                return.

        Returns:
            What each micro-step returned.
        """
        ...

    def alone(self) -> Alone | None:
        """Return a faster ``run`` for calls of one micro-step, or None.

        It gives the same results and marks, and follows changes of the runner.
        """
        ...

    def close(self) -> None:
        """Stop threads that wait for micro-steps; they start again if needed."""
        ...


class Update:
    """An update program that applies accumulated gradients."""

    def __init__(self, executable: Executable, state: DeviceState):
        self._state = state
        self._run = None
        for program in executable.programs:
            if program.name == "apply":
                self._run = trapping(program, executable.compiled["apply"].run)
                self._arguments = state.arguments(program, 0)
                # Stochastic rounding draws; the weights are one, so the first stream serves all.
                alone = functools.partial(state.stream, 0)
                self._stream = state.shared_stream if program.uses_random else alone

    @property
    def is_apart(self) -> bool:
        """True if the update is a separate program, or follows a gradient exchange."""
        return self._run is not None or self._state.exchange is not None

    def apply(self) -> list[torch.Tensor] | None:
        """Update the weights; None if the model's program has updated them itself."""
        if self._run is None:
            return None
        exchange, counters = self._state.exchange, self._state.counters
        if exchange is not None:
            exchange.reduce(counters)
        with self._stream():
            applied = self._run(self._arguments.copy())
        if exchange is not None:
            exchange.after_update(counters)
            exchange.begin()
        return applied


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """The programs that run at each micro-step.

    Attributes:
        model: the program of a whole micro-batch: its slots define inputs, outputs and
            state.
        start: creates the runner for a session's executable, state and update.
    """

    model: Program
    start: Callable[[Executable, DeviceState, Update], Runner]


def sequential(executable: Executable) -> Plan:
    """Return a plan that runs each micro-step as one run of one program."""
    programs = {program.name: program for program in executable.programs}
    model = (
        programs.get("forward")
        or programs.get("call")
        or programs.get("step")
        or programs["accumulate"]
    )

    def start(made: Executable, state: DeviceState, update: Update) -> Runner:
        runner = Sequential(made, model, state, update)
        return RolledBack(runner, state) if state.config.trap_exceptions else runner

    return Plan(model=model, start=start)


class Sequential:
    """A runner that runs micro-steps one after the other."""

    def __init__(self, executable: Executable, model: Program, state: DeviceState, update: Update):
        self._update, self._stream = update, state.stream
        self._is_single = state.config.replicas == 1 and not state.uses_random
        compiled = executable.compiled[model.name]
        repeats = self._is_single and not model.checks
        self._repeated = compiled.repeated() if repeats else None
        self._together = 1
        # Built once; a step only fills in the batch.
        self._arguments = [state.arguments(model, r) for r in range(state.config.replicas)]
        adopts = state.config.adopts
        states = [compiled.with_state(each, adopted=adopts) for each in self._arguments]
        self._programs = [trapping(model, run) for run in states]
        self._inputs = [i for i, slot in enumerate(model.inputs) if slot.role is Role.INPUT]
        binds = repeats and not (adopts and compiled.prepares)
        bound = functools.partial(compiled.bound, self._arguments[0], self._inputs)
        self._bound = bound(adopted=adopts) if binds else None
        self.replays = self._bound is not None and compiled.replays
        self._waits = self._repeated is not None and compiled.replays
        self._mark = clock(state.device)

    def groups(self, steps: Iterable[Step], watched: bool) -> Iterator[Sequence[Step]]:
        """Divide micro-steps into groups of a few milliseconds, or of single micro-steps."""
        if self._repeated is None or watched:
            yield from ((step,) for step in steps)
            return
        group: list[Step] = []
        for each in steps:
            group.append(each)
            if len(group) >= self._together or (each[0].updates and self._update.is_apart):
                yield group
                group = []
        if group:
            yield group

    def run(self, group: Sequence[Step], marks: list[Any], wanted: bool) -> Sequence[Returned]:
        """Run the micro-steps of a group; see ``Runner``."""
        if self._repeated is None:
            return (self._run_one(group, marks),)
        if len(group) > 1 or self._waits:
            returned = self._run_together(self._repeated, group, marks, wanted)
        else:
            returned = (self._run_one(group, marks),)
        took_ns = max(1, marks[-1] - marks[-2 * len(group)])
        self._together = min(max(1, _TOGETHER_NS * len(group) // took_ns), _MOST_TOGETHER)
        return returned

    def _run_one(self, group: Sequence[Step], marks: list[Any]) -> Returned:
        """Run one micro-step; the program returns its results, wanted or not."""
        ((step, rows),) = group
        arguments = self._arguments[step.replica].copy()
        for position, tensor in zip(self._inputs, rows, strict=True):
            arguments[position] = tensor
        mark = self._mark
        marks.append(mark())
        with self._stream(step.replica):
            outputs = self._programs[step.replica](arguments)
        applied = self._update.apply() if step.updates else None
        marks.append(mark())
        return outputs, applied

    def _run_together(
        self, repeated: Repeated, group: Sequence[Step], marks: list[Any], wanted: bool
    ) -> Sequence[Returned]:
        kept = [wanted or step.keeps for step, _ in group]
        results = repeated(self._arguments[0], [rows for _, rows in group], kept, marks)
        applied = None
        if group[-1][0].updates and self._update.is_apart:
            applied = self._update.apply()
            marks[-1] = time.perf_counter_ns()  # what runs together has marks of the host's clock
        return [(each, None) for each in results[:-1]] + [(results[-1], applied)]

    def alone(self) -> Alone | None:
        """Return a faster ``run`` for one replica without random numbers and one program."""
        if not self._is_single or self._update.is_apart:
            return None
        if self._bound is None:
            return self._run_alone
        # Who replays waits for the device, so the host's clock knows when that is done.
        return _between_marks(self._bound, time.perf_counter_ns if self.replays else self._mark)

    def _run_alone(self, rows: Sequence[torch.Tensor], marks: list[Any]) -> list[torch.Tensor]:
        # After each long step this code comes out of memory again, so what counts is how little
        # of it there is: no generators, no contexts, nothing that another call would need.
        arguments = self._arguments[0].copy()
        for position, tensor in zip(self._inputs, rows, strict=True):
            arguments[position] = tensor
        mark = self._mark
        marks.append(mark())
        outputs = self._programs[0](arguments)
        marks.append(mark())
        return outputs

    def close(self) -> None:
        """Do nothing: a sequential runner has no threads."""


def _between_marks(bound: OfBatch, mark: Callable[[], Any]) -> Alone:
    def run(rows: Sequence[torch.Tensor], marks: list[Any]) -> list[torch.Tensor]:
        marks.append(mark())
        outputs = bound(rows)
        marks.append(mark())
        return outputs

    return run


class RolledBack:
    """A ``Runner`` that undoes another runner's groups if a trap stops them."""

    replays = False

    def __init__(self, runner: Runner, state: DeviceState):
        self._runner, self._state = runner, state
        self._copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # as after the last update

    def groups(self, steps: Iterable[Step], watched: bool) -> Iterable[Sequence[Step]]:
        """Return the groups of the wrapped runner."""
        return self._runner.groups(steps, watched)

    def run(self, group: Sequence[Step], marks: list[Any], wanted: bool) -> Sequence[Returned]:
        """Run a group by the wrapped runner; restore the last update's state if a trap stops it."""
        if not self._copies:
            self._copies = [(tensor, tensor.clone()) for tensor in self._state.written()]
        complete = group[-1][0].updates or not self._state.config.training
        try:
            return self._runner.run(group, marks, wanted)
        except BaseException:
            for tensor, before in self._copies:
                tensor.copy_(before)
            complete = True
            raise
        finally:
            if complete:
                self._copies = []

    def alone(self) -> Alone | None:
        """Return None: a step that may be undone goes through ``run``."""
        return None

    def close(self) -> None:
        """Stop the threads of the wrapped runner."""
        self._runner.close()


def trapping(program: Program, run: Run) -> Run:
    """Wrap a program's call so that it raises TrappedError if a finiteness check fails."""
    if not program.checks:
        return run

    def checked(arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        outputs = run(arguments)
        failure = first_failure(program.checks, cast("Any", outputs.pop()).tolist())
        if failure is not None:
            raise TrappedError(_sentence(*failure), failure[0].line)
        return outputs

    return checked


def first_failure(
    checks: Sequence[Check], magnitudes: Sequence[float]
) -> tuple[Check, float] | None:
    """Return the first operation that produced an infinity or NaN, and its magnitude."""
    values = list(magnitudes)
    for check in checks:
        if check.is_comparison:
            if any(math.isnan(values[index]) for index in check.sources):
                return check, math.nan
            continue
        result = values[check.magnitude]
        if result < check.overflow:
            continue
        if not math.isnan(result):
            result = values[check.magnitude] = math.inf
        operands = [values[index] for index in check.sources]
        if any(map(math.isnan, operands)):
            continue
        if math.isnan(result):
            return check, result
        if not check.infinite_constant and not any(map(math.isinf, operands)):
            return check, result
    return None


def _sentence(check: Check, result: float) -> str:
    if check.is_comparison:
        what = "invalid operation: a NaN is compared by order"
    elif math.isnan(result):
        what = "invalid operation: NaN from operands without NaN"
    else:
        what = "overflow or division by zero: infinity from finite operands"
    return (
        f"Floating-point exception in {check.operator} ({check.phase}{_place(check)}): "
        f"{what}. Weights, optimizer state and buffers are as after the last complete update. "
        "Lower the loss scale or the learning rate, or compute this in float32."
    )


def _place(check: Check) -> str:
    """Format module and source line of a failed check; empty for an update."""
    if check.phase == "update":
        return ""
    where = f"module {check.scope.replace('/', '.')!r}" if check.scope else "outside submodules"
    line = check.line or f"the {check.phase} pass, which has no line in the user's source"
    return f", {where}, at {line}"
