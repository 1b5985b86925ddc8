"""A model with its options and arguments, captured to be looked at: nothing is compiled or run."""

import dataclasses
import functools

import torch

from abele.capture import Captured
from abele.step import batching
from abele.step.config import StepConfig
from abele.step.update_rules import UpdateRule
from abele.trace.module_state import ModuleState
from poptorch._compiled import inputs
from poptorch._compiled.forward import Forward
from poptorch._compiled.inputs import Inputs
from poptorch._forward.placement import PlacementTable, placed
from poptorch._values.arguments import Bound
from poptorch.options import Options


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trial:
    """What would be compiled for the arguments of a call.

    Attributes:
        module: the model.
        bound: the arguments of the call.
        config: how the call consumes its batch.
        rule: the optimizer, for training.
        options: of the wrapper.
    """

    module: torch.nn.Module
    bound: Bound
    config: StepConfig
    rule: UpdateRule | None
    options: Options

    @functools.cached_property
    def captured(self) -> Captured:
        """The programs.

        Raises:
            CaptureError: forward cannot be captured.
            BatchError: the rows do not divide.
        """
        forward = Forward(self.module, self._inputs.recorded, self.config, self.rule, self.options)
        examples = inputs.micro_batch(self._rows, self.config)
        return forward.trace(examples, origins=True).captured

    @functools.cached_property
    def placement(self) -> PlacementTable:
        """Which block each operator of forward belongs to."""
        return placed(self.captured.programs, self.options, training=self.config.training)

    @functools.cached_property
    def _inputs(self) -> Inputs:
        return Inputs(self.bound, self.module)

    @functools.cached_property
    def _rows(self) -> list[torch.Tensor]:
        return self._inputs.on_device(self.bound)

    @property
    def batch_bytes(self) -> int:
        """Bytes of the inputs of one call."""
        return sum(each.nbytes for each in self._rows)

    @property
    def module_bytes(self) -> int:
        """Bytes of the module's own parameters and buffers, each memory once."""
        state = ModuleState.of(self.module)
        tensors = (*state.params.values(), *state.buffers.values())
        storages = {each.untyped_storage().data_ptr(): each.untyped_storage() for each in tensors}
        return sum(each.nbytes() for each in storages.values())

    @property
    def micro_batch_rows(self) -> int:
        """Rows of a micro-batch; 1 if no input has rows."""
        rows = [each.shape[0] for each in self._rows if each.dim()]
        return batching.micro_batch_size(rows[0], self.config) if rows else 1
