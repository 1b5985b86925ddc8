"""Allocates the weights of models created under ``lazy_param``."""

import torch

from sambaflow.errors import UsageError


def materialize(model: torch.nn.Module) -> torch.nn.Module:
    """Allocate and initialize all parameters and buffers without memory, in place.

    Each module that holds some initialises them by its ``reset_parameters``. Call it before
    ``from_torch_model_`` and before optimizers are made.

    Raises:
        UsageError: a module that cannot initialise what it holds; names it.
    """
    for path, module in model.named_modules():
        tensors = [
            *module.named_parameters(recurse=False),
            *module.named_buffers(recurse=False),
        ]
        if not any(value.device.type == "meta" for _, value in tensors):
            continue
        reset = getattr(module, "reset_parameters", None)
        if not callable(reset):
            raise UsageError(
                f"Module {path or 'itself'} ({type(module).__name__}) has tensors without memory "
                "and no reset_parameters to initialise them. Give it one, or make the model "
                "without lazy_param."
            )
        module.to_empty(device="cpu", recurse=False)
        reset()
    return model
