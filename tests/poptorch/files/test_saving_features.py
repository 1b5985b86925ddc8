"""Whatever a wrapper uses, its file continues as it does: both run side by side."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.wrapping import options
from poptorch import resuming


class Two(torch.nn.Module):
    """Two layers with a scope, an attribute and a checkpoint; perhaps half, perhaps in blocks."""

    def __init__(self, half=False, blocks=False):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 2)
        if blocks:
            poptorch.BeginBlock(self.first, "one", ipu_id=0)
            poptorch.BeginBlock(self.second, "two", ipu_id=1)
        if half:
            self.half()

    def forward(self, x, label):
        with poptorch.NameScope("inner"), poptorch.Attribute(__outline={"layer": "one"}):
            hidden = F.relu(self.first(x))
        hidden = poptorch.recomputationCheckpoint(hidden)
        return F.cross_entropy(self.second(hidden).float(), label)


def sgd(params):
    return poptorch.optim.SGD(params, lr=0.1, momentum=0.9, loss_scaling=8.0)


def adam(params):
    return poptorch.optim.Adam(params, lr=0.01, accum_type=torch.float16)


def scaled():
    made = options(gradientAccumulation=2, setAutomaticLossScaling=True)
    made._Popart.set("automaticLossScalingSettings.updatePeriod", 3)
    return made


def anchored():
    made = options(gradientAccumulation=2)
    made.anchorTensor("gradient", "Gradient___first.weight")
    return made


ROUNDED = {"gradientAccumulation": 4, "randomSeed": 3, "enableStochasticRounding": True}
TRAPPED = {"gradientAccumulation": 2, "enableFloatingPointExceptions": True}
PAIR = (2, poptorch.CommGroupType.Consecutive)
CASES = {
    "plain": (options, {}, sgd),
    "blocks": (lambda: options(gradientAccumulation=4), {"blocks": True}, sgd),
    "stochastic rounding": (lambda: options(**ROUNDED), {"half": True}, adam),
    "automatic loss scaling": (scaled, {"half": True}, sgd),
    "floating-point exceptions": (lambda: options(**TRAPPED), {}, sgd),
    "anchored tensors": (anchored, {}, sgd),
    "input groups": (lambda: options(replicationFactor=2, inputReplicaGrouping=PAIR), {}, sgd),
}


def batches(count, half):
    torch.manual_seed(1)
    for _ in range(count):
        yield torch.randn(8, 4).to(torch.float16 if half else torch.float32), torch.ones(8).long()


@pytest.mark.parametrize("case", CASES)
def test_a_file_continues_what_was_saved(case, tmp_path):
    made, settings, optimizer = CASES[case]
    model = Two(**settings)
    wrapped = poptorch.trainingModel(model, made(), optimizer(model.parameters()))
    first, second, *rest = batches(5, settings.get("half", False))
    for batch in (first, second):
        wrapped(*batch)
    wrapped.save(tmp_path / "model")
    loaded = poptorch.load(tmp_path / "model")
    for batch in rest:
        assert torch.equal(wrapped(*batch), loaded(*batch))
    for name, value in wrapped.state_dict().items():
        assert torch.equal(value, loaded.state_dict()[name])
    assert str(loaded.placement) == str(wrapped.placement)
    assert loaded.getTensorNames() == wrapped.getTensorNames()
    if case == "anchored tensors":
        gradients = loaded.getAnchoredTensor("gradient")
        assert torch.equal(gradients, wrapped.getAnchoredTensor("gradient"))


class Ensemble(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.arange(8.0).reshape(2, 4))
        self.shared = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        return poptorch.identity_loss((x * self.weight * self.shared).sum(), "none")


@pytest.mark.parametrize("attached", [True, False])
def test_parameters_per_replica_are_saved_with_all_groups(attached, tmp_path):
    model = Ensemble()
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.1)
    wrapped = poptorch.trainingModel(model, options(replicationFactor=2), optimizer)
    wrapped.weight.replicaGrouping(
        poptorch.CommGroupType.NoGrouping, 1, poptorch.VariableRetrievalMode.OnePerGroup
    )
    x = torch.randn(4, 4)
    wrapped(x)
    if not attached:
        wrapped.detachFromDevice()
    wrapped.save(tmp_path / "model")
    for loaded in (
        poptorch.load(tmp_path / "model"),
        poptorch.load(tmp_path / "model", model=Ensemble()),
    ):
        assert torch.equal(loaded.model.weight, model.weight)
        assert not torch.equal(loaded.model.weight[0] + 4, loaded.model.weight[1])
        assert loaded.per_replica_params == wrapped.per_replica_params
    assert torch.equal(loaded(x), wrapped(x))
    assert torch.equal(loaded.model.weight, model.weight)
    resuming.put_back(wrapped, state := resuming.state_of(loaded))
    del state["tensors"]["params/weight"]
    with pytest.raises(poptorch.Error, match=r"weight: missing there, torch.float32 here"):
        resuming.put_back(wrapped, state)


class Counter(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen.add_(x.sum())
        return x + self.seen


@pytest.mark.parametrize("attached", [True, False])
def test_each_replicas_buffers_are_saved(attached, tmp_path):
    made = options(replicationFactor=2).broadcastBuffers(False)
    wrapped = poptorch.inferenceModel(Counter(), made)
    x = torch.tensor([1.0, 10.0])
    wrapped(x)
    if not attached:  # what inference changed is not copied home, so attaching starts from the host
        wrapped.detachFromDevice()
    wrapped.save(tmp_path / "model")
    expected = [3.0, 30.0] if attached else [2.0, 20.0]
    assert poptorch.load(tmp_path / "model")(x).tolist() == wrapped(x).tolist() == expected


def test_what_a_file_holds_can_be_asked(tmp_path):
    wrapped = poptorch.inferenceModel(torch.nn.Linear(4, 2), options())
    wrapped.compileAndExport(tmp_path / "model", torch.ones(1, 4))
    assert poptorch.importPoptorchMetadataFromFile(tmp_path / "model") == {
        "version": poptorch.__version__,
        "training": False,
        "has_model": True,
        "device": "cpu",
        "programs": ["forward"],
    }
    (tmp_path / "text").write_text("hello")
    with pytest.raises(poptorch.Error, match="No PopTorch metadata could be read: Invalid file"):
        poptorch.importPoptorchMetadataFromFile(tmp_path / "text")
