"""Private members of the original's executor that published programs read."""

from dataclasses import dataclass

import torch

from poptorch._compiled.model import CompiledModel
from poptorch._forward.structure import leaves


@dataclass(frozen=True)
class CompiledInputs:
    """Return the arguments that an executable was compiled for.

    Attributes:
        args: one tensor without data for each input, in the order of the program's inputs, of the
            shape and type of the whole call.
    """

    args: list[torch.Tensor]


def compiled_inputs(compiled: CompiledModel) -> CompiledInputs:
    """Return the inputs of a compiled model."""
    recorded = compiled.inputs.recorded
    structures = [*recorded.positional, *recorded.keywords.values()]
    inputs = [leaf for structure in structures for leaf in leaves(structure)]
    return CompiledInputs(
        [torch.empty(leaf.shape, dtype=leaf.dtype, device="meta") for leaf in inputs]
    )
