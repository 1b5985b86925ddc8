"""Describes one training step."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import libcst as cst

from abele.port.analysis.kinds import Thing
from abele.port.analysis.parts import Loop, Statement
from abele.port.analysis.updates import Update
from abele.port.project import Owner
from abele.port.source import Source


@dataclasses.dataclass(frozen=True, eq=False, kw_only=True)
class Step:
    """One training step.

    Attributes:
        source: its file.
        owner: the function, or module, around it.
        loop: around it in that function; None where the function is one step.
        block: the statements among which it is.
        loss: the name of what is differentiated.
        forward: the statements of the block that lead from the model to the loss. Where what is
            differentiated has no name, the last one gives it one and is not in the program.
        place: the statement of the block in whose place the call is put.
        backward: the statement that differentiates.
        zero: statements that forget gradients.
        update: the statement that updates.
        models: that the forward statements call, each with the expression that stands for it.
        helpers: functions of the program by which they do so.
        optimizer: that updates.
        gradients: how it does, and what is done to gradients before.
        inputs: names that the forward statements need from the loop.
        keys: of those of the inputs that are dictionaries, the ones that are read.
        slow: those of the inputs that only change outside of the loop, and may be numbers.
        constants: names that they need from the function, and that are the same in every step.
        outputs: names that they define and others, or the next step, use, without the loss.
        carried: those of the inputs that the step before has computed.
        later: names that are read in the function after the block.
    """

    source: Source
    owner: Owner
    loop: Loop | None
    block: Sequence[Statement]
    loss: str
    forward: tuple[Statement, ...]
    place: Statement
    backward: Statement
    zero: tuple[Statement, ...]
    update: Statement
    models: dict[Thing, cst.BaseExpression]
    helpers: tuple[cst.FunctionDef, ...]
    optimizer: Thing
    gradients: Update
    inputs: tuple[str, ...]
    keys: Mapping[str, tuple[str, ...]]
    slow: tuple[str, ...] = ()
    constants: tuple[str, ...]
    outputs: tuple[str, ...]
    carried: tuple[str, ...]
    later: frozenset[str] = frozenset()

    @property
    def arguments(self) -> str:
        """The inputs as a call of the program has them.

        Numbers that change become tensors. Of a dictionary, only what is read goes in: the rest of
        a batch may be text, such as names of files.
        """
        return ", ".join(self._argument(name) for name in self.inputs)

    def _argument(self, name: str) -> str:
        if name in self.slow:
            return f"torch.as_tensor({name})"
        parts = ", ".join(f"{key}: {name}[{key}]" for key in self.keys.get(name, ()))
        return f"{{{parts}}}" if parts else name
