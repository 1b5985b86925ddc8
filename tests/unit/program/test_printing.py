"""Programs as text: Python that parses, with what a reader wants to know."""

import ast

import pytest
import torch

from abele import passes
from abele.program.core import is_library, type_text, user_line
from helpers.models import MODELS
from helpers.runs import captured, rule_for

DENSE = MODELS["dense"]


@pytest.fixture(scope="module")
def step():
    module = DENSE.fresh()
    return captured(module, DENSE.batch(), None, rule_for(module)).programs[0]


@pytest.mark.parametrize("name", MODELS)
def test_the_text_is_python(name):
    model = MODELS[name]
    program = captured(model.fresh(), model.batch()).programs[0]
    for provenance in (False, True):
        (function,) = ast.parse(program.text(provenance=provenance)).body
        assert function.name == "forward"
        assert len(function.args.args) == len(program.inputs)


class Alike(torch.nn.Module):
    """Names that look alike as identifiers, and like those of values."""

    def __init__(self, swapped):
        super().__init__()
        self.a = torch.nn.ParameterDict({"b": torch.ones(2), "0": torch.ones(2)})
        self.a_b, self.v1 = torch.nn.Parameter(torch.ones(2)), torch.nn.Parameter(torch.ones(2))
        self.swapped = swapped

    def forward(self, x):
        first, second = (self.a_b, self.a["b"]) if self.swapped else (self.a["b"], self.a_b)
        return (x * first - second) / self.v1 + self.a["0"]


def test_names_that_collide_as_identifiers_stay_apart():
    program = captured(Alike(False), (torch.ones(2),)).programs[0]
    (function,) = ast.parse(program.text()).body
    names = [argument.arg for argument in function.args.args]
    assert names == ["a_b", "v1", "a_0", "a_b_", "input0"]
    assert "v1_ = " in program.text()
    swapped = captured(Alike(True), (torch.ones(2),)).programs[0]
    assert program.fingerprint() != swapped.fingerprint()


def test_parameters_show_type_role_and_writes(step):
    assert "    fc1_weight,  # f32[8, 6] parameter, written\n" in step.text()
    assert "    fc1_weight_momentum_buffer,  # f32[8, 6] optimizer_state, written\n" in step.text()
    assert "    input0,  # f32[4, 6] input\n" in step.text()


def test_phases_and_source_lines_are_shown(step):
    text = step.text()
    phases = [text.index(f"# -- {phase}") for phase in ("forward", "backward", "update")]
    assert phases == sorted(phases)
    assert "# models.py:" in text
    assert " in forward\n" in text


def test_the_header_tells_the_history(step):
    lines = passes.run(step).text().splitlines()
    assert lines[0] == "# program step"
    stages = [line.split(":")[0] for line in lines[1:5]]
    assert stages == ["# capture", "# identities", "# common_subexpressions", "# dead_code"]


def test_the_canonical_text_knows_no_lines_and_times(step):
    text = step.text(provenance=False)
    assert ".py" not in text
    assert " ms" not in text
    assert "# --" not in text
    assert text.startswith("def step(\n")


def test_constants_are_shown():
    model = torch.nn.Module()
    factor = torch.ones(3)
    model.forward = lambda x: x * factor
    text = captured(model, (torch.ones(2, 3),)).programs[0].text()
    assert "_tensor_constant0 = constant('_tensor_constant0')  # f32[3]" in text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (torch.zeros(16, 1), "f32[16, 1]"),
        (torch.zeros((), dtype=torch.int64), "i64[]"),
        (torch.zeros(2, dtype=torch.bfloat16), "bf16[2]"),
        (torch.zeros(2, dtype=torch.complex64), "torch.complex64[2]"),
        ((torch.zeros(1), torch.zeros(2, dtype=torch.bool)), "(f32[1], b8[2])"),
        (None, "NoneType"),
    ],
)
def test_type_text(value, text):
    assert type_text(value) == text


FRAME = '  File "{}", line {}, in forward\n    x = f(x)\n'
TORCH = f"{torch.__path__[0]}/nn/functional.py"


def test_the_user_line_is_the_innermost_outside_of_torch_and_this_project():
    trace = FRAME.format("/home/me/train.py", 1) + FRAME.format("/home/me/net.py", 7)
    trace += FRAME.format(TORCH, 9) + FRAME.format(passes.__file__, 11)
    assert user_line(trace) == ("/home/me/net.py", 7, "forward")


@pytest.mark.parametrize("trace", [None, "", FRAME.format(TORCH, 3)])
def test_there_may_be_no_user_line(trace):
    assert user_line(trace) is None


@pytest.mark.parametrize("folder", ["abele", "torch", "poptorch"])
def test_a_project_in_a_folder_of_our_name_is_the_users(folder):
    assert not is_library(f"/home/me/{folder}/examples/net.py")
    assert is_library(TORCH)
    assert is_library("<eval_with_key>.3")
