"""A model from a file is as good as the live one: on the host, wrapped again, and saved again."""

import copy
import json
import pickle
import zipfile

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.exported import everything
from helpers.wrapping import Calls, options, rows, sgd


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.poptorch"


def trained(model, calls=2, **settings):
    """A training wrapper after some calls."""
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    made = options(randomSeed=3, **settings)
    wrapped = poptorch.trainingModel(model, made, optimizer)
    for seed in range(calls):
        wrapped(*rows(8, seed))
    return wrapped


def inferred(model, *batch, **settings):
    """An inference wrapper that has been called once."""
    wrapped = poptorch.inferenceModel(model, options(**settings))
    wrapped(*batch)
    return wrapped


def saved(wrapped, path, **settings):
    wrapped.save(path)
    return poptorch.load(path, **settings)


def flat(result):
    return list(result) if isinstance(result, tuple) else [result]


def assert_same(left, right):
    for one, other in zip(flat(left), flat(right), strict=True):
        assert torch.equal(one, other)


def assert_same_state(left, right):
    assert list(left.state_dict()) == list(right.state_dict())
    for name, value in left.state_dict().items():
        assert torch.equal(value, right.state_dict()[name]), name


# -- on the host -----------------------------------------------------------------------------


def host_call(model, batch):
    """Results, and gradients of the loss by parameters, of plain PyTorch."""
    torch.manual_seed(4)
    loss, scores = model(*batch)
    model.zero_grad()
    loss.backward()
    return loss, scores, [None if p.grad is None else p.grad.clone() for p in model.parameters()]


@pytest.mark.parametrize("training", [True, False])
def test_the_host_runs_it_with_gradients_in_both_modes(training, path):
    live = everything()
    other = saved(trained(live, calls=1), path).model
    live.destroy()
    assert other.training
    for model in (live, other):
        model.train(training)
    for seed in (1, 2):
        expected, output = (host_call(model, rows(8, seed)) for model in (live, other))
        assert_same(expected[:2], output[:2])
        for one, two in zip(expected[2], output[2], strict=True):
            assert (one is None and two is None) or torch.equal(one, two)
    assert_same_state(live, other)
    assert live.calls == other.calls == 3


def test_gradients_reach_inputs_and_frozen_parameters_get_none(path):
    model = saved(trained(everything(), calls=1), path).model.eval()
    x, target = rows(8)
    x.requires_grad_()
    model(x, target)[0].backward()
    assert x.grad.abs().sum() > 0
    named = dict(model.named_parameters())
    assert not named["last.0.bias"].requires_grad
    assert named["last.0.bias"].grad is None
    with torch.no_grad():
        assert not model(x, target)[0].requires_grad


# -- wrapped again ---------------------------------------------------------------------------


@pytest.mark.parametrize("from_executor", [True, False])
def test_training_is_validated_with_a_second_wrapper(from_executor, path):
    live = everything()
    wrapped = trained(live)
    loaded = saved(wrapped, path)
    live.eval()
    loaded.model.eval()
    model = loaded if from_executor else loaded.model
    checks = [poptorch.inferenceModel(each, options()) for each in (live, model)]
    for seed in (11, 12, 13):
        assert_same(*(check(*rows(8, 20)) for check in checks))
        assert_same(*(each(*rows(8, seed)) for each in (wrapped, loaded)))
    assert_same_state(live, loaded.model)


# -- weights ---------------------------------------------------------------------------------


def test_weights_go_both_ways_under_the_original_names(path):
    live = everything()
    wrapped = trained(live)
    loaded = saved(wrapped, path)
    loaded.copyWeightsToHost()
    assert_same_state(live, loaded.model)
    other = everything(9)
    for each in (wrapped, loaded):
        each.load_state_dict(other.state_dict())
        with torch.no_grad():
            each.model.fc.weight.mul_(0.5)
        each.copyWeightsToDevice()
    assert_same(*(each(*rows(8, 3)) for each in (wrapped, loaded)))
    assert_same_state(live, loaded.model)
    assert loaded.model.out.weight is loaded.model.fc.weight


def test_other_parameters_than_those_of_the_file_are_refused(path):
    model = saved(inferred(everything(), *rows(8)), path).model
    model.out.weight = torch.nn.Parameter(torch.zeros(4, 4))  # unties it
    words = r"untied or converted: out\.weight is .*float32.*, and was missing"
    with pytest.raises(poptorch.Error, match=words):
        model(*rows(8))
    model.out.weight = model.fc.weight
    model(*rows(8))
    model.double()
    with pytest.raises(poptorch.Error, match=r"converted: fc\.weight is .*float64"):
        model(*(each.double() for each in rows(8)))


# -- saved again -----------------------------------------------------------------------------


def test_a_loaded_model_can_be_copied_and_pickled(path):
    model = saved(inferred(everything(), *rows(8)), path).model.eval()
    expected = model(*rows(8))
    torch.save(model, path.with_name("pickle"))
    pickled = torch.load(path.with_name("pickle"), weights_only=False)
    for other in (copy.deepcopy(model), pickled):
        assert_same(other(*rows(8)), expected)
        with torch.no_grad():
            other.fc.weight.zero_()
        assert not torch.equal(other(*rows(8))[1], expected[1])
    assert_same(model(*rows(8)), expected)


# -- modes -----------------------------------------------------------------------------------


class FrozenNorm(torch.nn.Module):
    """Its norm stays in evaluation mode whatever train() is told."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.norm = torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)
        self.drop = torch.nn.Dropout(0.5)

    def train(self, mode=True):
        super().train(mode)
        self.norm.eval()
        return self

    def forward(self, x):
        return self.drop(self.norm(self.fc(x)))


class Merging(torch.nn.Linear):
    def train(self, mode=True):
        self.weight.data.mul_(2 if mode else 0.5)
        return super().train(mode)


def test_a_training_mode_of_the_models_own_is_kept_and_not_guessed(path):
    live = FrozenNorm().train()
    loaded = saved(inferred(live, rows(8)[0]), path).model
    for mode in (True, False):
        if not mode:
            live.eval(), loaded.eval()
        for model in (live, loaded):
            torch.manual_seed(1)
            model.result = model(rows(8)[0])
        assert torch.equal(live.result, loaded.result)
    own = type("Own", (FrozenNorm,), {"train": lambda self, _: FrozenNorm.train(self)})().eval()
    for kept, now in ((FrozenNorm().train(), 4), (live, 4), (Merging(4, 3), 0), (own, 0)):
        loaded = saved(inferred(kept, rows(8)[0]), path).model
        with pytest.raises(poptorch.Error, match=f"Now {now} of its . modules are in training"):
            loaded.train(now > 0)(rows(8)[0])


def test_a_mixture_of_modes_that_is_not_in_the_file_is_refused(path):
    loaded = saved(trained(everything()), path).model
    loaded.norm.eval()
    with pytest.raises(poptorch.Error, match=r"0 or 6 modules in training mode. Now 5 of its 6"):
        loaded(*rows(8))
    live = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU())
    same = saved(inferred(live, rows(8)[0]), path).model
    next(same.children()).eval()  # no module asks
    assert torch.equal(same(rows(8)[0]), live(rows(8)[0]))


class OnlyInTraining(torch.nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        return y if self.training else y[y > 0]


def test_a_mode_that_could_not_be_stored_says_why_when_it_is_used(path):
    live = OnlyInTraining(4, 3)
    loaded = saved(inferred(live, rows(8)[0]), path).model
    assert torch.equal(loaded(rows(8)[0]), live(rows(8)[0]))
    loaded.eval()
    with pytest.raises(poptorch.Error, match=r"forward could not be stored: .*(nonzero|value)"):
        loaded(rows(8)[0])
    with pytest.raises(poptorch.Error, match=r"forward could not be stored: .*(nonzero|value)"):
        inferred(loaded, rows(8)[0])


def test_saving_leaves_modes_and_random_numbers_alone(path):
    live = everything()
    live.norm.eval()
    wrapped = trained(live)
    random = torch.get_rng_state()
    flags = [module.training for module in live.modules()]
    wrapped.save(path)
    assert torch.equal(torch.get_rng_state(), random)
    assert [module.training for module in live.modules()] == flags
    loaded = poptorch.load(path).model
    assert [module.training for module in loaded.modules()] == flags
    wrapped.destroy()
    for model in (live, loaded):
        torch.manual_seed(2)
        model.result = model(*rows(8))
    assert_same(live.result, loaded.result)


def asks_where(self, x):
    return x * self.weight if poptorch.isRunningOnIpu() else x - self.weight


def test_forward_that_asks_where_it_runs_is_stored_for_both(path):
    wrapped = inferred(Calls(asks_where), torch.ones(2))
    loaded = saved(wrapped, path)
    assert loaded(torch.ones(2)).tolist() == [2, 2]
    assert loaded.model(torch.ones(2)).tolist() == [-1, -1]
    assert inferred(loaded.model, torch.ones(2))(torch.ones(2)).tolist() == [2, 2]


# -- what forward may be ---------------------------------------------------------------------


def half(self, x):
    return (x * self.weight).half() @ torch.ones(2, 2).half()


def looped(self, x):
    return poptorch.for_loop(3, lambda y: [y * self.weight], [x])[0]


def printed(self, x):
    return poptorch.nop(x) * self.weight


@pytest.mark.parametrize("forward", [half, looped, printed])
def test_operators_of_all_kinds(forward, path):
    live = Calls(forward)
    wrapped = inferred(live, torch.ones(2, 2))
    loaded = saved(wrapped, path).model
    assert torch.equal(loaded(torch.ones(2, 2)), live(torch.ones(2, 2)))
    again = inferred(loaded, torch.ones(2, 2))
    assert torch.equal(again(torch.ones(2, 2)), wrapped(torch.ones(2, 2)))


class Blocks(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 3)
        poptorch.BeginBlock(self.first, "one", ipu_id=0)
        poptorch.BeginBlock(self.second, "two", ipu_id=1)

    def forward(self, x, target):
        return F.mse_loss(self.second(torch.tanh(self.first(x))), target)


def test_blocks_go_where_the_new_strategy_puts_them(path):
    live = Blocks()
    loaded = saved(trained(live, gradientAccumulation=4), path).model
    live.destroy()
    loaded.destroy()
    made = options(gradientAccumulation=4)
    made.setExecutionStrategy(
        poptorch.PipelinedExecution(poptorch.Stage("one").ipu(1), poptorch.Stage("two").ipu(0))
    )
    wrappers = [poptorch.trainingModel(model, made, sgd(model)) for model in (live, loaded)]
    assert_same(*(wrapper(*rows(8)) for wrapper in wrappers))
    assert str(wrappers[0].placement) == str(wrappers[1].placement)
    assert_same_state(*wrappers)


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


class Rounding(Calls):
    def __init__(self):
        super().__init__(None)

    def forward(self, x, target):
        return F.mse_loss(Straight.apply(x.sum(1) * self.weight), target.sum(1))


def test_gradients_of_python_code_are_refused_and_the_rest_works(path):
    live = Rounding()
    wrapped = trained(live)
    loaded = saved(wrapped, path)
    # The executor's own program has the backward of the user's.
    assert_same(*(each(*rows(8, 5)) for each in (wrapped, loaded)))
    words = r"No gradients can pass .* autograd\.Function Straight"
    with pytest.raises(poptorch.Error, match=words):
        loaded.model(*rows(8))
    with torch.no_grad():
        assert torch.equal(loaded.model(*rows(8)), live(*rows(8)))
    assert_same(*(inferred(model, *rows(8))(*rows(8)) for model in (live, loaded.model)))
    loaded.model.destroy()
    with pytest.raises(poptorch.Error, match=words):
        trained(loaded.model, calls=1)


class Labelled(torch.nn.Module):
    """A classifier that reads its labels, a dictionary and a weight, in training alone."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, x, labels=None, extra=None, *, weight=None):
        scores = self.fc(x)
        if not self.training:
            return scores
        loss = F.cross_entropy(scores, labels, weight=weight) + extra["l2"].sum()
        return scores, poptorch.identity_loss(loss, "none")


LABELS = torch.tensor([0, 2, 1, 0, 0, 1, 2, 2])


def test_what_a_recorded_forward_does_not_read_may_be_left_out(path):
    model, (x, _) = Labelled(), rows(8)
    args, kwargs = (LABELS, {"l2": torch.zeros(2)}), {"weight": torch.ones(3)}
    wrapped = poptorch.trainingModel(model, options(), sgd(model))
    wrapped(x, *args, **kwargs)
    loaded = saved(wrapped, path).model
    expected = model.eval()(x, *args, **kwargs)
    for each in (loaded, copy.deepcopy(loaded), pickle.loads(pickle.dumps(loaded))):  # noqa: S301
        each.eval()
        assert torch.equal(each(x), expected)
        assert torch.equal(each(x, *args, **kwargs), expected)
        assert torch.equal(inferred(each, x)(x), expected)
        with pytest.raises(poptorch.Error, match="Mandatory parameter x missing"):
            each(labels=LABELS)
    with pytest.raises(poptorch.Error, match="Type mismatch for labels: expected a"):
        loaded.train()(x)


# -- wrong input -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (lambda: rows(4), r"Shape mismatch for x: expected \[8, 4\], found \[4, 4\]"),
        (lambda: (rows(8)[0].double(), rows(8)[1]), "Data type mismatch for x"),
        (lambda: (rows(8)[0], 3), "Type mismatch for target: expected a torch.Tensor, found int"),
        (lambda: (), "Mandatory parameter x missing"),
    ],
)
def test_other_arguments_than_those_of_the_file_are_refused(args, words, path):
    model = saved(trained(everything()), path).model
    with pytest.raises(poptorch.Error, match=words):
        model(*args())
    if "Data type" not in words:  # wrappers take float64 as float32
        with pytest.raises(poptorch.Error, match=words):
            inferred(model, *args())


def rewritten(path, change):
    """The file with its manifest and its members changed."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    manifest = json.loads(members.pop("manifest.json"))
    change(manifest, members)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        for name, data in members.items():
            archive.writestr(name, data)


def missing(manifest, members):
    del members["forward/0.json"]


def missing_everywhere(manifest, members):
    missing(manifest, members)
    del manifest["members"]["forward/0.json"]


def altered(manifest, members):
    members["forward/0.json"] = members["forward/0.json"].replace(b"tanh", b"sinh")


def of_another_kind(manifest, members):
    manifest["content"]["forward"]["modes"] = 3


@pytest.mark.parametrize("change", [missing, missing_everywhere, altered, of_another_kind])
def test_a_graph_that_is_missing_or_altered_makes_the_file_invalid(change, path):
    trained(everything()).save(path)
    rewritten(path, change)
    with pytest.raises(AssertionError, match=r"Invalid file .*model\.poptorch"):
        poptorch.load(path)


def test_code_of_the_host_is_named_when_it_is_missing(path):
    class WithHost(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.host = poptorch.CPU(torch.nn.Identity(), "mine")

        def forward(self, x):
            return self.host(x) * 2

    loaded = saved(inferred(WithHost(), torch.ones(2)), path).model
    with pytest.raises(Exception, match="'mine' on the host"):
        inferred(loaded, torch.ones(2))
