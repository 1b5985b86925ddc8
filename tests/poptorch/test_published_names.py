"""Private names of the original that published trainers, pipelines and strategies read."""

import torch

import poptorch
from poptorch import PoplarExecutor
from poptorch._impl import rewrapModelIfNecessary, unwrapModelIfNecessary
from poptorch._poplar_executor import PoplarExecutor as ByPath
from wrapping import Calls, options, rows, scorer, sgd, trainer


def test_the_executor_is_found_by_its_path():
    assert ByPath is PoplarExecutor


def test_executable_is_none_until_compiled():
    wrapped = trainer(scorer())
    assert wrapped._executable is None
    assert wrapped._executable_inputs is None
    wrapped(*rows(4))
    assert wrapped._executable
    wrapped.destroy()
    assert wrapped._executable is None


def test_compiled_inputs_tell_the_rows_of_a_call():
    wrapped = trainer(scorer(), deviceIterations=2)
    wrapped(*rows(6))
    assert [tuple(tensor.shape) for tensor in wrapped._executable_inputs.args] == [(6, 4), (6, 3)]
    nested = Calls(lambda self, x, flag: x["a"] * self.weight)
    model = poptorch.inferenceModel(nested, options())
    model({"a": torch.ones(2), "b": torch.ones(3)}, True)
    assert [tuple(tensor.shape) for tensor in model._executable_inputs.args] == [(2,), (3,)]


def test_a_module_can_be_plain_for_a_time():
    model = scorer()
    wrapped = trainer(model, sgd(model))
    wrapped(*rows(4))
    unwrapModelIfNecessary(model)
    assert type(model).__name__ == "Scorer"
    then = model.fc.weight.detach().clone()
    wrapped(*rows(4))
    assert torch.equal(model.fc.weight, then)
    rewrapModelIfNecessary(model)
    assert type(model).__name__ == "PoptorchScorer"
    assert not torch.equal(model.fc.weight, then)


def test_unwrapping_and_wrapping_again_need_not_apply():
    model = scorer()
    unwrapModelIfNecessary(model)
    rewrapModelIfNecessary(model)
    assert type(model).__name__ == "Scorer"
    wrapped = trainer(model)
    rewrapModelIfNecessary(model)
    wrapped(*rows(4))
    unwrapModelIfNecessary(model)
    newer = trainer(model)
    rewrapModelIfNecessary(model)
    assert newer.model is model
    newer(*rows(4))
