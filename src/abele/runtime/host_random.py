"""Saving and restoring of the host's random generators: torch, numpy and Python.

Only the host's; a session's own streams are ``Session.random_state``. The state is made of tensors,
numbers and None, so that it can be kept in a file that is read without unpickling.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


def read(generator: torch.Generator | None = None) -> dict[str, Any]:
    """Return the state of all host random generators, without pickled objects."""
    numpys: Any = np.random.get_state(legacy=False)
    version, words, gauss = random.getstate()
    return {
        "torch": torch.get_rng_state(),
        "numpy": _tensor(numpys["state"]["key"].astype(np.int64)),
        "numpy_rest": (int(numpys["state"]["pos"]), numpys["has_gauss"], float(numpys["gauss"])),
        "python": _tensor(np.array(words, np.int64)),
        "python_rest": (version, gauss),
        "own": None if generator is None else generator.get_state(),
    }


def write(state: Mapping[str, Any], generator: torch.Generator | None = None) -> None:
    """Restore the host random generators from the state that ``read`` returned."""
    torch.set_rng_state(state["torch"])
    position, has_gauss, gauss = state["numpy_rest"]
    key = state["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", key, position, has_gauss, gauss))
    version, next_gauss = state["python_rest"]
    random.setstate((version, tuple(state["python"].tolist()), next_gauss))
    if generator is not None and state["own"] is not None:
        generator.set_state(state["own"])


def _tensor(numbers: np.ndarray[Any, np.dtype[np.int64]]) -> torch.Tensor:
    untyped: Any = torch
    return untyped.from_numpy(numbers)  # faster than torch.tensor
