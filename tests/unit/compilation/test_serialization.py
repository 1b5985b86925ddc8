"""A program that was written down and read again is the same program."""

import json
import warnings

import pytest
import torch
from torch import nn

from abele import StepConfig, passes
from abele._torch import make_fx
from abele.compilation.serialization import first_difference, from_text, to_text
from abele.errors import ProgramError, SerializationError
from abele.program import Program, Role, Slot
from abele.targets.reference import Interpreter
from helpers.models import MODELS
from helpers.runs import captured, rule_for


def programs_of(name, kind="adam", **config):
    model = MODELS[name]
    module = model.fresh()
    rule = None if name == "affine" else rule_for(module, kind, variable=("lr",))
    return captured(module, model.batch(), StepConfig(training=bool(rule), **config), rule).programs


def again(program):
    return from_text(*to_text(program))


@pytest.mark.parametrize("name", MODELS)
def test_a_program_survives(name):
    for program in programs_of(name):
        result = again(program)
        assert result.text() == program.text()
        assert result.fingerprint() == program.fingerprint()
        assert (result.inputs, result.outputs, result.history) == (
            program.inputs,
            program.outputs,
            program.history,
        )
        # Passes look at strides and phases, which the text does not show.
        assert passes.run(result).fingerprint() == passes.run(program).fingerprint()


def test_accumulate_and_apply_survive():
    for program in programs_of("dense", "sgd", gradient_accumulation=3):
        assert again(program).text() == program.text()


def zeros(program):
    torch.manual_seed(5)
    return [
        torch.rand(slot.shape).to(slot.dtype) if slot.dtype.is_floating_point
        else torch.ones(slot.shape, dtype=slot.dtype)
        for slot in program.inputs
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["batch norm and dropout", "embedding and layer norm"])
def test_a_program_that_was_read_computes_the_same_bits(name):
    (program,) = programs_of(name)
    results = []
    for each in (program, again(program)):
        inputs = zeros(program)
        torch.manual_seed(3)
        results.append([*Interpreter().compile(each).run(list(inputs)), *inputs])
    for left, right in zip(*results, strict=True):
        torch.testing.assert_close(left, right, rtol=0, atol=0)


def test_layouts_scopes_and_phases_survive():
    def kept(program):
        for node in program.graph.graph.nodes:
            value = node.meta.get("val")
            layout = value.stride() if isinstance(value, torch.Tensor) else value and len(value)
            yield layout, node.meta.get("custom")

    (program,) = programs_of("introduction")
    assert list(kept(again(program))) == list(kept(program))


class Weighted(nn.Module):
    """Uses a tensor that is neither a parameter nor a buffer, and a constant in a branch."""

    def __init__(self):
        super().__init__()
        self.plain = torch.tensor([1.0, -2.0, torch.inf], dtype=torch.bfloat16)

    def forward(self, x):
        return x * self.plain + torch.tensor([float("nan"), 1.0, 2.0])


def test_constants_travel_beside_the_text():
    (program,) = captured(Weighted(), (torch.ones(2, 3),)).programs
    text, constants = to_text(program)
    assert len(constants) == 2
    assert from_text(text, constants).fingerprint() == program.fingerprint()
    changed = {name: value + 1 for name, value in constants.items()}
    other = from_text(text, changed)
    assert other.fingerprint() != program.fingerprint()
    said = "program forward: the values or strides of its constants"
    assert first_difference(other, program) == said


def branching(x):
    constant = torch.tensor([5.0, 6.0])
    return [torch.cond(x.sum() > 0, lambda v: v.sin() + constant, lambda v: v.cos() - 1, (x,))]


def branching_program():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        graph = make_fx(branching, tracing_mode="fake")(torch.ones(2))
    slot = {"shape": (2,), "dtype": torch.float32}
    return Program(
        name="forward",
        graph=graph,
        inputs=(Slot(name="input0", role=Role.INPUT, **slot),),
        outputs=(Slot(name="output0", role=Role.OUTPUT, **slot),),
    )


def test_graphs_inside_operators_survive():
    program = branching_program()
    result = again(program)
    assert result.text() == program.text()
    assert sorted(name for name, _ in result.graph.named_children()) == sorted(
        name for name, _ in program.graph.named_children()
    )
    for x in (torch.tensor([1.0, 2.0]), torch.tensor([-1.0, -2.0])):
        assert torch.equal(result.graph(x)[0], program.graph(x)[0])
    assert not torch.equal(result.graph(-x)[0], result.graph(x)[0])


# -- what cannot be stored, and what must not be believed -----------------------------------


def affine_text():
    (program,) = programs_of("affine")
    return to_text(program)


def test_a_call_of_a_python_function_is_refused_by_name():
    (program,) = programs_of("affine")
    for node in program.graph.graph.nodes:
        if node.target is torch.ops.aten.mul.Tensor:
            node.target = torch.mul
    with pytest.raises(SerializationError, match=r"'mul' calls .* not an operator of torch\.ops"):
        to_text(program)


@pytest.mark.parametrize(
    "name",
    [
        "aten::no_such_operator.default",
        "aten::mul.NoSuchOverload",
        "ghost::mul.Tensor",
        "aten::mul",
        "load_library",
        "load_library::__call__.x",
        "aten::__class__.mro",
        "higher_order::no_such",
        "os.system",
    ],
)
def test_an_unknown_operator_is_named_and_nothing_else_is_looked_up(name):
    text, constants = affine_text()
    text = text.replace("aten::mul.Tensor", name)
    with pytest.raises(SerializationError, match=r"calls operator .* does not know here. Import"):
        from_text(text, constants)


@pytest.mark.parametrize("place", ["placeholder", "name", "get_attr", "kwarg", "program"])
def test_names_cannot_smuggle_code_into_the_generated_source(place, tmp_path):
    text, constants = affine_text()
    data = json.loads(text)
    evidence = tmp_path / "executed"
    code = f"x = __import__('pathlib').Path({str(evidence)!r}).touch()"
    nodes = data["graph"]["nodes"]
    if place == "placeholder":
        nodes[0]["target"] = code
    elif place == "name":
        nodes[3]["node_name"] = code
    elif place == "get_attr":
        nodes[0] |= {"op": "get_attr", "target": code}
    elif place == "kwarg":
        nodes[3]["kwargs"] = {code: 1}
    else:
        data["name"] = code
    with pytest.raises(SerializationError, match="is not an identifier"):
        from_text(json.dumps(data), constants)
    assert not evidence.exists()


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: data.pop("graph"),
        lambda data: data.update(format=99),
        lambda data: data["graph"]["nodes"][3].update(args=[{"node": "ghost"}]),
        lambda data: data["graph"]["nodes"][3].update(op="call_method"),
        lambda data: data["inputs"][0].update(role="king"),
        lambda data: data["graph"]["nodes"].reverse(),
    ],
    ids=["no graph", "format", "unknown node", "a method", "role", "order"],
)
def test_a_text_that_means_nothing_is_refused(damage):
    text, constants = affine_text()
    data = json.loads(text)
    damage(data)
    with pytest.raises(SerializationError):
        from_text(json.dumps(data), constants)


def test_a_program_that_breaks_a_rule_is_refused():
    text, constants = affine_text()
    data = json.loads(text)
    data["inputs"][0]["shape"] = [4]
    with pytest.raises(ProgramError, match="Slot 'scale'"):
        from_text(json.dumps(data), constants)


def test_the_first_difference_is_named():
    (left,), (right,) = programs_of("dense", "sgd"), programs_of("frozen parameters", "sgd")
    assert first_difference(left, left) is None
    assert "program step: " in first_difference(left, right)
