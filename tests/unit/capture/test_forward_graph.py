"""A recorded forward does to the bit what forward does: on the host, and captured again."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from abele.capture import capture, forward_graph
from abele.capture.forward_graph import ForwardGraph
from abele.compilation.serialization import graph_from_text, graph_to_text
from abele.errors import CaptureError, DataDependentError, SerializationError
from abele.step.config import StepConfig
from abele.step.update_rules import Group, UpdateRule
from abele.trace.module_state import ModuleState
from helpers.models import MODELS, Affine


def flat(result):
    return list(result) if isinstance(result, tuple) else [result]


def recorded(module, batch) -> ForwardGraph:
    """The forward of a module, through text."""
    made = forward_graph.record(lambda inputs: flat(module(*inputs)), module, batch)
    text, constants = graph_to_text(made.graph)
    return ForwardGraph(graph_from_text(text, constants), made.without_gradient)


def repeated(made, module):
    """``module``'s forward by its record; reads parameters and buffers where forward would."""

    def call(inputs):
        params = dict(module.named_parameters())
        state = [*params.values(), *dict(module.named_buffers()).values()]
        return forward_graph.run(made, [*state, *inputs])

    return call


def assert_alike_on_the_host(module, other, made, batch):
    """Results, gradients and buffers of two equal modules, one of which is repeated."""
    torch.manual_seed(5)
    expected = flat(module(*batch))
    torch.manual_seed(5)
    results = repeated(made, other)(batch)
    for left, right in zip(expected, results, strict=True):
        assert torch.equal(left, right)
        assert left.requires_grad == right.requires_grad
    sums = [[v.sum() for v in values if v.requires_grad] for values in (expected, results)]
    for each in sums:
        torch.stack(each).sum().backward()
    for left, right in zip(module.parameters(), other.parameters(), strict=True):
        assert (left.grad is None) == (right.grad is None)
        assert left.grad is None or torch.equal(left.grad, right.grad)
    for left, right in zip(module.buffers(), other.buffers(), strict=True):
        assert torch.equal(left, right)


class Step(nn.Module):
    """A layer between two others, with a loss."""

    def __init__(self, layer, shape=(4, 6), prepare=lambda x: x):
        super().__init__()
        self.layer, self.shape, self.prepare = layer, shape, prepare
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x):
        value = self.layer(self.prepare(x * self.scale))
        value = value[0] if isinstance(value, tuple) else value
        return value, F.mse_loss(value, torch.zeros_like(value))


class Odd(nn.Module):
    """Views, writes in place, constants, ``no_grad`` and ``.data`` in one forward."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(6, 6)
        self.table = torch.arange(6.0)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += 1
        with torch.no_grad():
            mean = self.fc(x).mean()
        y = F.relu(self.fc(x), inplace=True) + 1
        y[:, :2] = y[:, :2] * mean
        y = y + self.table * y.data.amax() + self.seen
        mask = torch.zeros(6)
        mask[1] = 1
        for row in y.unbind():
            y = y + row.detach().mean()
        return y * mask * torch.tensor([1.0, 2.0] * 3)


def layers():
    yield "convolution", Step(nn.Conv1d(2, 3, 2), (4, 2, 5))
    yield "batch norm", Step(nn.BatchNorm1d(6))
    yield "instance norm", Step(nn.InstanceNorm1d(2, track_running_stats=True), (4, 2, 5))
    yield "dropout", Step(nn.Dropout(0.4))
    yield "lstm", Step(nn.LSTM(6, 3, 2, batch_first=True, dropout=0.3), (4, 5, 6))
    yield "gru", Step(nn.GRU(6, 3, bidirectional=True), (4, 5, 6))
    yield "attention", Step(nn.TransformerEncoderLayer(6, 2, 8, batch_first=True), (4, 5, 6))
    yield "max pool", Step(nn.MaxPool2d(2), (2, 3, 6, 6))
    yield "parametrised", Step(nn.utils.parametrizations.weight_norm(nn.Linear(6, 3)))
    yield "spectral norm", Step(nn.utils.parametrizations.spectral_norm(nn.Linear(6, 3)))
    yield "views and writes", Step(Odd())
    yield "half", Step(nn.Linear(6, 3).to(torch.bfloat16), prepare=lambda x: x.bfloat16())


def _cases():
    for name, model in MODELS.items():
        yield pytest.param(model.fresh, model.batch, id=name)
    for name, _ in layers():

        def make(name=name):
            torch.manual_seed(3)
            return dict(layers())[name]

        yield pytest.param(make, lambda make=make: (torch.randn(make().shape),), id=name)


CASES = list(_cases())


@pytest.mark.parametrize("training", [True, False], ids=["train", "eval"])
@pytest.mark.parametrize(("make", "batch"), CASES)
def test_a_record_gives_results_gradients_and_state_of_forward(make, batch, training):
    modules = [make().train(training) for _ in range(2)]
    batch = batch()
    assert_alike_on_the_host(*modules, recorded(modules[0], batch), batch)


def _captured():
    """All but spectral norm, whose training torch writes with ``out=``."""
    for case in CASES:
        if case.id != "spectral norm":
            often = case.id in MODELS or case.id in ("views and writes", "dropout", "half")
            marks = () if often else pytest.mark.long
            yield pytest.param(*case.values, id=case.id, marks=marks)


@pytest.mark.parametrize(("make", "batch"), list(_captured()))
def test_a_record_is_captured_as_the_same_programs(make, batch):
    module, batch = make(), batch()
    made = recorded(module, batch)
    names = tuple(sorted(ModuleState.of(module).trainable))
    group = Group(
        params=names,
        values=dict.fromkeys(("lr", "weight_decay", "momentum", "dampening"), 0.0) | {"lr": 0.1},
    )
    rule = UpdateRule(kind="sgd", groups=(group,))
    config = StepConfig(training=not isinstance(module, Affine))  # that one has no loss
    programs = [
        capture(call, module, batch, config, rule if config.training else None).programs
        for call in (lambda inputs: flat(module(*inputs)), repeated(made, module))
    ]
    for left, right in zip(*programs, strict=True):
        assert left.text(provenance=False) == right.text(provenance=False)
        assert left.fingerprint() == right.fingerprint()


def test_captured_again_its_operators_have_the_lines_and_scopes_of_the_model():
    module, batch = MODELS["dense"].fresh(), MODELS["dense"].batch()
    made = recorded(module, batch)
    text = (
        capture(repeated(made, module), module, batch, StepConfig(training=False))
        .programs[0]
        .text()
    )
    assert "models.py" in text
    assert "forward_graph.py" not in text
    assert "fc1" in text


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad * 2


class Straight(nn.Linear):
    def forward(self, x):
        return Rounded.apply(super().forward(x))


class Hooked(nn.Linear):
    def forward(self, x):
        y = super().forward(x)
        y.register_hook(lambda grad: grad * 2)
        return y


class Outside(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.weight.register_hook(lambda grad: grad * 2)


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        (Straight, "autograd.Function Rounded"),
        (Hooked, "registers a hook on a gradient"),
        (Outside, "is on parameter weight"),
    ],
)
def test_gradients_that_python_code_computes_are_told(kind, reason):
    module = kind(3, 2)
    made = recorded(module, [torch.randn(4, 3)])
    assert reason in made.without_gradient
    x = torch.randn(4, 3)
    assert torch.equal(repeated(made, module)([x])[0], module(x))


class Cast(nn.Linear):
    def forward(self, x):
        with torch.autocast("cpu", torch.bfloat16):
            return super().forward(x)


class Assigning(nn.Linear):
    def forward(self, x):
        self.weight.data = self.weight.data * 2
        return super().forward(x)


@pytest.mark.parametrize(
    ("kind", "reason"), [(Cast, r"opens torch\.autocast"), (Assigning, r"assigns to \.data")]
)
def test_what_a_record_cannot_hold_is_refused(kind, reason):
    module = kind(3, 2)
    weight = module.weight.detach().clone()
    with pytest.raises(CaptureError, match=reason):
        recorded(module, [torch.randn(4, 3)])
    assert torch.equal(module.weight, weight)
    assert type(module.weight) is nn.Parameter


class Reading(nn.Linear):
    def forward(self, x):
        return super().forward(x) if x.sum() > 0 else x


def test_a_value_that_is_read_is_named_with_its_line():
    module = Reading(3, 3)
    with pytest.raises(DataDependentError, match=r"test_forward_graph\.py:\d+: `return super"):
        recorded(module, [torch.randn(4, 3)])


class Showing(nn.Linear):
    def forward(self, x):
        result = super().forward(x)
        print(result)
        return result


def test_what_forward_prints_is_not_part_of_its_record(capsys):
    module, x = Showing(3, 3), torch.randn(4, 3)
    made = recorded(module, [x])
    assert "FakeTensor" in capsys.readouterr().out
    assert torch.equal(repeated(made, module)([x])[0], F.linear(x, module.weight, module.bias))
    assert capsys.readouterr().out == ""


class Listed(nn.Linear):
    """Reaches its weight through a list."""

    def __init__(self):
        super().__init__(3, 3)
        self.weights = [self.weight]

    def forward(self, x):
        return F.linear(x, self.weights[0], self.bias)


class Asking(nn.Linear):
    """Asks whether its weight is a parameter."""

    def forward(self, x):
        return super().forward(x) * (2 if isinstance(self.weight, nn.Parameter) else 3)


class WithCompiledPart(nn.Linear):
    """Calls a function that was given to ``torch.compile``."""

    def __init__(self):
        super().__init__(3, 3)
        self.double = torch.compile(lambda x: x * 2, backend="eager")

    def forward(self, x):
        return self.double(super().forward(x))


@pytest.mark.parametrize("make", [Listed, lambda: Asking(3, 3), WithCompiledPart])
def test_state_and_functions_are_those_of_a_capture(make):
    modules = [make() for _ in range(2)]
    modules[1].load_state_dict(modules[0].state_dict())
    batch = [torch.randn(4, 3)]
    made = recorded(modules[0], batch)
    with torch.no_grad():
        for module in modules:
            module.weight.mul_(3)  # after the record
    with torch.compiler.set_stance("force_eager"):
        assert_alike_on_the_host(*modules, made, batch)


class Caching(nn.Linear):
    def __init__(self):
        super().__init__(3, 3)
        self.table, self.tables, self.calls = None, {}, 0

    def forward(self, x):
        self.calls += 1
        if self.table is None:
            self.table = torch.arange(3.0).cos()
        table = self.tables.setdefault(3, torch.arange(3.0).sin())
        return super().forward(x) * self.table + table


def test_recording_leaves_the_module_as_it_was():
    module = Caching()
    made = recorded(module, [torch.randn(4, 3)])
    assert (module.table, module.tables, module.calls) == (None, {}, 0)
    x = torch.randn(4, 3)
    for _ in range(2):
        assert torch.equal(repeated(made, module)([x])[0], module(x))


class Counting(Affine):
    """Changes a plain tensor in place at every call, and computes with it."""

    def __init__(self):
        super().__init__()
        self.steps, self.all = torch.ones(1), [torch.zeros(2)]

    def forward(self, x):
        self.steps += 1
        self.all[0][1] = 5.0
        return super().forward(x) * self.steps + self.all[0][1]


def test_recording_leaves_plain_tensors_as_they_were():
    module = Counting()
    x = torch.randn(4, 3)
    made = recorded(module, [x])
    assert module.steps.tolist() == [1.0]
    assert module.all[0].tolist() == [0.0, 0.0]
    for _ in range(2):
        assert torch.equal(repeated(made, module)([x])[0], module(x))


def test_no_grad_around_a_record_holds_inside():
    module = Odd()
    made = recorded(module, [torch.randn(4, 6)])
    with torch.no_grad():
        assert not repeated(made, module)([torch.randn(4, 6)])[0].requires_grad
    assert torch.is_grad_enabled()


def test_an_error_inside_leaves_gradients_as_they_were():
    made = recorded(Odd(), [torch.randn(4, 6)])
    with pytest.raises(RuntimeError):
        repeated(made, Odd())([torch.randn(4, 7)])
    assert torch.is_grad_enabled()


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}",
        '{"format": 9, "graph": {"nodes": [], "graphs": {}}}',
        '{"format": 1, "graph": {"nodes": [{"op": "call_function"}], "graphs": {}}}',
    ],
)
def test_another_text_is_refused(text):
    with pytest.raises(SerializationError, match=r"not of a graph|is not 1"):
        graph_from_text(text, {})
