"""The device's copy of a model, and the programs that change it.

Like ``abele.runtime.session``, for programs that a caller runs one by one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from abele.compile.executable import Executable
from abele.program import Role, Slot
from abele.runtime.device_registry import Attachment


class Device:
    """Runs the programs of one executable on state of its own.

    Args:
        executable: compiled programs.
        params: initial parameters by name, copied.
        buffers: initial buffers by name, copied.
        optimizer_state: initial state by slot, copied.
        hyper: initial values by slot.

    Attributes:
        params: present parameters.
        buffers: present buffers.
        optimizer_state: present state; of trained parameters only.
        hyper: present values, float64 scalars.
    """

    def __init__(
        self,
        executable: Executable,
        params: Mapping[str, torch.Tensor],
        buffers: Mapping[str, torch.Tensor],
        optimizer_state: Mapping[str, torch.Tensor],
        hyper: Mapping[str, float],
    ):
        self.executable = executable
        self.where = executable.target.device()
        used = {
            slot.name
            for program in executable.programs
            for slot in program.inputs
            if slot.role is Role.OPTIMIZER_STATE
        }
        self.params = self._own(params)
        self.buffers = self._own(buffers)
        self.optimizer_state = self._own({n: v for n, v in optimizer_state.items() if n in used})
        self.hyper = {
            name: torch.tensor(value, dtype=torch.float64, device=self.where)
            for name, value in hyper.items()
        }
        self._inputs: dict[str, list[tuple[int, str]]] = {}
        self._arguments = {p.name: self._prepared(p.name, p.inputs) for p in executable.programs}
        self._outputs = {p.name: [s.name for s in p.outputs] for p in executable.programs}
        Attachment(self, executable.target.name, self.where)

    @property
    def programs(self) -> tuple[str, ...]:
        """Names of the programs that can run."""
        return tuple(self._arguments)

    def _own(self, values: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        # contiguous: compiled programs are made for the default layout of each slot.
        return {
            name: value.detach().to(self.where, copy=True).contiguous()
            for name, value in values.items()
        }

    def _prepared(self, program: str, slots: tuple[Slot, ...]) -> list[torch.Tensor]:
        """The argument list of a program, built once; a run only fills in the inputs."""
        stores: dict[Role, Mapping[str, torch.Tensor]] = {
            Role.PARAMETER: self.params,
            Role.BUFFER: self.buffers,
            Role.OPTIMIZER_STATE: self.optimizer_state,
            Role.HYPER: self.hyper,
        }
        self._inputs[program] = [(i, s.name) for i, s in enumerate(slots) if s.role is Role.INPUT]
        absent = torch.empty(0)
        return [absent if s.role is Role.INPUT else stores[s.role][s.name] for s in slots]

    def run(self, program: str, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Runs a program.

        Args:
            program: its name.
            inputs: tensors by slot, at least those that the program has; moved if need be.

        Returns:
            Its outputs by slot, fresh tensors on the device.
        """
        arguments = self._arguments[program].copy()
        for position, name in self._inputs[program]:
            arguments[position] = inputs[name].to(self.where).contiguous()
        outputs = self.executable.compiled[program].run(arguments)
        return dict(zip(self._outputs[program], outputs, strict=True))

    def write(self, store: Mapping[str, torch.Tensor], values: Mapping[str, torch.Tensor]) -> None:
        """Overwrites tensors of one of the stores; names that it does not have are skipped."""
        for name, value in values.items():
            if name in store:
                store[name].copy_(value.detach())
