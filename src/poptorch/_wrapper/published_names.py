"""Members of an executor that the original keeps private and published programs read anyway."""

from dataclasses import dataclass

import torch

from poptorch._compiled.model import CompiledModel
from poptorch._values.structure import leaves


@dataclass(frozen=True)
class CompiledInputs:
    """What an executable was compiled for.

    Attributes:
        args: one tensor without data for each input, in the order of the program's inputs, of the
            shape and type of the whole call.
    """

    args: list[torch.Tensor]


class PublishedNames:
    """The members; mixed into ``PoplarExecutor``."""

    _compiled: CompiledModel | None

    @property
    def _executable(self) -> CompiledModel | None:
        """What was compiled; None before compiling and after ``destroy``.

        Training loops ask ``if model._executable`` before they attach to the device.
        """
        return self._compiled

    @property
    def _executable_inputs(self) -> CompiledInputs | None:
        """What the executable was compiled for; None before compiling and after ``destroy``.

        Pipelines compare the batch size with the next call's, and destroy the executable if it
        differs.
        """
        if self._compiled is None:
            return None
        recorded = self._compiled.recorded
        structures = [*recorded.positional, *recorded.keywords.values()]
        found = [leaf for structure in structures for leaf in leaves(structure)]
        return CompiledInputs(
            [torch.empty(leaf.shape, dtype=leaf.dtype, device="meta") for leaf in found]
        )
