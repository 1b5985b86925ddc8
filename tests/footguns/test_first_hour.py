"""The mistakes of a first hour with PopTorch, and what the user is told, in the order they happen.

The rarer ones are in the other files; ``test_error_table.py`` has every documented one.
"""

import pytest
import torch

import poptorch
from helpers.wrapping import inference, options, scorer, trainer

X = torch.ones(4, 3)


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


def _branches(x):
    return x + 1 if x.sum() > 0 else x


def _reads(x):
    return x * x.sum().item()


@pytest.mark.parametrize(
    ("forward", "code"), [(_branches, "if x.sum"), (_reads, r"\.item\(\)")], ids=["if", "item"]
)
def test_reading_a_value_names_the_line(forward, code):
    line = forward.__code__.co_firstlineno + 1
    with pytest.raises(poptorch.Error, match=rf"test_first_hour\.py:{line}: .*{code}"):
        inference(forward)(X)
