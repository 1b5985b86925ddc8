"""Annotations reach the captured program as marks, and change no number."""

import json

import pytest
import torch

import poptorch
from helpers.wrapping import Calls, inference, options

FLOATS = torch.linspace(-1, 1, 8).reshape(2, 4)
aten = torch.ops.aten


def captured(forward, *inputs):
    """The operators of a captured function with their marks."""
    wrapped = inference(forward)
    wrapped.compile(*(inputs or (FLOATS,)))
    nodes = wrapped._executable.captured.programs[0].graph.graph.nodes
    return {n.target: n.meta["custom"] for n in nodes if n.op == "call_function"}


# --- names


def test_name_scopes_prefix_names():
    def forward(x):
        with poptorch.NameScope("outer"):
            x = torch.sin(x)
            with poptorch.NameScope("inner"):
                x = torch.cos(x)
        return torch.tanh(x)

    program = captured(forward)
    scope = {operator: custom.get("scope") for operator, custom in program.items()}
    assert scope[aten.sin.default] == "outer"
    assert scope[aten.cos.default] == "outer/inner"
    assert scope[aten.tanh.default] == ""
    assert torch.equal(forward(FLOATS), torch.tanh(torch.cos(torch.sin(FLOATS))))


def test_the_operators_that_programs_call_by_name():
    def forward(x):
        torch.ops.poptorch.push_name_scope("pushed")
        x = torch.sin(x)
        torch.ops.poptorch.pop_name_scope()
        x = torch.ops.poptorch.internal_cast(x, "FLOAT16")
        return torch.ops.poptorch.internal_cast(torch.cos(x), "FLOAT")

    program = captured(forward)
    assert program[aten.sin.default]["scope"] == "pushed"
    assert program[aten.cos.default]["scope"] == ""
    assert not any("poptorch" in str(operator) for operator in program)
    expected = torch.cos(torch.sin(FLOATS).half()).float()
    assert torch.equal(forward(FLOATS), expected)
    assert torch.equal(inference(forward)(FLOATS), expected)
    with pytest.raises(poptorch.Error, match=r"internal_cast knows .*'INT'"):
        torch.ops.poptorch.internal_cast(FLOATS, "INT")


# --- attributes


def test_attributes_nest_and_are_restored():
    layer = poptorch.Attribute(__outline={"layer": "embedding"})

    def forward(x):
        with layer:
            x = torch.sin(x)
            with poptorch.Attribute(__outline={"layer": "inner"}, other={"k": 1}):
                x = torch.cos(x)
            with layer:
                x = torch.tan(x)
            x = torch.sinh(x)
        return torch.tanh(x)

    program = captured(forward)
    embedding = {"__outline": {"layer": "embedding"}}
    assert program[aten.sin.default]["attributes"] == embedding
    assert program[aten.cos.default]["attributes"] == {
        "__outline": {"layer": "inner"},
        "other": {"k": 1},
    }
    assert program[aten.tan.default]["attributes"] == embedding
    assert program[aten.sinh.default]["attributes"] == embedding
    assert "attributes" not in program[aten.tanh.default]
    assert torch.equal(forward(FLOATS), inference(forward)(FLOATS))


def test_attributes_as_text():
    attributes = {"a": 1, "b": [1.5, 2.5], "c": "text"}
    assert poptorch.accessAttributes(json.dumps(attributes)) == attributes
    for wrong in (3, "no json", "[1]"):
        with pytest.raises(ValueError, match=r"takes a string|text of a JSON object"):
            poptorch.accessAttributes(wrong)


# --- identities


def test_nop_is_a_copy():
    x = FLOATS.clone()
    assert torch.equal(poptorch.nop(x), x)
    assert torch.equal(inference(poptorch.nop)(x), x)
    changed = inference(lambda x: (poptorch.nop(x).add_(1), x))(x)
    assert torch.equal(changed[0], FLOATS + 1)
    assert torch.equal(changed[1], FLOATS)


def test_available_memory_is_noted_at_the_operator():
    def forward(x):
        return poptorch.set_available_memory(torch.sin(x), 0.3) + 1

    assert captured(forward)[aten.sin.default]["available_memory_proportion"] == 0.3
    assert poptorch.set_available_memory(FLOATS, 0.3) is FLOATS
    assert torch.equal(inference(forward)(FLOATS), forward(FLOATS))


@pytest.mark.parametrize(
    "call", [poptorch.nop, lambda x: poptorch.set_available_memory(x, 0.5), poptorch.getIpuTensorId]
)
def test_only_tensors_can_be_annotated(call):
    with pytest.raises(poptorch.Error, match=r"takes a torch\.Tensor, found a list"):
        call([FLOATS])


def test_tensors_of_a_capture_have_numbers():
    seen = []

    def forward(x, y):
        z = x + y
        seen.extend(map(poptorch.getIpuTensorId, (x, y, z, x)))
        return z

    captured(forward, FLOATS, FLOATS)
    assert all(type(number) is int for number in seen)
    assert seen[0] == seen[3]
    assert len(set(seen)) == 3
    with pytest.raises(poptorch.Error, match="lives on the host"):
        poptorch.getIpuTensorId(FLOATS)


# --- overlapped transfers

OVERLAP = poptorch.OverlapMode.OverlapDeviceIterationLoop
BOTH = (poptorch.set_overlap_for_input, poptorch.set_overlap_for_output)


def overlapping(tiles=32, mode=poptorch.OutputMode.All, strategy=None):
    made = options(outputMode=mode)
    made.setExecutionStrategy(strategy or poptorch.ShardedExecution())
    if tiles:
        made.TensorLocations.numIOTiles(tiles)
    return made


def run(forward, made):
    return poptorch.inferenceModel(Calls(lambda self, *a: forward(*a)), made)(FLOATS)


def test_structures_of_tensors_pass_unchanged():
    nested = {"a": [FLOATS, (FLOATS, FLOATS)], "b": FLOATS}
    for mark in BOTH:
        assert mark(nested, OVERLAP) is nested

    def forward(x):
        x = poptorch.set_overlap_for_input([x], OVERLAP)[0]
        return poptorch.set_overlap_for_output({"sum": x + 1}, OVERLAP)

    assert torch.equal(run(forward, overlapping())["sum"], FLOATS + 1)


@pytest.mark.parametrize("mark", BOTH)
def test_only_structures_of_tensors_and_modes(mark):
    with pytest.raises(poptorch.Error, match="found 3 of type int in it"):
        mark([FLOATS, {"a": 3}], OVERLAP)
    with pytest.raises(AssertionError, match=r"poptorch\.OverlapMode, not 'no_overlap'"):
        mark(FLOATS, "no_overlap")


@pytest.mark.parametrize("mark", BOTH)
@pytest.mark.parametrize(
    ("made", "message"),
    [
        ({"strategy": poptorch.PipelinedExecution()}, "Overlapped IO is not supported"),
        ({"tiles": 0}, "No IO tiles allocated.*at least 32"),
        ({"mode": poptorch.OutputMode.Final}, "Unsupported output mode.*Final"),
    ],
)
def test_overlap_has_requirements(mark, made, message):
    with pytest.raises(poptorch.Error, match=message):
        run(lambda x: mark(x, OVERLAP), overlapping(**made))
    result = run(lambda x: mark(x, poptorch.OverlapMode.NoOverlap), overlapping(**made))
    assert torch.equal(result, FLOATS)


def test_only_inputs_are_inputs():
    with pytest.raises(poptorch.Error, match="not an input of the model"):
        run(lambda x: poptorch.set_overlap_for_input(x + 1, OVERLAP), overlapping())
