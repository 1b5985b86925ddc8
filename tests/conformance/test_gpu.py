"""Target cuda on a GPU: plain PyTorch there, replays and plain launches, layers that differ there.

Without a GPU all of this is skipped; ``scripts/gpu`` runs it.
"""

import functools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import poptorch
from abele.compilation.verdict import TOLERANCE, ComparisonWarning
from abele.targets.candidates import ENVIRONMENT as LOWERING
from abele.targets.cuda.emitted import gemms
from abele.targets.cuda.emitted import lowering as of_programs
from abele.targets.cuda.emitted.choices import Choices, microseconds
from abele.targets.cuda.emitted.source import Writer
from abele.targets.replay import ENVIRONMENT as GRAPHS
from conftest import usable
from helpers.models import MODELS
from helpers.runs import assert_same_bits, rule_for, run, run_eagerly, started

STEPS = 6
PLAIN = ["introduction", "embedding and layer norm", "tied weights", "frozen parameters"]
OPTIMIZERS = {
    "sgd": lambda params: torch.optim.SGD(params, lr=0.05, momentum=0.9),
    "adam": lambda params: torch.optim.Adam(params, lr=0.001),
}


@pytest.fixture(autouse=True)
def _gpu(monkeypatch):
    usable("cuda")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setenv("ABELE_TARGET", "cuda")


def trained(name, kind):
    model = MODELS[name]
    module = model.fresh()
    torch.cuda.manual_seed(0)
    session, _ = started(module, model.batch(), rule_for(module, kind), target="cuda")
    return run(session, model.batches(STEPS))


def eager(name, kind):
    model = MODELS[name]
    module = model.fresh().cuda()
    batches = [tuple(tensor.cuda() for tensor in batch) for batch in model.batches(STEPS)]
    result = run_eagerly(module, OPTIMIZERS[kind](module.parameters()), batches)
    return {key: value.cpu() for key, value in result.params.items()}


@pytest.mark.parametrize("name", PLAIN)
def test_torchs_kernels_give_the_bits_of_plain_pytorch_on_the_gpu(name, monkeypatch):
    monkeypatch.setenv(LOWERING, "op_by_op")
    actual, expected = trained(name, "sgd"), eager(name, "sgd")
    for key, value in expected.items():
        assert torch.equal(actual.params[key], value), key


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("name", PLAIN)
def test_kernels_of_ours_are_close_to_plain_pytorch_on_the_gpu(name, kind, monkeypatch):
    monkeypatch.setenv(LOWERING, "emitted")
    actual, expected = trained(name, kind), eager(name, kind)
    for key, value in expected.items():
        torch.testing.assert_close(actual.params[key], value, rtol=TOLERANCE, atol=1e-6)


@pytest.mark.parametrize("lowering", ["emitted", "op_by_op"])
@pytest.mark.parametrize("name", [*PLAIN, "batch norm and dropout"])
def test_replays_have_the_bits_of_launches_one_by_one(name, lowering, monkeypatch):
    monkeypatch.setenv(LOWERING, lowering)
    replayed = trained(name, "sgd")
    monkeypatch.setenv(GRAPHS, "0")
    assert_same_bits(replayed, trained(name, "sgd"))


class Attention(torch.nn.Module):
    def __init__(self, size, mask, causal):
        super().__init__()
        self.layer, self.size = torch.nn.Linear(2 * size, 6 * size), size
        self.causal = causal
        self.register_buffer("mask", torch.ones(11, 11, dtype=torch.bool).tril() if mask else None)

    def forward(self, x):
        parts = self.layer(x).view(*x.shape[:2], 3, 2, self.size).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(*parts, attn_mask=self.mask, is_causal=self.causal)
        return poptorch.identity_loss((y**2).mean(), "none")


class Recurrent(torch.nn.Module):
    def __init__(self, **settings):
        super().__init__()
        self.layer = torch.nn.LSTM(7, 12, batch_first=True, **settings)

    def forward(self, x):
        y, (_, c) = self.layer(x)
        return poptorch.identity_loss((y**2).mean() + c.mean(), "none")


class Dropped(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(7, 12)

    def forward(self, x):
        return poptorch.identity_loss((F.dropout(self.layer(x)) ** 2).mean(), "none")


class WideNorms(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(7, 8).half()
        self.norm, self.groups = torch.nn.LayerNorm(8), torch.nn.GroupNorm(2, 8)

    def forward(self, x):
        y = self.layer(x.half()).view(-1, 8)
        return poptorch.identity_loss((self.norm(y) + self.groups(y)).float().var(), "none")


LAYERS = {
    **{
        f"attention of {size}{' with a mask' * mask}{', causal' * causal}": (
            lambda size=size, mask=mask, causal=causal: Attention(size, mask, causal),
            lambda size=size: torch.randn(3, 11, 2 * size),
        )
        for size in (5, 8, 64)
        for mask, causal in ((False, False), (True, False), (False, True))
    },
    **{
        f"LSTM {settings}": (
            lambda settings=settings: Recurrent(**settings),
            lambda: torch.randn(4, 9, 7),
        )
        for settings in (
            {},
            {"bias": False},
            {"bidirectional": True},
            {"num_layers": 2, "bias": False, "bidirectional": True},
        )
    },
}


def quiet():
    return poptorch.Options().showCompilationProgressBar(False)


def losses(make, data, *, steps=5):
    torch.manual_seed(3)
    torch.cuda.manual_seed(3)
    model, x = make(), data()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = poptorch.trainingModel(model, quiet(), optimizer)
    return torch.stack([wrapped(x) for _ in range(steps)])


def losses_of_eager(make, data, *, steps=5):
    torch.manual_seed(3)
    model, x = make(), data()
    model, x = model.cuda(), x.cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    result = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        result.append(loss.detach().cpu())
    return torch.stack(result)


@pytest.mark.parametrize("name", LAYERS)
def test_layers_that_gpus_have_kernels_of_their_own_for(name):
    make, data = LAYERS[name]
    torch.testing.assert_close(losses(make, data), losses_of_eager(make, data), rtol=1e-4, atol=0)


class Normalised(torch.nn.Module):
    """A batch norm whose result should be another function of its input."""

    def __init__(self, channels):
        super().__init__()
        self.norm = torch.nn.BatchNorm2d(channels)

    def forward(self, x):
        return F.mse_loss(self.norm(x), x.sin())


# The largest of CosmicTagger's A21, one whose parts have tails, and one of few pixels.
@pytest.mark.parametrize("shape", [(6, 8, 320, 512), (3, 5, 61, 67), (2, 300, 4, 4)], ids=str)
def test_batch_norms_are_close_to_float64(shape):
    torch.manual_seed(0)
    module, batches = Normalised(shape[1]), [(torch.randn(shape) + 3.0,) for _ in range(3)]
    exact = Normalised(shape[1]).double()
    session, _ = started(module, batches[0], rule_for(module, "sgd"), target="cuda")
    actual = run(session, batches)
    optimizer = torch.optim.SGD(exact.parameters(), lr=0.05, momentum=0.9)
    expected = run_eagerly(exact, optimizer, [(x.double(),) for (x,) in batches])
    for key in ("norm.weight", "norm.bias"):
        torch.testing.assert_close(
            actual.params[key].double(), expected.params[key], rtol=1e-5, atol=1e-6
        )
    for key in ("norm.running_mean", "norm.running_var"):
        torch.testing.assert_close(
            actual.buffers[key].double(), expected.buffers[key], rtol=1e-5, atol=1e-6
        )


def test_dropout_draws_other_numbers_in_each_replay():
    several = losses(Dropped, lambda: torch.ones(4, 9, 7), steps=6)
    assert len(several.unique()) == 6
    assert torch.equal(several, losses(Dropped, lambda: torch.ones(4, 9, 7), steps=6))


@pytest.mark.parametrize("lowering", ["emitted", "op_by_op"])
def test_several_steps_of_a_call_are_those_of_several_calls(lowering, monkeypatch):
    monkeypatch.setenv(LOWERING, lowering)
    x = torch.randn(8, 9, 7)
    expected = losses(Recurrent, lambda: x[:2], steps=4)
    torch.manual_seed(3)
    model, options = Recurrent(), quiet()
    options.deviceIterations(4).outputMode(poptorch.OutputMode.All)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = poptorch.trainingModel(model, options, optimizer)
    together = [wrapped(torch.cat([x[:2]] * 4)) for _ in range(3)]
    assert torch.equal(together[0], expected)
    assert (torch.cat(together).diff() < 0).all()


def test_large_results_are_the_callers():
    model = torch.nn.Linear(64, 4096)
    wrapped = poptorch.inferenceModel(model.eval(), quiet())
    batches = [torch.randn(32, 64) for _ in range(40)]
    results = [wrapped(x) for x in batches]  # more than come in page-locked memory
    with torch.no_grad():
        for x, result in zip(batches, results, strict=True):
            torch.testing.assert_close(result, model(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_models_train_alike_by_kernels_of_ours_and_of_torchs(dtype, monkeypatch):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            layers = torch.nn.Linear(7, 12), torch.nn.GELU(), torch.nn.Linear(12, 3)
            self.layers = torch.nn.Sequential(*layers).to(dtype)

        def forward(self, x):
            return poptorch.identity_loss((self.layers(x.to(dtype)).float() ** 2).mean(), "none")

    trained_models = []
    for lowering in ("emitted", "op_by_op"):
        monkeypatch.setenv(LOWERING, lowering)
        trained_models.append(losses(Model, lambda: torch.randn(4, 9, 7)))
    torch.testing.assert_close(*trained_models, rtol=2e-2, atol=1e-3)


def test_norms_of_two_types_train():
    values = losses(WideNorms, lambda: torch.randn(4, 9, 7))
    assert values.isfinite().all()
    assert (values.diff() < 0).all()


def test_kept_kernels_compute_the_same(isolated_cache):
    model, trained_models = MODELS["introduction"], []
    for _ in (0, 1):
        module = model.fresh()
        session, record = started(
            module, model.batch(), rule_for(module), target="cuda", cache=isolated_cache
        )
        trained_models.append((run(session, model.batches(STEPS)), record.cache))
    (first, made), (second, found) = trained_models
    assert (made, found) == ("miss", "hit")
    assert_same_bits(first, second)


def test_products_are_measured_with_both_libraries(capfd):
    x, y = torch.randn(64, 96, device="cuda"), torch.randn(96, 128, device="cuda")
    results = []

    def by(name):
        with gemms.using(name):
            results.append(x @ y)

    times = microseconds([functools.partial(by, name) for name in gemms.NAMES])
    assert all(0 < each < 1e4 for each in times)
    assert "experimental" not in capfd.readouterr().err
    torch.testing.assert_close(results[0], results[-1])


class Branches(torch.nn.Module):
    """Four layers that need nothing of each other, and their gradients."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(96, 96) for _ in range(4))
        self.last = torch.nn.Linear(96, 96)

    def forward(self, x):
        y = sum(layer(x).relu() for layer in self.layers)
        return poptorch.identity_loss((self.last(y) ** 2).mean(), "none")


def test_products_side_by_side_have_the_bits_of_products_one_after_the_other(monkeypatch):
    plans, trained_models = [], []
    measured = of_programs.measured
    for together in (False, True):

        def chosen(steps, device, together=together):
            made = measured(steps, device)
            plans.append(made.together)
            libraries = [gemms.USUAL] * len(made.libraries)
            return Choices(libraries, [together] * len(made.together))

        monkeypatch.setattr(of_programs, "measured", chosen)
        trained_models.append(losses(Branches, lambda: torch.randn(64, 96), steps=20))
    assert all(plans)
    assert torch.equal(*trained_models)


COMPARED = {
    "attention with a mask": LAYERS["attention of 5 with a mask"],
    "LSTM": LAYERS["LSTM {}"],
    "dropout": (Dropped, lambda: torch.ones(4, 9, 7)),
    "norms of two types": (WideNorms, lambda: torch.randn(4, 9, 7)),
}


def first_check(make, data):
    """Return the loss of the first step and what its comparison found."""
    torch.manual_seed(3)
    model, x = make(), data()
    wrapped = poptorch.trainingModel(model, quiet(), torch.optim.SGD(model.parameters(), lr=0.1))
    return wrapped(x), wrapped.build_record.running.check


@pytest.mark.parametrize("name", COMPARED)
def test_programs_are_compared_with_torchs_kernels_before_first_use(name):
    check = first_check(*COMPARED[name])[1]
    assert check.startswith("one micro-batch through both: ")
    assert "lowered by" not in check


def test_a_wrong_kernel_is_replaced_before_its_result_is_used(monkeypatch):
    make, data = (Dropped, lambda: torch.ones(4, 9, 7))
    texts = Writer.texts

    def wrong(self, count):
        return [text.replace("float(0.5)", "float(0.25)") for text in texts(self, count)]

    expected, _ = first_check(make, data)
    monkeypatch.setattr(Writer, "texts", wrong)
    with pytest.warns(ComparisonWarning, match=r"lowered by 'op_by_op' instead.*differs by"):
        loss, check = first_check(make, data)
    torch.testing.assert_close(loss, expected)
    assert check.endswith(", lowered by 'op_by_op' instead")
