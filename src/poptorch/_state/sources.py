"""Training wrappers that provide an inference wrapper's weights."""

import torch

from poptorch._state import module_weights


class Sources:
    """The trainings of a model, of models it is a part of, and of its own parts.

    Args:
        module: the model whose weights are to be kept current.
    """

    def __init__(self, module: torch.nn.Module):
        self._module = module
        self._generation = -1
        self._seen: dict[module_weights.Shared, int] = {}

    def fetch(self) -> bool:
        """Brings weights to the host that were trained since the last time; whether there were."""
        if self._generation != module_weights.generation():
            self._find()
        newer = False
        for shared, version in self._seen.items():
            if shared.version != version:
                newer = True
                trainer = shared.trainer
                if trainer is not None:
                    trainer.copyWeightsToHostIfNeeded()
                self._seen[shared] = shared.version
        return newer

    def _find(self) -> None:
        self._generation = module_weights.generation()
        for child in self._module.modules():
            for shared in module_weights.trainings_of(child):
                # What is found after it has trained counts as new.
                self._seen.setdefault(shared, 0)
