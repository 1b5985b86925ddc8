"""Compiled programs that come when a test says so, and interpreted ones that run before."""

import torch

from abele import get_target
from abele.capture import Captured
from abele.compilation.build import build
from abele.compilation.executable import Executable, Failure, Later, Running
from abele.compilation.start import Start
from abele.program import Program, Role
from abele.runtime.session import Session
from abele.step.config import StepConfig
from abele.targets import Compiled
from helpers.fakes import Keeping, KeptCode
from helpers.models import Model

ROUNDING = 2.0**-21  # far less than a compiled program may differ by, and another number


class Scripted(Later):
    """Compiled programs of a test.

    Attributes:
        outcome: what has become of them.
        said: what was announced.
        closed: nobody wants them any more.
    """

    def __init__(self, outcome: Executable | Failure | None = None, at: int | None = None):
        self.outcome, self.at = outcome, at
        self.running = Running(start=Start.TIERED, interpreted=True)
        self.said: list[str] = []
        self.announce = self.said.append
        self.closed = False

    def look(self) -> Executable | Failure | None:
        return self.outcome

    def wait(self) -> Executable | Failure:
        assert self.outcome is not None, "a test that waits has to say what comes"
        return self.outcome

    def close(self) -> None:
        self.closed = True


class _RoundedCode(KeptCode):
    """Interprets, then changes what it has written by a factor."""

    def __init__(self, factor: float, only: str):
        super().__init__()
        self._factor, self._only = factor, only

    def compile(self, program: Program) -> Compiled:
        plain = super().compile(program)
        positions = [
            index
            for index, slot in enumerate(program.inputs)
            if slot.mutated and slot.dtype.is_floating_point and self._only in slot.name
        ]

        def run(inputs: list[torch.Tensor]) -> list[torch.Tensor]:
            written = [inputs[position] for position in positions]
            outputs = plain.run(inputs)
            for tensor in written:
                tensor.mul_(self._factor)
            return outputs

        return Compiled(run, plain.payload)


class Rounded(Keeping):
    """Stands for a target whose compiled programs round otherwise.

    Args:
        factor: of everything that programs write.
        only: writes to slots whose name has this in it.
    """

    name = "rounded"

    def __init__(self, factor: float = 1 + ROUNDING, only: str = ""):
        super().__init__()
        self.lowerings = (_RoundedCode(factor, only),)


class Forgetful(KeptCode):
    """Code that takes state of some slots for zero."""

    name = "forgetful"
    trusted = False

    def __init__(self, forgets="", why_not=None):
        super().__init__()
        self._forgets, self._why_not = forgets, why_not

    def why_not(self, program):
        return self._why_not

    def compile(self, program):
        plain = super().compile(program)
        at = [i for i, s in enumerate(program.inputs) if self._forgets and self._forgets in s.name]

        def run(inputs):
            for position in at:
                inputs[position].zero_()
            return plain.run(inputs)

        return Compiled(run, plain.payload)


class Right(Forgetful):
    """Code that computes what the program says."""

    name = "right"


class Machine(Keeping):
    """A target with code that may be wrong, and other code."""

    name = "machine"

    def __init__(self, forgets, *others):
        super().__init__()
        self.lowerings = (Forgetful(forgets), *others, *get_target("reference").lowerings)


def both(
    captured: Captured, config: StepConfig, target: Rounded | None = None
) -> tuple[Executable, Executable]:
    """The same programs interpreted, and as if compiled."""
    interpreted, _ = build(captured.programs, config, target=get_target("reference"))
    compiled, _ = build(captured.programs, config, target=target or Rounded())
    return interpreted, compiled


def micro_batch(session: Session, model: Model) -> dict[str, torch.Tensor]:
    """A batch of a model by the names of the session's inputs."""
    slots = [each for each in session.executable.programs[0].inputs if each.role is Role.INPUT]
    return {slot.name: value for slot, value in zip(slots, model.batch(), strict=True)}
