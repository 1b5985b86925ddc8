"""How published programs combine the interface.

Idioms that have their own test elsewhere (loaders, popart numbers, exported files) are not here.
"""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.wrapping import options, plain_steps, rows, scorer, sgd, trainer, weights
from poptorch import AutoStage, OutputMode


def pairs(count, seed=1):
    return torch.utils.data.TensorDataset(*rows(count, seed))


class Layers(torch.nn.Module):
    """Two encoder layers and a head; the loss is computed in float32."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])
        self.head = torch.nn.Linear(4, 3)

    def forward(self, x, target=None):
        for layer in self.layers:
            x = F.relu(layer(x))
        scores = self.head(x).float()
        if target is None:
            return scores
        loss = F.mse_loss(scores, target.float(), reduction="none")
        return poptorch.identity_loss(loss, reduction="mean"), scores


def layered():
    torch.manual_seed(0)
    return Layers()


def test_options_loader_wrapper_loop():
    opts = options(deviceIterations=2, gradientAccumulation=2, replicationFactor=2)
    loader = poptorch.DataLoader(opts, pairs(32), batch_size=2)
    model = scorer()
    before = weights(model)
    wrapped = poptorch.trainingModel(model, opts, optimizer=sgd(model))
    losses = [wrapped(x, target)[0].mean().item() for _ in range(3) for x, target in loader]
    assert len(losses) == 3 * len(loader) == 6
    assert sum(losses[-2:]) < sum(losses[:2])
    assert not torch.equal(weights(model), before)


def test_training_and_inference_of_one_module_in_turn():
    model = layered()
    x, target = rows(4)
    model.train()
    training = poptorch.trainingModel(model, options(), sgd(model))
    inference = poptorch.inferenceModel(model, options())
    for _ in range(2):
        model.train()
        if training.isCompiled():
            training.attachToDevice()
        training(x, target)
        training.detachFromDevice()
        model.eval()
        scores = inference(x)
        torch.testing.assert_close(scores, model(x).detach(), rtol=0, atol=1e-6)
        inference.detachFromDevice()


def test_options_of_inference_come_from_those_of_training():
    opts = options(gradientAccumulation=4, deviceIterations=2, outputMode=OutputMode.Final)
    model = layered()
    poptorch.trainingModel(model, opts, sgd(model))
    for_inference = copy.deepcopy(opts)  # of frozen options; the copy is not
    for_inference.Training.gradientAccumulation(1)
    for_inference.deviceIterations(4).outputMode(OutputMode.All)
    assert poptorch.inferenceModel(model, for_inference)(rows(8)[0]).shape == (8, 3)
    assert opts.Training.gradient_accumulation == 4


def test_one_batch_compiles_before_the_first_epoch():
    opts = options(deviceIterations=2)
    loader = poptorch.DataLoader(opts, pairs(8), batch_size=2)
    model = scorer()
    wrapped = poptorch.trainingModel(model, opts, sgd(model))
    before = weights(model)
    wrapped.compile(*next(iter(loader)))
    assert torch.equal(weights(model), before)
    assert sum(1 for batch in loader if wrapped(*batch)) == 2


def test_three_groups_of_which_one_is_no_lamb():
    model = layered()
    named = list(model.named_parameters())
    biases = [p for name, p in named if "bias" in name]
    others = [p for name, p in named if "bias" not in name]
    groups = [
        {"params": biases, "weight_decay": 0, "max_weight_norm": 0},
        {"params": others[:1], "weight_decay": 0},
        {"params": others[1:], "weight_decay": 0.01},
    ]
    optimizer = poptorch.optim.LAMB(groups, lr=0.01, max_weight_norm=None, bias_correction=False)
    optimizer.variable_attrs.markAsConstant("max_weight_norm")
    optimizer.variable_attrs.markAsConstant("weight_decay")
    wrapped = poptorch.trainingModel(model, options(), optimizer)
    losses = [wrapped(*rows(8))[0].item() for _ in range(4)]
    assert losses[-1] < losses[0]
    optimizer._step_count = 1
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    schedule.step()
    wrapped.setOptimizer(optimizer)


def test_annotated_models_keep_the_names_of_their_weights():
    model = layered()
    names = list(model.state_dict())
    for index, layer in enumerate(model.layers):
        model.layers[index] = poptorch.BeginBlock(layer, f"Encoder{index}", ipu_id=index)
    assert list(model.state_dict()) == names
    poptorch.removeBlocks(model)
    assert [type(layer) for layer in model.layers] == [torch.nn.Linear] * 2


def test_an_average_of_the_weights_is_kept_on_the_host():
    model = scorer()
    wrapped = trainer(model)
    average = {name: value.clone() for name, value in model.state_dict().items()}
    expected = {name: value.clone() for name, value in average.items()}
    plain = scorer()
    for _ in range(3):
        wrapped(*rows(4))
        plain_steps(plain, sgd(plain), [[rows(4)]])
        for name, value in model.state_dict().items():
            average[name].mul_(0.9).add_(value, alpha=0.1)
            expected[name].mul_(0.9).add_(plain.state_dict()[name], alpha=0.1)
    torch.testing.assert_close(average, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("stages", [AutoStage.SameAsIpu, AutoStage.AutoIncrement])
def test_a_pipeline_with_checkpoints_from_hooks(stages):
    plain, model = layered(), layered()
    opts = options(gradientAccumulation=4)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(stages))
    batch = rows(8)

    def checkpoint(module, inputs, output):
        return poptorch.recomputationCheckpoint(output)

    for index, layer in enumerate(model.layers):
        layer.register_forward_hook(checkpoint)
        model.layers[index] = poptorch.BeginBlock(layer, f"Encoder{index}", ipu_id=index)
    poptorch.trainingModel(model, opts, sgd(model))(*batch)
    plain_steps(plain, sgd(plain), [list(zip(*(t.split(2) for t in batch), strict=True))])
    torch.testing.assert_close(weights(model), weights(plain), rtol=0, atol=1e-6)


def test_what_a_hook_returns_replaces_the_output():
    model = scorer()
    model.fc.register_forward_hook(lambda module, inputs, output: output * 0 + 1)
    _, scores = trainer(model)(*rows(2))
    assert torch.equal(scores, torch.ones(2, 3))


class SerialLinear(torch.nn.Linear):
    def forward(self, x):
        mode = poptorch.MatMulSerializationMode.OutputChannels
        return poptorch.serializedMatMul(x, self.weight.t(), mode, 3) + self.bias


def test_a_serialised_projection_under_an_attribute():
    plain, model = scorer(), scorer()
    model.fc.__class__ = SerialLinear
    outline = poptorch.Attribute(__outline={"layer": "embedding"})
    model.fc.register_forward_pre_hook(lambda *args: (outline.__enter__(), None)[1])
    model.fc.register_forward_hook(lambda *args: outline.__exit__(None, None, None))
    trainer(model)(*rows(4))
    plain_steps(plain, sgd(plain), [[rows(4)]])
    torch.testing.assert_close(weights(model), weights(plain), rtol=0, atol=1e-6)


def trainer_with(opts):
    model = scorer()
    return poptorch.trainingModel(model, opts, sgd(model))


def test_options_can_be_subclassed():
    class Chosen(poptorch.Options):
        def __init__(self, replicas=1):
            super().__init__()
            self.showCompilationProgressBar(False).replicationFactor(replicas)

        def deviceIterations(self, device_iterations):
            return super().deviceIterations(device_iterations * 2)

    opts = Chosen(replicas=1).deviceIterations(2)
    assert opts.device_iterations == 4
    assert trainer_with(opts)(*rows(8))[1].shape == (2, 3)
    assert copy.deepcopy(opts).deviceIterations(1).device_iterations == 2
