"""What target cuda writes for a program, run by the host, and how few launches it needs."""

import itertools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

from abele.compilation.verdict import TOLERANCE
from abele.errors import CompilerError
from abele.targets.cuda.emitted import lowering, nvrtc, source
from abele.targets.cuda.emitted.gemms import ConcurrentGemms
from abele.targets.cuda.emitted.source import Launch
from abele.targets.reference import Interpreter
from abele.targets.translation.operations import Foreign
from helpers import kernels_on_host
from helpers.emitted_operators import program_of
from helpers.models import MODELS
from helpers.runs import assert_close_by_norm, captured, rule_for, run, started

COMPILED = pytest.mark.compiler

X, Y = torch.randn(5, 7), torch.rand(5, 7) + 0.5
N = torch.randint(-20, 20, (5, 7))
ACTIVATIONS = [
    *(F.relu, F.gelu, F.silu, F.mish, F.elu, F.celu, F.selu, F.leaky_relu, F.softplus, F.hardswish),
    *(F.hardsigmoid, F.hardtanh, F.logsigmoid, torch.sigmoid),
    *(torch.tanh, torch.erf, torch.exp, torch.expm1, torch.sin, torch.cos, torch.atan, torch.sinh),
]
OF_POSITIVE = [torch.log, torch.log1p, torch.sqrt, torch.rsqrt, torch.log2, torch.reciprocal]
OF_WHOLE = [
    *(torch.abs, torch.sign, torch.neg),
    *(lambda x: x // 3, lambda x: x % 5, lambda x: x * 7 - x, lambda x: x > 2),
    *(lambda x: x & 6, lambda x: torch.where(x < 0, x, 1), lambda x: x.clamp(-3, 9)),
]
OF_TWO = [
    *(torch.maximum, torch.minimum, torch.atan2, torch.fmod, torch.remainder, torch.pow),
    *(torch.xlogy, torch.lerp, torch.addcmul, torch.addcdiv, torch.copysign),
]


def steps_of(plan):
    """Operators that torch computes, and kernels."""
    groups = (
        step.operations if isinstance(step, ConcurrentGemms) else [step] for step in plan.steps
    )
    operations = itertools.chain.from_iterable(groups)
    foreign = [str(each.target) for each in operations if isinstance(each, Foreign)]
    return foreign, [step for step in plan.steps if isinstance(step, Launch)]


def both(function, inputs, folder, *, gradients=False):
    """Results of the kernels and of the interpreter, and the plan."""
    program = program_of(function, inputs, gradients=gradients)
    arguments = [value.clone() for value in inputs]
    expected = Interpreter().compile(program).run([value.clone() for value in inputs])
    low = kernels_on_host.OnHost(folder)
    return low.compile(program).run(arguments), expected, low.plans[0]


def assert_same(function, inputs, folder, *, gradients=False):
    actual, expected, plan = both(function, inputs, folder, gradients=gradients)
    torch.testing.assert_close(actual, expected, rtol=2e-5, atol=2e-5, equal_nan=True)
    return steps_of(plan)


@COMPILED
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("introduction", "adam"),
        ("batch norm and dropout", "sgd"),
        ("embedding and layer norm", "sgd"),
    ],
)
def test_a_model_trains_as_it_is_interpreted(name, kind, tmp_path):
    target, _ = kernels_on_host.target(tmp_path)
    model, trained = MODELS[name], []
    for each in (target, "reference"):
        module = model.fresh()
        session, _ = started(module, model.batch(), rule_for(module, kind), target=each)
        trained.append(run(session, model.batches(4)))
    assert_close_by_norm(*trained, TOLERANCE, model.zero_gradients)


def test_the_updates_of_all_parameters_are_one_launch_and_everything_else_is_torchs():
    model = MODELS["introduction"]
    module = model.fresh()
    program = captured(module, model.batch(), rule=rule_for(module)).programs[0]
    foreign, launches = steps_of(lowering.planned(program))
    # Two convolutions, a norm, two pools, two linear layers, and the softmax with its loss, each
    # with its backward; one bias has too few rows for a sum of torch's.
    assert (len(foreign), len(launches)) == (18, 7)
    assert "aten.sum.dim_IntList" not in foreign
    updated = [unit for unit in launches[-1].units if len(unit.operations) >= 3]
    assert len(updated) >= 2


@COMPILED
def test_elementwise_operators_are_few_launches(tmp_path):
    def function(x, y, n):
        results = [each(x) for each in ACTIVATIONS]
        results += [each(y) for each in OF_POSITIVE] + [each(n) for each in OF_WHOLE]
        for each in OF_TWO:
            given = {torch.lerp: (x, y, 0.3), torch.addcmul: (x, y, y), torch.addcdiv: (x, x, y)}
            results.append(each(*given.get(each, (y, x.abs() + 0.25))))
        return results

    foreign, launches = assert_same(function, (X, Y, N), tmp_path)
    # What two of them share is written once, because one loop takes no more operators.
    assert (foreign, len(launches)) == ([], 2)


@COMPILED
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_numbers_are_rounded_as_torch_rounds_them(dtype, tmp_path):
    def function(x):
        results = [each(x) for each in (*ACTIVATIONS[:16], torch.tanh, *OF_POSITIVE)]
        results += [x * 0.1, x + 3, x > 0.3, (x > 0.3) * x, x.float() * 2, x.to(torch.int32)]
        results += [x.clamp(-1, 1), x.maximum(x * x), torch.where(x > 1, x, 0.7)]
        results += [torch.addcmul(x, x, x, value=0.3), torch.cat([x, x + 1])[::2], x.half()]
        return [*results, x.bfloat16(), x.double(), (x * 1e6).float(), x.float().to(dtype)]

    x = (torch.rand(5, 7) * 2 + 0.1).to(dtype)
    actual, expected, plan = both(function, (x,), tmp_path)
    # Functions of float32 differ in their last bit, and so half numbers that lie between two.
    eps = torch.finfo(dtype).eps
    for ours, wanted in zip(actual, expected, strict=True):
        torch.testing.assert_close(ours, wanted, rtol=eps, atol=0)
    assert sum(map(torch.equal, actual, expected)) > len(actual) - 4
    assert steps_of(plan)[0] == []


@COMPILED
def test_a_half_model_trains_by_kernels_and_torchs_products(tmp_path):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = torch.nn.Linear(6, 5).half(), torch.nn.Linear(5, 3).half()

        def forward(self, x, target):
            return F.mse_loss(self.second(F.gelu(self.first(x))).float(), target)

    batch = torch.randn(4, 6).half(), torch.randn(4, 3)
    target, low = kernels_on_host.target(tmp_path)
    trained = []
    for each in (target, "reference"):
        torch.manual_seed(0)
        module = Model()
        session, _ = started(module, batch, rule_for(module), target=each)
        trained.append(run(session, [batch] * 4))
    for name, value in trained[1].params.items():
        torch.testing.assert_close(trained[0].params[name], value, rtol=1e-2, atol=1e-3)
    foreign, _ = steps_of(low.plans[0])
    assert {each.split(".")[1] for each in foreign} <= {
        "addmm",
        "mm",
        "sum",
        "mse_loss",
        "mse_loss_backward",
    }


@COMPILED
def test_gradients_of_activations(tmp_path):
    foreign, _ = assert_same(lambda x: [f(x) for f in ACTIVATIONS], (X,), tmp_path, gradients=True)
    assert set(foreign) == {"aten.sum.default"}  # the sums of squares whose gradients these are


@COMPILED
def test_views_pieces_and_broadcasts(tmp_path):
    def function(x, y, n):
        turned = (x.t() * 2).t() + y[:, :1]
        joined = torch.cat([x, y, x[1:3]]) + torch.cat([x, y], 1).sum() * 0
        return turned, joined, F.pad(x, (1, 2)) * 3, torch.stack([x, y], 1), x[::2, 1:] - n[:3, 1:]

    assert_same(function, (X, Y, N), tmp_path)


@COMPILED
@pytest.mark.parametrize("settings", [{"_LARGEST_INDEX": 1}, {"_LARGE": 1}, {"_MOST_POINTERS": 6}])
def test_large_tensors_and_many_of_them(settings, tmp_path, monkeypatch):
    for name, value in settings.items():
        monkeypatch.setattr(source, name, value)

    def function(x, y, n):
        return x.t() * y.t(), x + 1, y - x, n * 2

    _, launches = assert_same(function, (X, Y, N), tmp_path)
    assert len(launches) == (2 if "_MOST_POINTERS" in settings else 1)


@COMPILED
def test_sums_of_columns(tmp_path):
    wide, deep, cube = torch.randn(3, 50), torch.randn(300, 9), torch.randn(4, 6, 5)

    def function(wide, deep, cube):
        leading = deep.sum(0), cube.sum((0, 1)), cube.sum(0), wide.sum(0, keepdim=True)
        return *leading, deep[:, 2:7].sum(0), wide.sum(1), cube.sum((0, 2)), deep.t().sum(1)

    foreign, launches = assert_same(function, (wide, deep, cube), tmp_path)
    assert foreign == ["aten.sum.dim_IntList"] * 3  # over rows, or around what stays
    assert len(launches) == 1


def test_sums_of_many_rows_and_of_other_types_are_torchs():
    def function(x, y):
        return x.sum(0), y.sum(0), x.sum(0, dtype=torch.float64)

    inputs = torch.empty(1 << 15, 2), torch.empty(4, 4, dtype=torch.float64)
    foreign, launches = steps_of(lowering.planned(program_of(function, inputs, gradients=False)))
    assert (len(foreign), launches) == (3, [])


@COMPILED
def test_inputs_in_another_order_are_copied_and_written_back(tmp_path):
    model = MODELS["dense"]
    module = model.fresh()
    program = captured(module, model.batch(), rule=rule_for(module)).programs[0]
    arguments = [torch.rand(slot.shape).to(slot.dtype) for slot in program.inputs]
    turned = [
        value.t().contiguous().t() if value.dim() == 2 else value.clone() for value in arguments
    ]
    compiled = kernels_on_host.OnHost(tmp_path).compile(program)
    compiled.run(list(turned))
    Interpreter().compile(program).run(list(arguments))
    torch.testing.assert_close(turned, arguments)


@COMPILED
def test_a_program_without_kernels_runs(tmp_path):
    actual, expected, plan = both(lambda x: x.sum(), (X,), tmp_path)
    assert plan.texts == []
    assert all(map(torch.equal, actual, expected))


class Log:
    """A compiler that refuses everything."""

    class Status:
        def __init__(self, value):
            self.value = value

    def __getattr__(self, name):
        if name == "nvrtcCompileProgram":
            return lambda *_: (self.Status(6),)
        if name == "nvrtcGetProgramLog":
            return lambda _, log: log.__setitem__(slice(None), b"line 3: no\0")
        size = 11 if name == "nvrtcGetProgramLogSize" else object()
        return lambda *_: (self.Status(0), size)


def test_an_error_of_the_compiler_has_its_log(monkeypatch):
    monkeypatch.setattr(nvrtc, "_library", lambda name: Log())
    with pytest.raises(CompilerError, match="could not compile the program's kernels") as caught:
        nvrtc.compiled("", (9, 0))
    assert caught.value.log == "line 3: no"


def test_without_nvidias_bindings_torchs_kernels_run_programs(monkeypatch):
    def missing(name):
        raise ImportError(name)

    monkeypatch.setattr(nvrtc, "_library", missing)
    program = program_of(lambda x: x + 1, (X,), gradients=False)
    assert "pip install cuda-bindings" in lowering.Emitted().why_not(program)
    assert lowering.Emitted().why(program) is None


def test_loops_and_effects_are_not_written(monkeypatch):
    monkeypatch.setattr(nvrtc, "unavailable", lambda: None)

    class Branching(torch.nn.Module):
        def forward(self, x):
            return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    program = captured(Branching(), (torch.ones(4),)).programs[0]
    assert lowering.Emitted().why_not(program) == "it has loops or branches"
