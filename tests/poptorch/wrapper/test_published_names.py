"""Private names of the original that published trainers, pipelines and strategies read."""

import copy
import inspect
import subprocess

import pytest
import torch

import poptorch
from helpers.warm_python import python
from helpers.wrapping import Calls, options, rows, scorer, sgd, trainer
from poptorch import PoplarExecutor
from poptorch._impl import rewrapModelIfNecessary, unwrapModelIfNecessary
from poptorch._poplar_executor import PoplarExecutor as ByPath


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


def test_the_model_and_options_of_a_wrapper_are_found():
    model = scorer()
    wrapped = poptorch.inferenceModel(model, options(deviceIterations=2))
    assert wrapped._user_model is model
    assert type(wrapped._user_model).__name__ == "Scorer"
    assert wrapped._options is wrapped.options
    assert wrapped._options.toDict()["device_iterations"] == 2


def test_compiler_settings_are_reached_by_their_stored_name():
    made = poptorch.Options()
    made._popart.set("outlineThreshold", 10.0)
    made._popart.setPatterns({"OpToIdentity": True})
    assert made._popart is made._Popart
    assert made._Popart.options["outlineThreshold"] == 10.0
    assert copy.deepcopy(made)._popart is not made._popart


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


def test_submodules_are_there_after_importing_the_package_alone():
    code = "import poptorch; print(poptorch.testing.allclose, poptorch._impl.isDispatchTracing())"
    done = subprocess.run([python(), "-c", code], capture_output=True, text=True, check=True)
    assert "False" in done.stdout


def test_helpers_of_tests_ask_whether_forward_is_being_captured():
    seen = []

    def forward(self, x):
        seen.append(poptorch._impl.isDispatchTracing())
        seen.append(poptorch.poptorch_core.isCompilingWithDispatcher())
        return x * self.weight

    poptorch.inferenceModel(Calls(forward), options())(torch.ones(2))
    assert seen == [True, True]
    assert not poptorch._impl.isDispatchTracing()
    assert not poptorch.poptorch_core.isCompilingWithDispatcher()


def test_locations_can_be_read_by_subscript():
    settings = poptorch.TensorLocationSettings().minElementsForOffChip(4)
    assert settings["minElementsForOffChip"] == 4
    assert "minElementsForOffChip" in settings
    assert "set" not in settings
    with pytest.raises(KeyError, match="has no 'set': minElementsForOffChip"):
        settings["set"]


NAMESPACES = ("Training", "Precision", "Distributed", "TensorLocations", "Jit", "_Popart")


@pytest.mark.parametrize("name", NAMESPACES)
def test_namespaces_of_options_can_be_probed(name):
    namespace = getattr(poptorch.Options(), name)
    assert hasattr(namespace, "__class__")
    assert namespace.__class__ is type(namespace)
    assert not hasattr(namespace, "no_such_option")
    assert getattr(namespace, "__no_such_name__", None) is None
    assert dict(inspect.getmembers(namespace))["__class__"] is type(namespace)
    assert type(copy.copy(namespace)) is type(namespace)


def test_parameters_are_parameters_inside_and_outside_of_forward():
    kinds = []

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_parameter("a0", torch.nn.Parameter(torch.ones(3)))
            self.register_buffer("b0", torch.ones(3))

        def forward(self, x):
            overlap = poptorch.OverlapMode.OverlapAccumulationLoop
            x = poptorch.set_overlap_for_input(x, overlap)
            loss = (x * self.get_parameter("a0") + self.get_buffer("b0")).square().sum()
            kinds.append([isinstance(t, torch.nn.Parameter) for t in (self.a0, self.b0, x)])
            return poptorch.set_overlap_for_output(poptorch.identity_loss(loss, "none"), overlap)

    made = options(outputMode=poptorch.OutputMode.All)
    made.TensorLocations.numIOTiles(32)
    made.setExecutionStrategy(poptorch.ShardedExecution())
    model = Net()
    wrapped = poptorch.trainingModel(model, made, sgd(model))
    assert torch.equal(wrapped.a0, torch.ones(3))
    wrapped(torch.ones(1, 3))
    assert kinds == [[True, False, False]]
    assert torch.equal(wrapped.a0, torch.full((3,), 0.6))
    assert torch.equal(wrapped.get_parameter("a0"), wrapped.a0)


def test_block_objects_tell_their_name():
    assert poptorch.Block("B1")._user_id == "B1"
    layer = poptorch.BeginBlock(lambda x: x, "B2", ipu_id=3)
    assert (layer._user_id, layer._ipu_id) == ("B2", 3)


def test_all_attributes_of_an_optimizer_can_be_made_variable():
    model = scorer()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.0)
    attributes = optimizer.variable_attrs
    assert attributes.isConstant("eps")
    attributes._variable_attributes = copy.deepcopy(attributes._allowed_attributes)
    assert not any(map(attributes.isConstant, attributes._allowed_attributes))
    wrapped = trainer(model, optimizer)
    wrapped(*rows(4))
    optimizer.param_groups[0]["eps"] = 1e-3
    wrapped.setOptimizer(optimizer)


@pytest.mark.parametrize(
    "strategy", ["Fork", "SharingStrategy.Fork", "poptorch.SharingStrategy.Fork"]
)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_enumerations_may_be_given_by_name(strategy):
    loader = poptorch.DataLoader(
        options(),
        list(torch.arange(4)),
        2,
        mode="Async",
        async_options={"sharing_strategy": strategy},
    )
    assert [batch.tolist() for batch in loader] == [[0, 1], [2, 3]]
    loader.terminate()


def test_names_of_no_member_are_refused():
    with pytest.raises(
        ValueError, match="'Forc' is not a valid SharingStrategy; its members are SharedM"
    ):
        poptorch.AsynchronousDataAccessor([torch.ones(1)], sharing_strategy="Forc")
    with pytest.raises(ValueError, match="'Asynchronous' is not a valid DataLoaderMode"):
        poptorch.DataLoader(options(), list(torch.arange(4)), mode="Asynchronous")
