"""A model's parameters, buffers, optimizer state and random streams on the device."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Mapping, Sequence

import torch

from abele.collectives.torch_group import Collective
from abele.program import Program, Role, Slot
from abele.runtime.exchange import Exchange
from abele.step import reduction, replica_groups
from abele.step.config import StepConfig


class DeviceState:
    """Parameters, buffers, optimizer state, accumulators, counters and random streams.

    Args:
        programs: their slots define the state.
        device: where it lives.
        config: the numbers of replicas and groups, and the seed.
        params: initial parameters by name; copied, or adopted. Those of
            ``config.replica_groups`` have a leading dimension for groups, also their state.
        buffers: initial buffers by name; copied once per replica, or adopted.
        optimizer_state: initial state by slot name; not copied if it is on the device already.
        hyper: initial values of variable hyper-parameters by slot name.
        collective: the processes that share each update, ``config.processes`` of them. Weights and
            optimizer state become those of process 0 where they differ, with a warning.

    Attributes:
        device: where it lives.
        config: as given.
        params: by name; of groups, one per group.
        buffers: by name, for each replica.
        optimizer_state: by slot name, of trained parameters only.
        hyper: by slot name, float64 scalars.
        accumulators: sums of gradients by slot name.
        counters: counters that programs update, by slot name.
        exchange: the gradient exchange with other processes; None for one process.
        received: names of the parameters that came from process 0.
        uses_random: whether any program draws random numbers.
        seed: of the random streams.
    """

    def __init__(
        self,
        programs: Sequence[Program],
        device: torch.device,
        config: StepConfig,
        params: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        optimizer_state: Mapping[str, torch.Tensor],
        hyper: Mapping[str, float],
        collective: Collective | None,
    ):
        self.device, self.config = device, config
        self._groups = config.replica_groups
        copied = replica_groups.split(params, self._groups)
        copies = not config.adopts
        self.params = self._moved(copied, copy=copies)
        self.buffers = [self._moved(buffers, copy=copies) for _ in range(config.replicas)]
        used = self._slots(programs, Role.OPTIMIZER_STATE)
        state = replica_groups.split_state(optimizer_state, self._groups)
        self._updated = {
            name
            for program in programs
            for name, slot in self._slots([program], Role.OPTIMIZER_STATE).items()
            if slot.mutated
        }
        # Parameters that are frozen have no state in the program, so none is kept.
        # A copy would take the memory of all state once more.
        self.optimizer_state = self._moved({n: value for n, value in state.items() if n in used})
        self.hyper = {
            name: torch.tensor(value, dtype=torch.float64, device=device)
            for name, value in hyper.items()
        }
        sums = self._slots(programs, Role.ACCUMULATOR)
        self.exchange: Exchange | None = None
        if collective is None:
            self.accumulators = self._zeros(sums)
        else:
            self.exchange = Exchange(collective, config, sums, device)
            self.accumulators = self.exchange.accumulators
        self.counters = self._zeros(self._slots(programs, Role.COUNTER))
        self.received = self._same_start()
        self.seed = config.seed
        self.uses_random = any(program.uses_random for program in programs)
        self._streams = self._first_streams()

    def write_params(self, params: Mapping[str, torch.Tensor]) -> None:
        """Overwrite parameters by name; missing names keep their values.

        With other processes, all have to do the same before the next update, which checks it.
        """
        if self.exchange is not None:
            self.exchange.note_written("weights that were written", params, self.params)
        for name, value in replica_groups.split(params, self._groups).items():
            self.params[name].copy_(value)

    def read_param(self, name: str, *, per_replica: bool = False) -> torch.Tensor:
        """Return a parameter's present value.

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
        """Return all parameters by name, with a leading dimension where there are groups."""
        return replica_groups.joined_params(self.params, self._groups)

    def write_buffers(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """Overwrite a model's buffers in every replica."""
        for replica in self.buffers:
            for name, value in buffers.items():
                replica[name].copy_(value)

    def write_optimizer_state(self, state: Mapping[str, torch.Tensor]) -> None:
        """Overwrite optimizer state by slot name; with groups it has a leading dimension."""
        if self.exchange is not None:
            self.exchange.note_written("optimizer state", state, self.optimizer_state)
        for name, value in replica_groups.split_state(state, self._groups).items():
            self.optimizer_state[name].copy_(value)

    def read_optimizer_state(self) -> dict[str, torch.Tensor]:
        """Return optimizer state by slot name, with a leading dimension where there are groups."""
        return replica_groups.joined_state(self.optimizer_state, self._groups)

    def read_updated_state(self) -> dict[str, torch.Tensor]:
        """Return optimizer state of parameters that get gradients, by slot name.

        Torch's optimizers keep nothing for the others. Those of ``config.replica_groups`` are left
        out, which have a value for each group.
        """
        return {n: value for n, value in self.optimizer_state.items() if n in self._updated}

    def read_accumulators(self) -> dict[str, torch.Tensor]:
        """Return sums of gradients by parameter, like ``read_params``; zero between calls."""
        skip = len(replica_groups.ACCUMULATOR)
        sums = {
            # Programs leave the last update's there if the next one begins by replacing it.
            name[skip:]: value if self.config.adds_here else torch.zeros_like(value)
            for name, value in self.accumulators.items()
        }
        return replica_groups.joined_params(sums, self._groups)

    def write_accumulators(self, sums: Mapping[str, torch.Tensor]) -> None:
        """Overwrite sums of gradients by parameter; with groups they have a leading dimension."""
        for name, value in replica_groups.split(sums, self._groups).items():
            self.accumulators[f"{replica_groups.ACCUMULATOR}{name}"].copy_(value)

    def set_hyper(self, name: str, value: float) -> None:
        """Change a variable hyper-parameter from the next update on."""
        if self.exchange is not None:
            self.exchange.note(name, repr(float(value)))
        self.hyper[name].fill_(value)

    def write_counters(self, counters: Mapping[str, torch.Tensor]) -> None:
        """Overwrite counters of the program, such as those of an automatic loss scale."""
        if self.exchange is not None:
            self.exchange.note_written("counters that were written", counters, self.counters)
        for name, value in counters.items():
            self.counters[name].copy_(value)
        if self.exchange is not None:
            # What was written is the sum over all processes, and not to be added up again.
            self.exchange.after_update(self.counters)

    @property
    def random_state(self) -> list[torch.Tensor] | None:
        """The generator state of each replica, or None if torch's own stream is shared."""
        return None if self._streams is None else [state.clone() for state in self._streams]

    @random_state.setter
    def random_state(self, states: Sequence[torch.Tensor]) -> None:
        self._streams = [state.clone() for state in states]

    def _moved(
        self, values: Mapping[str, torch.Tensor], *, copy: bool = False
    ) -> dict[str, torch.Tensor]:
        # contiguous: compiled programs are made for the default layout of each slot. Tensors of
        # inference mode have no versions, by which programs that pack weights see writes.
        with torch.inference_mode(False):
            return {
                name: value.detach().to(self.device, copy=copy).contiguous()
                for name, value in values.items()
            }

    def _slots(self, programs: Sequence[Program], role: Role) -> dict[str, Slot]:
        return {
            name: slot
            for program in programs
            for slot in program.inputs
            if slot.role is role
            for name in replica_groups.stored_names(slot, self._groups)
        }

    def _zeros(self, slots: Mapping[str, Slot]) -> dict[str, torch.Tensor]:
        return {
            name: torch.zeros(slot.shape, dtype=slot.dtype, device=self.device)
            for name, slot in slots.items()
        }

    def _same_start(self) -> list[str]:
        """Overwrite parameters and optimizer state by process 0's; return changed parameters."""
        if self.exchange is None:
            return []
        state = {**self.params, **{f"state of {n}": v for n, v in self.optimizer_state.items()}}
        different = self.exchange.same_start(state)
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

    # -- for whoever runs programs ----------------------------------------------------------

    def arguments(self, program: Program, replica: int) -> list[torch.Tensor]:
        """Return the argument list of a program in a replica; calls replace the inputs."""
        stores: dict[Role, Mapping[str, torch.Tensor]] = {
            Role.PARAMETER: self.params,
            Role.BUFFER: self.buffers[replica],
            Role.OPTIMIZER_STATE: self.optimizer_state,
            Role.ACCUMULATOR: self.accumulators,
            Role.HYPER: self.hyper,
            Role.COUNTER: self.counters,
        }
        absent = torch.empty(0)
        return [
            absent
            if slot.role is Role.INPUT
            else stores[slot.role][replica_groups.replica_name(slot, self._groups, replica)]
            for slot in program.inputs
        ]

    def written(self) -> list[torch.Tensor]:
        """Return all state tensors that a step may write."""
        stores = (self.params, *self.buffers, self.optimizer_state, self.hyper)
        stores += (self.accumulators, self.counters)
        return [tensor for store in stores for tensor in store.values()]

    def drop_unfinished_sums(self) -> None:
        """Zero the gradient accumulators, so that the next call starts anew."""
        counted = self.counters.get(reduction.COUNTED)
        for total in (*self.accumulators.values(), *([] if counted is None else [counted])):
            total.zero_()

    def stream(self, replica: int) -> contextlib.AbstractContextManager[None]:
        """Draw from a replica's random stream in a ``with`` block, if there is a seed."""
        if not self.uses_random or self._streams is None:
            return contextlib.nullcontext()
        return self._drawing_from(self._streams, replica)

    def shared_stream(self) -> contextlib.AbstractContextManager[None]:
        """Draw from the first replica's stream of process 0 in a ``with`` block."""
        if self.exchange is None or self._streams is None:
            return self.stream(0)
        lent = self._streams[0].clone()
        self.exchange.collective.broadcast(lent)
        if self.exchange.collective.rank == 0:
            return self.stream(0)
        return self._drawing_from([lent], 0)

    @contextlib.contextmanager
    def _drawing_from(self, streams: list[torch.Tensor], replica: int) -> Generator[None]:
        # torch.cuda's generator is another one than the host's; both modules have these names.
        generators = torch.cuda if self.device.type == "cuda" else torch
        outside = generators.get_rng_state()
        generators.set_rng_state(streams[replica])
        try:
            yield
        finally:
            streams[replica] = generators.get_rng_state()
            generators.set_rng_state(outside)
