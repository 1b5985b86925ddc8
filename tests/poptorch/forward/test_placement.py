"""What follows from a placement: how deep a pipeline is, how many devices, and a table."""

import pytest
import torch

import poptorch
from helpers.wrapping import Calls, options, rows, scorer, sgd, weights
from poptorch._wrapper.process import count_ipus

HALF = ("POPTORCH_IPU_MODEL", "POPTORCH_SMALL_IPU_MODEL")


class Chain(torch.nn.Module):
    """A layer on each of the devices given, then a loss."""

    def __init__(self, ipus=(0, 1, 2, 3), annotate=True):
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(4, 4) for _ in ipus)
        for index, (layer, ipu) in enumerate(zip(self.layers, ipus, strict=True)):
            if annotate:
                poptorch.BeginBlock(layer, f"layer{index}", ipu_id=ipu)

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return poptorch.identity_loss(x.square(), "mean")


def trained(model, accumulation, **settings):
    made = options(gradientAccumulation=accumulation, **settings)
    wrapped = poptorch.trainingModel(model, made, sgd(model))
    for seed in range(3):
        wrapped(rows(accumulation, seed)[0])
    return wrapped


def inferred(model, iterations, **settings):
    wrapped = poptorch.inferenceModel(model, options(deviceIterations=iterations, **settings))
    wrapped(torch.ones(iterations, 4))
    return wrapped


# --- depth of pipelines


def test_training_fills_the_pipeline_forwards_and_backwards():
    with pytest.raises(
        poptorch.Error,
        match=r"poptorch\.Options\(\)\.Training\.gradientAccumulation must be greater than or "
        r"equal to the number of pipeline stages \(7\) when using poptorch\.PipelinedExecution, "
        r"and it is 6\. .* 4 pipeline stages has an additional 3 stages when training",
    ):
        trained(Chain(), 6)
    assert trained(Chain(), 7).placement.stages == 4


def test_inference_fills_the_pipeline_once():
    with pytest.raises(
        poptorch.Error,
        match=r"deviceIterations must be greater than or equal to the number of pipeline stages "
        r"\(4\).* it is 3\.",
    ):
        inferred(Chain(), 3)
    assert inferred(Chain(), 4).placement.stages == 4


@pytest.mark.parametrize(
    "strategy",
    [poptorch.ShardedExecution(), poptorch.SerialPhasedExecution(*(f"layer{i}" for i in range(4)))],
)
def test_only_pipelines_have_a_depth(strategy):
    assert trained(Chain(), 1, setExecutionStrategy=strategy).placement.stages == 4


def test_stages_are_counted_by_changes_of_the_device():
    assert trained(Chain((0, 0, 0)), 1).placement.stages == 1
    assert inferred(Chain((0, 1, 0, 1)), 4).placement.stages == 4
    assert inferred(Chain((1, 1)), 1).placement.stages == 1


def test_a_pipeline_trains_like_plain_accumulation(monkeypatch):
    pipelined, plain = Chain(), Chain(annotate=False)
    hashes = {trained(model, 8).executable_hash for model in (pipelined, plain)}
    assert torch.equal(weights(pipelined), weights(plain))
    # Its stages are programs of their own.
    assert len(hashes) == 2
    # Run as one, annotations are no part of the program, and one cached executable serves both.
    monkeypatch.setenv("ABELE_PIPELINE", "sequential")
    assert trained(Chain(), 8).executable_hash in hashes


def test_a_failed_check_leaves_the_wrapper_uncompiled():
    wrapped = poptorch.inferenceModel(Chain(), options(deviceIterations=2))
    with pytest.raises(poptorch.Error, match="number of pipeline stages"):
        wrapped.compile(torch.ones(2, 4))
    assert not wrapped.isCompiled()
    assert wrapped.placement is None


# --- the table


def test_the_table_counts_operators_and_parameters():
    wrapped = trained(Chain(), 7)
    output = wrapped.placement.rows
    assert [row.placement.ipu for row in output] == [0, 1, 2, 3]
    assert [row.parameter_bytes for row in output] == [80] * 4
    # A transposed weight, a product and tanh; the last block also squares and averages.
    assert [row.operators for row in output] == [3, 3, 3, 5]
    lines = str(wrapped.placement).splitlines()
    assert lines[0].split() == ["block", "stage", "phase", "ipu", "operators", "parameter", "bytes"]
    assert lines[2].split() == ["layer1", "1", "0", "1", "3", "80"]
    assert lines[-1] == "4 stages, 4 IPUs"


def test_shared_parameters_count_where_they_are_used_first():
    model = Chain((0, 1))
    model.layers[1].weight = model.layers[0].weight
    assert [row.parameter_bytes for row in trained(model, 3).placement.rows] == [80, 16]


def test_a_model_without_blocks_is_one_stage():
    wrapped = poptorch.trainingModel(model := scorer(), options(), sgd(model))
    wrapped(*rows(2))
    (row,) = wrapped.placement.rows
    assert row.placement == poptorch.options.execution.Placement("", 0, 0, 0)
    assert str(wrapped.placement).splitlines()[1].startswith("(no block) ")


def test_a_model_without_operators_takes_one_device():
    wrapped = poptorch.inferenceModel(Calls(lambda self, x: x), options())
    assert torch.equal(wrapped(torch.ones(2)), torch.ones(2))
    assert (wrapped.placement.stages, wrapped.placement.ipus) == (1, 1)


# --- counting devices


def test_counts_are_powers_of_two_or_rounded(caplog):
    assert [count_ipus(n, options()) for n in (1, 2, 64)] == [1, 2, 64]
    with pytest.raises(poptorch.Error, match=r"need 3 IPUs.*autoRoundNumIPUs\(True\) to take 4"):
        count_ipus(3, options())
    assert count_ipus(5, options(autoRoundNumIPUs=True)) == 8
    assert caplog.messages == ["Number of IPUs rounded up from 5 to 8."]


@pytest.mark.parametrize("variable", [None, *HALF])
def test_the_simulator_takes_any_number(variable, monkeypatch):
    made = options()
    if variable is None:
        made.useIpuModel(True)
    else:
        monkeypatch.setenv(variable, "1")
    assert count_ipus(3, made) == 3
    with pytest.raises(poptorch.Error, match="autoRoundNumIPUs"):
        count_ipus(3, made.clone().useIpuModel(False))


def test_the_highest_device_and_the_replicas_count():
    assert inferred(Chain((0, 3)), 2).placement.ipus == 4
    wrapped = poptorch.inferenceModel(
        Chain((0, 1)), options(deviceIterations=2, replicationFactor=4)
    )
    wrapped.compile(torch.ones(8, 4))
    assert wrapped.placement.ipus == 8


def test_hardware_is_what_runs_wrapped_models(monkeypatch):
    answers = {n: poptorch.ipuHardwareIsAvailable(n) for n in (0, 1, 2, 3, 64, 128)}
    assert answers == {0: False, 1: True, 2: True, 3: False, 64: True, 128: False}
    assert poptorch.ipuHardwareVersion() == 2
    for name in HALF:
        monkeypatch.setenv(name, "1")
        assert not poptorch.ipuHardwareIsAvailable()
        with pytest.raises(AssertionError, match="simulator is chosen"):
            poptorch.ipuHardwareVersion()
        monkeypatch.setenv(name, "0")
        assert poptorch.ipuHardwareIsAvailable()


def test_scripted_models_are_refused():
    with pytest.raises(poptorch.Error, match="TorchScript module"):
        poptorch.inferenceModel(torch.jit.ScriptModule())
