"""Generated code of inference computes what depends on weights alone once, until they change."""

import copy
import itertools
import shutil

import pytest
import torch
from torch import nn
from torch.nn import functional

import abele
import poptorch
from abele import passes
from abele.compilation.cache import ExecutableCache
from abele.targets.cpu.emitted.lowering import Emitted, planned_code
from abele.targets.cpu.emitted.run import Runner
from abele.targets.translation.operations import Foreign
from helpers import runs
from helpers.changes import CHANGES

FRONTS = {
    "abele.compile": lambda model: abele.compile(lambda x: model(x)),
    "torch.compile": lambda model: torch.compile(model, backend="abele", options={"start": "wait"}),
}
pytestmark = [
    pytest.mark.compiler,
    pytest.mark.skipif(
        not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler on PATH"
    ),
]


@pytest.fixture(autouse=True)
def _emitted(monkeypatch):
    monkeypatch.setenv("ABELE_LOWERING", "emitted")
    monkeypatch.setenv("ABELE_TARGET", "cpu")


class Layers(nn.Module):
    """Linear layers with a norm and, if asked for, an operator that torch computes between them."""

    def __init__(self, *widths, foreign=False):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(*pair) for pair in itertools.pairwise(widths))
        self.norm, self.foreign = nn.BatchNorm1d(widths[1]), foreign
        for each in self.norm.state_dict().values():
            if each.is_floating_point():
                each.uniform_(0.5, 1.5)

    def forward(self, x):
        first, *others = self.layers
        x = functional.gelu(self.norm(first(x)))
        if self.foreign:
            x = torch.sort(x, stable=True).values
        for layer in others:
            x = layer(x)
        return x


class Separable(nn.Module):
    """A network of convolutions of 1x1, depthwise ones and a first one of few channels."""

    def __init__(self, activation, first, inner, outputs, stride, kernel=3):
        super().__init__()
        near, (pad, far) = kernel // 2, divmod(first, 2)
        layers = [nn.Conv2d(3, inner, first, stride, pad, bias=far == 1), nn.BatchNorm2d(inner)]
        self.first = nn.Sequential(*layers, activation())
        self.blocks = nn.ModuleList()
        for index in range(3):
            step = stride if index == 1 else 1
            wide = nn.Conv2d(inner, 2 * outputs, 1, stride=step), nn.BatchNorm2d(2 * outputs)
            deep = nn.Conv2d(2 * outputs, 2 * outputs, kernel, step, near, groups=2 * outputs)
            layers = [*wide, activation(), deep, nn.BatchNorm2d(2 * outputs), activation()]
            self.blocks.append(nn.Sequential(*layers, nn.Conv2d(2 * outputs, inner, 1, bias=False)))
        for each in self.modules():
            if isinstance(each, nn.BatchNorm2d):
                each.running_mean.uniform_(-0.5, 0.5)
                each.running_var.uniform_(0.5, 1.5)

    def forward(self, x):
        x = self.first(x)
        for index, block in enumerate(self.blocks):
            x = block(x) if index == 1 else functional.relu6(x + block(x))
        return x, x.mean((2, 3))


SEPARABLE = {
    "whole registers": (nn.ReLU6, 3, 16, 24, 2),
    "tails": (nn.ReLU, 4, 13, 19, 1),
    "large windows": (nn.Hardswish, 5, 33, 40, 2, 5),
    "far windows": (nn.SiLU, 7, 20, 9, 1, 7),
    "slopes": (nn.LeakyReLU, 3, 18, 17, 2),
}


def separable(name):
    torch.manual_seed(3)
    return Separable(*SEPARABLE[name]).eval(), torch.randn(2, 3, 23, 30)


def preparations(monkeypatch):
    """Return a list that grows with each computation of what depends on weights alone."""
    made, compute = [], Runner._compute

    def noted(self, threads, first):
        if self.prepares and not first:
            made.append(self)
        compute(self, threads, first)

    monkeypatch.setattr(Runner, "_compute", noted)
    return made


def error(value, exact):
    return ((value - exact).abs().max() / exact.abs().max()).item()


def check(session, model, x):
    """Compare two calls with plain PyTorch's error against float64, and with each other."""
    with torch.no_grad():
        exact, plain = copy.deepcopy(model).double()(x.double()), model(x)
    first, second = session.step([x]), session.step([x])
    given = zip(first, second, runs.flat(exact), runs.flat(plain), strict=True)
    for one, other, exactly, eager in given:
        assert torch.equal(one, other)
        assert one.stride() == eager.stride()
        assert error(one, exactly) <= 4 * error(eager, exactly) + 1e-6


@pytest.mark.parametrize(
    ("rows", "foreign"), [(1, False), (2, True), (7, False), (8, True), (17, False), (40, True)]
)
def test_linear_layers_have_the_errors_of_plain_pytorch(rows, foreign):
    torch.manual_seed(rows)
    model, x = Layers(65, 33, 257, 10, foreign=foreign).eval(), torch.randn(rows, 65)
    check(runs.started(model, [x], target="cpu")[0], model, x)


@pytest.mark.parametrize("name", SEPARABLE)
def test_separable_networks_have_the_errors_of_plain_pytorch(name):
    model, x = separable(name)
    session, _ = runs.started(model, [x], target="cpu")
    check(session, model, x)


def test_no_convolution_of_separable_networks_is_left_to_torch():
    model, x = separable("whole registers")
    (program,) = runs.captured(model, [x]).programs
    program = passes.run_only(passes.run(program), Emitted.passes)
    parts = Emitted().source(program).text
    assert parts.count("abele_clamped_depthwise(") == 3
    assert "abele_clamped_few_channels(" in parts
    assert not any(isinstance(u.operations[0], Foreign) for u in planned_code(program).units)


@pytest.mark.parametrize("name", ["whole registers", "slopes"])
def test_not_a_number_stays_one(name):
    model, x = separable(name)
    x[0, 1, 11, 13] = torch.nan
    with torch.no_grad():
        expected = model(x)[0].isnan()
    assert expected.any()
    assert torch.equal(runs.started(model, [x], target="cpu")[0].step([x])[0].isnan(), expected)


@pytest.mark.parametrize("foreign", [False, True])
def test_constants_are_prepared_once_until_they_change(monkeypatch, foreign):
    made = preparations(monkeypatch)
    torch.manual_seed(0)
    model, x = Layers(20, 24, 12, foreign=foreign).eval(), torch.randn(9, 20)
    session, _ = runs.started(model, [x], target="cpu")
    for _ in range(3):
        session.step([x])
    before = len(made)  # also in the comparison with the interpreter
    session.step([x])
    assert len(made) == before > 0
    with torch.no_grad():
        for each in (model.layers[1].weight, model.norm.running_var, model.norm.weight):
            each.mul_(1.5)
            session.write_params(dict(model.named_parameters()))
            session.write_buffers(dict(model.named_buffers()))
            (value,) = session.step([x])
            torch.testing.assert_close(value, model(x), rtol=1e-4, atol=1e-5)
            before += 1
            assert len(made) == before


def test_sessions_of_one_executable_have_constants_of_their_own():
    torch.manual_seed(0)
    models, x = (
        [Layers(20, 24, 12, foreign=each).eval() for each in (False,) * 2],
        torch.ones(9, 20),
    )
    session, _ = runs.started(models[0], [x], target="cpu")
    other = runs.session_of(session.executable, models[1], session.config, None)
    for _ in range(2):
        for each, model in ((session, models[0]), (other, models[1])):
            with torch.no_grad():
                torch.testing.assert_close(each.step([x])[0], model(x), rtol=1e-4, atol=1e-5)


def test_a_wrapper_sends_changed_weights():
    torch.manual_seed(0)
    model, x = Layers(20, 24, 12).eval(), torch.randn(1, 20)
    options = poptorch.Options()
    options.deviceIterations(2)
    several, one = poptorch.inferenceModel(model, options), poptorch.inferenceModel(model)
    rows = torch.randn(2, 20)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(one(x), model(x), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(several(rows), model(rows), rtol=1e-4, atol=1e-5)
            model.layers[1].weight.data.neg_()
            one.copyWeightsToDevice()
            several.copyWeightsToDevice()


@pytest.mark.parametrize("foreign", [False, True])
@pytest.mark.parametrize("front", ["abele.compile", "torch.compile"])
def test_weights_of_the_user_are_prepared_when_their_contents_change(monkeypatch, front, foreign):
    made = preparations(monkeypatch)
    torch.manual_seed(0)
    model, x = Layers(20, 24, 12, foreign=foreign).eval(), torch.randn(40, 20)
    function = torch.no_grad()(FRONTS[front](model))
    for change in CHANGES.values():
        for _ in range(3):
            value = function(x)
        before = len(made)
        assert torch.equal(function(x), value)
        assert len(made) == before > 0
        for layer in model.layers:
            change(layer.weight)
            with torch.no_grad():
                torch.testing.assert_close(function(x), model(x), rtol=1e-4, atol=1e-5)


def test_weights_of_the_user_that_few_rows_use_are_read_in_each_call(monkeypatch):
    made = preparations(monkeypatch)
    model, x = Layers(20, 24, 12).eval(), torch.randn(9, 20)
    function = torch.no_grad()(abele.compile(lambda x: model(x)))
    for change in CHANGES.values():
        change(model.layers[0].weight)
        with torch.no_grad():
            torch.testing.assert_close(function(x), model(x), rtol=1e-4, atol=1e-5)
    assert not made


def test_programs_from_a_cache_give_the_same_bits(tmp_path):
    model, x = separable("whole registers")
    cache = ExecutableCache(tmp_path)
    one, other = (
        runs.started(model, [x], target="cpu", cache=cache)[0].step([x]) for _ in range(2)
    )
    assert all(map(torch.equal, one, other))


def test_prepared_weights_are_part_of_the_memory():
    model, x = nn.Linear(300, 200), torch.randn(9, 300)
    (program,) = runs.captured(model, [x]).programs
    program = passes.run_only(passes.run(program), Emitted.passes)
    assert Emitted().memory(program).reserved >= model.weight.nbytes
