"""The mistakes of a first hour with PopTorch, and what the user is told, in the order they happen.

The rarer ones are in the other files; ``test_error_table.py`` has every documented one.
"""

import pytest
import torch

import poptorch
from helpers.wrapping import options, scorer, trainer


def test_only_modules_can_be_wrapped():
    with pytest.raises(poptorch.Error, match=r"'model' is of type function.*torch.nn.Module"):
        poptorch.inferenceModel(lambda x: x)


def test_a_module_is_wrapped_for_training_once():
    model = scorer()
    wrapped = trainer(model)
    with pytest.raises(RuntimeError, match=r"already been wrapped.*model\.destroy\(\)"):
        trainer(model)
    with pytest.raises(RuntimeError, match="already been wrapped"):
        poptorch.trainingModel(wrapped, options())
    model.destroy()
    trainer(model)


def test_an_optimizer_of_another_kind_is_refused():
    model = scorer()
    optimizer = torch.optim.Adafactor(model.parameters())
    with pytest.raises(AssertionError, match="Unsupported optimizer type Adafactor"):
        poptorch.trainingModel(model, options(), optimizer)
    trainer(model)  # nothing was wrapped by the failure
