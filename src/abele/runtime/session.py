"""The session: the device's copy of a model's state, and the steps that change it.

Batches flow in, outputs flow out; parameters, buffers, optimizer state, accumulators and random
streams live here between calls. It is the only mutable object of the engine.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch

from abele.collectives.protocol import Collective
from abele.compile.executable import Executable
from abele.program import Program, Role, Slot
from abele.runtime.anchors import Anchor, AnchorStore
from abele.runtime.clock import clock
from abele.runtime.exchange import Exchange
from abele.runtime.traps import Rollback, trapping
from abele.step import batching, reduction, replica_groups
from abele.step.config import OutputMode, StepConfig
from abele.targets.base import Run


class Session:
    """Runs one executable.

    Args:
        executable: compiled programs: ``forward``, ``step``, or ``accumulate`` and ``apply``.
        config: how one call consumes its batch.
        params: initial parameters by name; copied to the device. Those of
            ``config.replica_groups`` have a leading dimension for groups, also their state.
        buffers: initial buffers by name; copied once per replica.
        optimizer_state: initial state by slot name.
        hyper: initial values of variable hyper-parameters by slot name.
        anchors: tensors to keep; the programs were captured with their names.
        collective: the processes that share each update, ``config.processes`` of them. Weights and
            optimizer state become those of process 0 where they differ, with a warning.

    Attributes:
        exchange: what is done together with the other processes; None without.
        received: names of the parameters that came from process 0.
        marks: of the last call, before and after each micro-step; see ``runtime.clock``.
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
    ):
        batching.check_output_period(config)
        self.executable, self.config = executable, config
        self.device = executable.target.device()
        self._groups = config.replica_groups
        self.params = self._own(replica_groups.split(params, self._groups))
        self.buffers = [self._own(buffers) for _ in range(config.replicas)]
        slots = [slot for program in self._programs() for slot in program.inputs]
        used = {
            name
            for slot in slots
            if slot.role is Role.OPTIMIZER_STATE
            for name in replica_groups.stored_names(slot, self._groups)
        }
        state = replica_groups.split_state(optimizer_state or {}, self._groups)
        # Parameters that are frozen have no state in the program, so none is kept.
        self.optimizer_state = self._own(
            {name: value for name, value in state.items() if name in used}
        )
        self.hyper = {
            name: torch.tensor(value, dtype=torch.float64, device=self.device)
            for name, value in (hyper or {}).items()
        }
        self.exchange: Exchange | None = None
        if collective is not None:
            sums = self._slots(Role.ACCUMULATOR)
            self.exchange = Exchange(collective, config, sums, self.device)
        self.accumulators = self._zeros(Role.ACCUMULATOR)
        self.counters = self._zeros(Role.COUNTER)
        self.received = self._same_start()
        self.seed = config.seed
        self._random = any(program.uses_random for program in executable.programs)
        self._streams = self._first_streams()
        self._steps = list(batching.schedule(config))
        self._prepare(anchors)
        self._mark = clock(self.device)
        self.marks: list[Any] = []

    # -- state -----------------------------------------------------------------------------

    def write_params(self, params: Mapping[str, torch.Tensor]) -> None:
        """Overwrites parameters; names that are missing keep their value.

        With other processes, all have to do the same before the next update, which checks it.
        """
        if self.exchange is not None:
            self.exchange.note_written("weights that were written", params, self.params)
        for name, value in replica_groups.split(params, self._groups).items():
            self.params[name].copy_(value)

    def read_param(self, name: str, *, per_replica: bool = False) -> torch.Tensor:
        """A parameter's present value.

        Args:
            name: as in the module.
            per_replica: for one of ``config.replica_groups``: every replica's value instead of
                one per group.

        Returns:
            The session's own tensor; with groups a fresh ``[groups, ...]`` or ``[replicas, ...]``.
        """
        grouping = self._groups.get(name)
        if grouping is None:
            return self.params[name]
        return replica_groups.joined(self.params, name, grouping, per_replica=per_replica)

    def read_params(self) -> dict[str, torch.Tensor]:
        """All parameters by name, with a leading dimension where there are groups."""
        return replica_groups.joined_all(self.params, self._groups)

    def write_buffers(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Overwrites buffers in every replica."""
        for replica in self.buffers:
            for name, value in buffers.items():
                replica[name].copy_(value)

    def write_optimizer_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Overwrites optimizer state by slot name; with groups it has a leading dimension."""
        if self.exchange is not None:
            self.exchange.note_written("optimizer state", state, self.optimizer_state)
        for name, value in replica_groups.split_state(state, self._groups).items():
            self.optimizer_state[name].copy_(value)

    def read_optimizer_state(self) -> dict[str, torch.Tensor]:
        """Optimizer state by slot name, with a leading dimension where there are groups."""
        return replica_groups.joined_state(self.optimizer_state, self._groups)

    def read_accumulators(self) -> dict[str, torch.Tensor]:
        """Sums of gradients by parameter, likewise; zero between calls."""
        skip = len(replica_groups.ACCUMULATOR)
        sums = {
            # Programs leave the last update's there if the next one begins by replacing it.
            name[skip:]: value if self.config.adds_here else torch.zeros_like(value)
            for name, value in self.accumulators.items()
        }
        return replica_groups.joined_params(sums, self._groups)

    def write_accumulators(self, sums: Mapping[str, torch.Tensor]) -> None:
        """Overwrites sums of gradients by parameter; with groups they have a leading dimension."""
        for name, value in replica_groups.split(sums, self._groups).items():
            self.accumulators[f"{replica_groups.ACCUMULATOR}{name}"].copy_(value)

    def set_hyper(self, name: str, value: float) -> None:
        """Changes a variable hyper-parameter; takes effect at the next update."""
        if self.exchange is not None:
            self.exchange.note(name, repr(float(value)))
        self.hyper[name].fill_(value)

    def write_counters(self, counters: Mapping[str, torch.Tensor]) -> None:
        """Overwrites what the program counts by itself, such as for an automatic loss scale."""
        if self.exchange is not None:
            self.exchange.note_written("counters that were written", counters, self.counters)
        for name, value in counters.items():
            self.counters[name].copy_(value)
        if self.exchange is not None:
            # What was written is the sum over all processes, and not to be added up again.
            self.exchange.after_update(self.counters)

    @property
    def random_state(self) -> list[torch.Tensor] | None:
        """One generator state per replica, or ``None`` when torch's own stream is shared."""
        return None if self._streams is None else [state.clone() for state in self._streams]

    @random_state.setter
    def random_state(self, states: Sequence[torch.Tensor]) -> None:
        self._streams = [state.clone() for state in states]

    def _own(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        # contiguous: compiled programs are made for the default layout of each slot.
        return {
            name: value.detach().to(self.device, copy=True).contiguous()
            for name, value in values.items()
        }

    def _slots(self, role: Role) -> dict[str, Slot]:
        return {
            name: slot
            for program in self._programs()
            for slot in program.inputs
            if slot.role is role
            for name in replica_groups.stored_names(slot, self._groups)
        }

    def _zeros(self, role: Role) -> dict[str, torch.Tensor]:
        if role is Role.ACCUMULATOR and self.exchange is not None:
            return self.exchange.accumulators
        return {
            name: torch.zeros(slot.shape, dtype=slot.dtype, device=self.device)
            for name, slot in self._slots(role).items()
        }

    def _same_start(self) -> list[str]:
        """Buffers stay: statistics of batches belong to each replica."""
        if self.exchange is None:
            return []
        own = {**self.params, **{f"state of {n}": v for n, v in self.optimizer_state.items()}}
        different = self.exchange.same_start(own)
        for name, value in self.hyper.items():
            self.exchange.note(name, repr(value.item()))
        return [name for name in different if name in self.params]

    def _first_streams(self) -> list[torch.Tensor] | None:
        seed, first = self.config.seed, 0
        if self.exchange is not None:
            first = self.exchange.collective.rank * self.config.replicas
            # Without a seed processes must still not draw the same: torch is often seeded alike.
            seed = torch.initial_seed() % 2**62 if seed is None else seed
        if seed is None:
            return None
        # Consecutive seeds would do for torch's Mersenne twister; spreading them costs nothing.
        seeds = [
            seed + 1_000_003 * replica for replica in range(first, first + self.config.replicas)
        ]
        return [
            torch.Generator(self.device)
            .manual_seed(each if each < 2**64 else each - 2**64)
            .get_state()
            for each in seeds
        ]

    # -- running ---------------------------------------------------------------------------

    def _prepare(self, anchors: Sequence[Anchor]) -> None:
        """Builds each program's argument list once; a step only fills in the batch."""
        by_name = {program.name: program for program in self.executable.programs}
        compiled = self.executable.compiled
        model = self._model_program(by_name)
        self._model_run = self._model_call(model)
        self._model_arguments = [
            self._arguments(model, replica) for replica in range(self.config.replicas)
        ]
        self._input_positions = [
            index for index, slot in enumerate(model.inputs) if slot.role is Role.INPUT
        ]
        inputs = [model.inputs[index] for index in self._input_positions]
        shared = self.config.input_group_size > 1
        self._shared_and_written = [i for i, slot in enumerate(inputs) if shared and slot.mutated]
        self._first_replicas = set(self.config.input_groups.firsts())
        self._apply_run, self._apply_arguments = None, []
        self._apply_is_random = "apply" in compiled and by_name["apply"].uses_random
        if "apply" in compiled:
            self._apply_run = trapping(by_name["apply"], compiled["apply"].run)
            self._apply_arguments = self._arguments(by_name["apply"], 0)
        trapped = self.config.trap_exceptions
        self._rollback = Rollback(self._written) if trapped else None
        self._micro_step = self._undone_if_stopped if trapped else self._run_micro_step
        apply = by_name.get("apply")
        self._anchors = AnchorStore(anchors, model, apply, self.config) if anchors else None

    def _programs(self) -> Sequence[Program]:
        """Those whose slots say what state there is."""
        return self.executable.programs

    def _model_program(self, programs: Mapping[str, Program]) -> Program:
        """The program of a micro-batch."""
        return programs.get("forward") or programs.get("step") or programs["accumulate"]

    def _model_call(self, model: Program) -> Run:
        return trapping(model, self.executable.compiled[model.name].run)

    def _arguments(self, program: Program, replica: int) -> list[torch.Tensor]:
        stores: dict[Role, Mapping[str, torch.Tensor]] = {
            Role.PARAMETER: self.params,
            Role.BUFFER: self.buffers[replica],
            Role.OPTIMIZER_STATE: self.optimizer_state,
            Role.ACCUMULATOR: self.accumulators,
            Role.HYPER: self.hyper,
            Role.COUNTER: self.counters,
        }
        absent = torch.empty(0)  # each call puts its batch there
        return [
            absent
            if slot.role is Role.INPUT
            else stores[slot.role][replica_groups.replica_name(slot, self._groups, replica)]
            for slot in program.inputs
        ]

    def step(self, batch: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Runs one call: every micro-step of ``batching.schedule`` and its updates.

        Args:
            batch: one tensor per input slot, contiguous, with the rows of the whole call.

        Returns:
            The outputs, fresh tensors on the device, in the shape of ``batching.output_shape``.

        Raises:
            BatchError: the rows do not divide into micro-batches.
            CollectiveError: another process is gone, or gave the update up.
            Exception: of a host call; what was summed since the last update is dropped.
            TrappedError: an operation made an infinity or NaN, and the configuration traps them;
                state is as after the last complete update.
        """
        self.marks = []
        if self._anchors is not None:
            self._anchors.begin()
        if self.exchange is not None:
            self.exchange.begin()
        try:
            return self._micro_steps(batch)
        except BaseException as problem:
            if self.exchange is not None and isinstance(problem, Exception):
                self.exchange.give_up(problem)
            self._drop_unfinished_sums()
            raise

    def _drop_unfinished_sums(self) -> None:
        """The next call starts with its first micro-batch, so nothing may be left of this one."""
        counted = self.counters.get(reduction.COUNTED)
        for total in (*self.accumulators.values(), *([] if counted is None else [counted])):
            total.zero_()

    def _micro_steps(self, batch: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        if len(self._steps) == 1:
            return self._micro_step(self._steps[0], batch)
        kept: list[list[torch.Tensor]] = []
        for step, rows in self._micro_batches(batch):
            outputs = self._micro_step(step, rows)
            if step.keeps:
                kept.append(outputs)
        return assemble(kept, self.config)

    def _micro_batches(
        self, batch: Sequence[torch.Tensor]
    ) -> Iterator[tuple[batching.MicroStep, list[torch.Tensor]]]:
        """Each micro-step with its rows of every input."""
        sizes = [
            batching.micro_batch_size(tensor.shape[0], self.config) if tensor.dim() else 0
            for tensor in batch
        ]
        # Replicas that share their input each see it as it came; the first one's writes stay.
        unwritten = {index: batch[index].clone() for index in self._shared_and_written}
        for step in self._steps:
            source = list(batch)
            if unwritten and step.replica not in self._first_replicas:
                for index, tensor in unwritten.items():
                    source[index] = tensor.clone()
            yield (
                step,
                [
                    tensor.narrow(0, step.piece * size, size) if tensor.dim() else tensor
                    for tensor, size in zip(source, sizes, strict=True)
                ],
            )

    def _written(self) -> list[torch.Tensor]:
        stores = (self.params, *self.buffers, self.optimizer_state, self.hyper)
        stores += (self.accumulators, self.counters)
        return [tensor for store in stores for tensor in store.values()]

    def _undone_if_stopped(
        self, step: batching.MicroStep, rows: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        assert self._rollback is not None
        return self._rollback.around(
            lambda: self._run_micro_step(step, rows),
            complete=step.updates or not self.config.training,
        )

    def _run_micro_step(
        self, step: batching.MicroStep, rows: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        arguments = self._model_arguments[step.replica].copy()
        for position, tensor in zip(self._input_positions, rows, strict=True):
            arguments[position] = tensor
        marks, mark = self.marks, self._mark
        marks.append(mark())
        with self._stream(step.replica):
            outputs = self._model_run(arguments)
        applied = self._update() if step.updates else None
        marks.append(mark())
        if self._anchors is not None:
            outputs = self._anchors.take(step.index, outputs, applied)
        return outputs

    def _update(self) -> list[torch.Tensor] | None:
        """Applies what was summed; None where the model's program does so itself."""
        if self._apply_run is None:
            return None
        exchange = self.exchange
        if exchange is not None:
            exchange.reduce(self.counters)
        # Stochastic rounding draws here; the weights are one, so the first stream serves all.
        with self._stream_of_update():
            applied = self._apply_run(self._apply_arguments.copy())
        if exchange is not None:
            exchange.after_update(self.counters)
            exchange.begin()
        return applied

    def close(self) -> None:
        """Frees what a garbage collector would free later, and tells other processes.

        Alone, the session can be used again.
        """
        if self.exchange is not None:
            self.exchange.close()

    def anchored(self, name: str) -> torch.Tensor | None:
        """The values that an anchor kept of the last call, joined like outputs.

        Returns:
            A tensor on the device; ``None`` before the first call and for unknown names.
        """
        found = None if self._anchors is None else self._anchors.kept(name)
        return None if found is None else assemble([[value] for value in found[0]], found[1])[0]

    def _stream(self, replica: int) -> contextlib.AbstractContextManager[None]:
        if not self._random or self._streams is None:
            return contextlib.nullcontext()
        return self._own_stream(self._streams, replica)

    def _stream_of_update(self) -> contextlib.AbstractContextManager[None]:
        """The first replica's stream; process 0 has it and lends it to the others."""
        if self.exchange is None or self._streams is None or not self._apply_is_random:
            return self._stream(0)
        lent = self._streams[0].clone()
        self.exchange.collective.broadcast(lent)
        if self.exchange.collective.rank == 0:
            return self._stream(0)
        return self._own_stream([lent], 0)

    @contextlib.contextmanager
    def _own_stream(self, streams: list[torch.Tensor], replica: int) -> Iterator[None]:
        # torch.cuda's generator is another one than the host's; both modules have these names.
        generators = torch.cuda if self.device.type == "cuda" else torch
        outside = generators.get_rng_state()
        generators.set_rng_state(streams[replica])
        try:
            yield
        finally:
            streams[replica] = generators.get_rng_state()
            generators.set_rng_state(outside)


def assemble(kept: list[list[torch.Tensor]], config: StepConfig) -> list[torch.Tensor]:
    """Joins the outputs of micro-steps; a 0-d output becomes 1-d when there are several.

    Args:
        kept: the outputs of each micro-step that keeps them.
        config: says how they combine.
    """
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
