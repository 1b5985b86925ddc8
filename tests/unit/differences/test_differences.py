"""Two ways to run a program: what is put in is found, at its operation, line and pass."""

import dataclasses

import pytest
import torch

from abele.capture import origins
from abele.differences import Setting, Subject, setting, why_different
from abele.errors import DifferenceError
from abele.targets import get_target
from abele.targets.reference import Interpreter, Reference
from abele.targets.translation.pointwise import RULES, Rule, plain
from helpers.models import MODELS
from helpers.runs import captured, rule_for

aten = torch.ops.aten


class Bent(torch.nn.Module):
    """A few layers, of which tests make one wrong."""

    def __init__(self):
        super().__init__()
        self.first, self.second = torch.nn.Linear(6, 8), torch.nn.Linear(8, 3)

    def forward(self, x, target):
        x = torch.sigmoid(self.first(x))
        x = torch.nn.functional.silu(self.second(x))
        return torch.nn.functional.mse_loss(x, target)


def subject_of(module, batch, rule=None):
    rule = rule or rule_for(module)
    with origins.wanted():
        program = captured(module, batch, rule=rule).programs[0]
    state = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    state |= rule.initial_state(dict(module.named_parameters()))
    given = iter(batch)
    arguments = tuple(
        state[slot.name].detach().clone() if slot.name in state else next(given)
        for slot in program.inputs
    )
    return Subject(program=program, arguments=arguments, random_state=torch.get_rng_state())


@pytest.fixture
def bent():
    return subject_of(Bent(), [torch.randn(5, 6), torch.randn(5, 3)])


def line_of(text):
    with open(__file__) as file:
        number = next(n for n, line in enumerate(file, 1) if text in line)
    return f"test_differences.py:{number} in forward"


SIGMOID = line_of("x = torch.sigmoid(self.first(x))")
PLAIN, HALF = setting("reference"), setting("half")


def changed(program, target, becomes):
    """A copy of a program in which calls of one operator call another function."""
    graph = torch.fx.Graph()
    graph.output(graph.graph_copy(program.graph.graph, {}))
    module = torch.fx.GraphModule(program.graph, graph)
    for node in graph.nodes:
        if node.target is target:
            node.target = becomes
    module.recompile()
    return program.replace(graph=module)


def too_large(x):
    return torch.sigmoid(x) * 1.001


class Wrong(Interpreter):
    """Its code computes one operator wrongly."""

    name, manner = "wrong", "are compiled"

    def __init__(self, target=aten.sigmoid.default, becomes=too_large):
        self.target, self.becomes = target, becomes

    def compile(self, program):
        return super().compile(changed(program, self.target, self.becomes))


def with_lowering(lowering):
    target = Reference()
    target.lowerings = (lowering,)
    return Setting(name="other", target=target)


def test_equal_settings_are_equal(bent):
    answer = why_different(bent, (PLAIN, with_lowering(Interpreter())))
    assert not answer.parted
    assert answer.status == 0
    assert {each.name for each in answer.results} >= {"output 'output0'", "parameter 'first.bias'"}
    assert "equal but for rounding" in str(answer)
    assert "other runs the program through interpreter: every program can be interpreted" in str(
        answer
    )


def test_wrong_code_is_found_at_its_operation(bent):
    said = []
    answer = why_different(bent, (PLAIN, with_lowering(Wrong())), said.append)
    made = answer.blamed
    assert answer.status == 1
    assert (made.operation.operator, made.operation.phase) == ("aten.sigmoid.default", "forward")
    assert made.operation.line == SIGMOID
    assert made.by == "code of lowering wrong"
    assert made.elements == (40, 40)
    assert made.operation.errors[0] < 1e-6
    assert made.operation.errors[1] == pytest.approx(1e-3, rel=1e-3)
    assert len(said) < 10  # of some 40 operations, by halves
    assert "part at aten.sigmoid.default" in str(answer)


def test_the_first_setting_may_be_the_wrong_one(bent):
    errors = why_different(bent, (with_lowering(Wrong()), PLAIN)).blamed.operation.errors
    assert errors[0] > 1e-4 > errors[1]


def test_wrong_code_of_backward_has_the_line_of_forward(bent):
    wrong = Wrong(aten.sigmoid_backward.default, lambda grad, y: grad * y)
    made = why_different(bent, (PLAIN, with_lowering(wrong))).blamed.operation
    assert (made.operator, made.phase) == ("aten.sigmoid_backward.default", "backward")
    assert made.line.startswith(SIGMOID.partition(" in ")[0])


def sigmoids_are_tanh(program):
    return changed(program, aten.sigmoid.default, aten.tanh.default)


def does_nothing(program):
    return program


class WrongPass(Interpreter):
    """One of its passes changes what is computed."""

    name, passes = "wrong pass", (does_nothing, sigmoids_are_tanh, does_nothing)


def test_a_wrong_pass_is_found_with_the_operation(bent):
    answer = why_different(bent, (PLAIN, with_lowering(WrongPass())))
    assert answer.blamed.by == "pass sigmoids_are_tanh"
    assert answer.blamed.operation.operator == "aten.tanh.default"
    assert answer.blamed.operation.line == SIGMOID


def test_a_wrong_common_pass_is_found_too(bent, monkeypatch):
    from abele import passes

    monkeypatch.setattr(passes, "PIPELINE", (*passes.PIPELINE, sigmoids_are_tanh))
    answer = why_different(bent, (PLAIN, with_lowering(Interpreter())))
    assert answer.blamed.by == "pass sigmoids_are_tanh"


class Large(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(4))

    def forward(self, x):
        squares = (self.weight * x * 300) ** 2
        return torch.nn.functional.l1_loss(squares / 9e4, torch.zeros(4))


def test_half_is_found_where_it_overflows():
    answer = why_different(subject_of(Large(), [torch.rand(4) + 1]), (PLAIN, HALF))
    made = answer.blamed
    assert made.operation.operator == "aten.pow.Tensor_Scalar"
    assert made.operation.line == line_of("squares = (self.weight")
    assert made.by == "type half"
    assert "not finite" in made.why
    assert "half not finite" in str(answer)
    assert "half is first not finite at aten.pow.Tensor_Scalar (pow_1)" in answer.notes[0]


class Cancelling(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.rand(16))

    def forward(self, x):
        large = self.weight * x + 1000
        small = large - 1000
        return torch.nn.functional.l1_loss(small, torch.zeros(16))


def test_half_is_found_where_digits_cancel():
    answer = why_different(subject_of(Cancelling(), [torch.rand(16)]), (PLAIN, HALF))
    assert answer.blamed.operation.line == line_of("small = large - 1000")
    assert "magnifies the rounding of its operands" in answer.blamed.why
    assert len({(each.operator, each.line, each.phase) for each in answer.worst}) > 2


@pytest.mark.parametrize("name", sorted(MODELS.keys() - {"affine"}))  # which has no loss
def test_float32_is_as_good_as_its_tolerance(name):
    model = MODELS[name]
    module, batch = model.fresh(), model.batch()
    answer = why_different(subject_of(module, batch), (PLAIN, setting("float64")))
    assert not answer.parted, str(answer)
    assert all(each.errors[1] == 0 for each in answer.results)


@pytest.mark.compiler
def test_wrong_generated_code_is_found(bent, monkeypatch):
    rule = Rule(plain("abele::sigmoid({0}) * 1.001f", 1), floating=True)
    monkeypatch.setitem(RULES, aten.sigmoid.default, rule)
    answer = why_different(bent, (PLAIN, setting("cpu:emitted")))
    assert answer.blamed.operation.operator == "aten.sigmoid.default"
    assert answer.blamed.by == "code of lowering emitted"


@pytest.mark.compiler
def test_right_generated_code_is_equal(bent):
    answer = why_different(bent, (setting("cpu"), setting("cpu:emitted")))
    assert not answer.parted, str(answer)


class Picky(Interpreter):
    name = "picky"

    def why_not(self, program):
        return "it has a sigmoid."


def test_a_lowering_that_cannot_run_the_program_says_so(bent):
    picky = dataclasses.replace(with_lowering(Picky()), lowering=Picky())
    with pytest.raises(
        DifferenceError, match="'picky' cannot run program 'step': it has a sigmoid"
    ):
        why_different(bent, (PLAIN, picky))


def test_settings_have_names(monkeypatch):
    assert setting("half").dtype is torch.float16
    assert setting("float32").dtype is None
    with pytest.raises(DifferenceError, match=r"'fp8' is no way to run a program. Choose two of"):
        setting("fp8")
    monkeypatch.setattr(type(get_target("cpu")), "cannot_compile", lambda self: "no compiler.")
    with pytest.raises(DifferenceError, match="'cpu:emitted' cannot be used here: no compiler"):
        setting("cpu:emitted")
    monkeypatch.setattr(type(get_target("cpu")), "cannot_compile", lambda self: None)
    with pytest.raises(DifferenceError, match=r"no lowering 'x', but .*emitted"):
        setting("cpu:x")
