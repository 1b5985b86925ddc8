"""A session whose programs a caller runs one by one, as the sections of a step.

Like ``Session`` it owns the device's state. What passes from one program to another is the caller's
to keep, who may run a section again, or change gradients in between.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from abele.compile.executable import Executable
from abele.program import Program, Role
from abele.runtime.device_state import DeviceState
from abele.runtime.proving import first_use
from abele.step.config import StepConfig


class SectionSession(DeviceState):
    """Runs the programs of one executable in any order.

    Attributes:
        executable: as given.
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
        """Run a program.

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
        """Select of some values those that a program takes, by slot."""
        return {slot: values[slot] for _, slot in self._inputs[name] if slot in values}
