"""Program.verify catches every broken rule; fingerprints see what matters."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from abele import StepConfig
from abele.errors import ProgramError
from abele.passes._edit import editable
from abele.program import identifier, marks_of, output_node, users_operator
from helpers.models import MODELS
from helpers.runs import captured, rule_for

aten = torch.ops.aten


@pytest.fixture(scope="module")
def step():
    model = MODELS["dense"]
    module = model.fresh()
    return captured(module, model.batch(), None, rule_for(module)).programs[0]


def with_slot(program, index, **changes):
    slots = list(program.inputs)
    slots[index] = dataclasses.replace(slots[index], **changes)
    return program.replace(inputs=tuple(slots))


def edited(program, edit):
    graph = editable(program)
    edit(graph.graph)
    graph.recompile()
    return program.replace(graph=graph)


def nodes(graph, target):
    return [node for node in graph.nodes if node.target is target]


def return_a_number(graph):
    output = output_node(graph.owning_module)
    output.args = ([3, *output.args[0][1:]],)


def forget_a_result(graph):
    output = output_node(graph.owning_module)
    output.args = (list(output.args[0][1:]),)


def write_into_a_value(graph):
    node = nodes(graph, aten.tanh.default)[0]
    with graph.inserting_after(node):
        graph.call_function(aten.relu_.default, (node,))


def copy_into_a_value(graph):
    node = nodes(graph, aten.tanh.default)[0]
    with graph.inserting_after(node):
        graph.call_function(aten.copy_.default, (node, node))


def add_into_a_slot(graph):
    copy = nodes(graph, aten.copy_.default)[0]
    copy.target = aten.add_.Tensor


def lose_a_write(graph):
    graph.erase_node(nodes(graph, aten.copy_.default)[0])


def forget_a_shape(graph):
    next(iter(graph.nodes)).meta.pop("val")


BROKEN = {
    "a slot less": (
        lambda p: p.replace(inputs=p.inputs[1:]),
        r"has 10 placeholders for 9 input slots",
    ),
    "two slots of one name": (
        lambda p: with_slot(p, 0, name="fc1.bias"),
        r"input slots named alike: \['fc1.bias'\]",
    ),
    "another shape": (
        lambda p: with_slot(p, 1, shape=(9,)),
        r"Slot 'fc1.bias' of program 'step' says \(9,\) torch.float32, its node .* holds \(\(8,\)",
    ),
    "another type": (
        lambda p: with_slot(p, 1, dtype=torch.int64),
        r"Slot 'fc1.bias' .* says \(8,\) torch.int64",
    ),
    "no shape": (lambda p: edited(p, forget_a_shape), r"Slot 'fc1.weight' .* holds None"),
    "an output less": (
        lambda p: p.replace(outputs=p.outputs[1:]),
        r"returns 2 values for 1 output slots",
    ),
    "a result less": (lambda p: edited(p, forget_a_result), r"returns 1 values for 2 output slots"),
    "a result that is no node": (
        lambda p: edited(p, return_a_number),
        r"Output 'output0' of program 'step' is not a node: 3",
    ),
    "an output of another shape": (
        lambda p: p.replace(outputs=p.outputs[::-1]),
        r"Slot 'output1' .* says \(\) torch.float32",
    ),
    "a value written in place": (
        lambda p: edited(p, write_into_a_value),
        r"writes in place at node 'relu_\w*' \(aten.relu_.default\), only copy_ into an input",
    ),
    "a copy into a value": (
        lambda p: edited(p, copy_into_a_value),
        r"writes in place at node 'copy_\w*' \(aten.copy_.default\)",
    ),
    "a slot written by another operator": (
        lambda p: edited(p, add_into_a_slot),
        r"writes in place .*aten.add_.Tensor",
    ),
    "a claimed write that is missing": (
        lambda p: edited(p, lose_a_write),
        r"claims to write \[.*'fc1.weight'.*\], writes \[",
    ),
    "a write that is not claimed": (
        lambda p: with_slot(p, 0, mutated=False),
        r"claims to write .*writes \[.*'fc1.weight'",
    ),
}


@pytest.mark.parametrize(("broken", "message"), BROKEN.values(), ids=BROKEN)
def test_a_broken_rule_is_named(step, broken, message):
    with pytest.raises(ProgramError, match=message):
        broken(step).verify()


def test_a_sound_program_is_returned(step):
    assert step.verify() is step


@pytest.mark.parametrize("name", [name for name in MODELS if name != "affine"])
def test_random_is_known(name):
    model = MODELS[name]
    program = captured(model.fresh(), model.batch()).programs[0]
    assert program.uses_random == model.random


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_attention_draws_random_numbers_with_dropout_alone(dropout):
    class Attention(torch.nn.Module):
        def forward(self, q):
            return F.scaled_dot_product_attention(q, q, q, dropout_p=dropout)

    program = captured(Attention(), (torch.zeros(1, 2, 4, 8),)).programs[0]
    assert program.uses_random == (dropout > 0)


def test_the_fingerprint_is_that_of_the_computation(step):
    module = MODELS["dense"].fresh(seed=99)
    again, *_ = captured(module, MODELS["dense"].batch(), None, rule_for(module)).programs
    slower, *_ = captured(module, MODELS["dense"].batch(), None, rule_for(module, lr=0.1)).programs
    assert again.history != step.history
    assert again.fingerprint() == step.fingerprint() != slower.fingerprint()


def test_a_variable_rate_is_not_part_of_the_fingerprint():
    def fingerprint(lr):
        module = MODELS["dense"].fresh()
        rule = rule_for(module, lr=lr, variable=["lr"])
        return captured(module, MODELS["dense"].batch(), None, rule).programs[0].fingerprint()

    assert fingerprint(0.1) == fingerprint(0.2)


@pytest.mark.parametrize(
    ("name", "expected"), [("fc.weight", "fc_weight"), ("0.bias", "_0_bias"), ("a-b c", "a_b_c")]
)
def test_identifiers_are_python(name, expected):
    assert identifier(name) == expected
    assert identifier(name).isidentifier()


def test_marks_of_a_node_are_what_was_written_on_it(step):
    phases = {marks_of(node).get("phase") for node in step.graph.graph.nodes}
    assert {"forward", "backward", "update"} <= phases
    assert marks_of(torch.fx.Graph().placeholder("unmarked")) == {}


def test_operators_of_the_user_are_named(step):
    @torch.library.custom_op("abele_tests::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    twice.register_fake(torch.empty_like)
    module = torch.nn.Identity()
    module.forward = lambda x: torch.ops.abele_tests.twice(x)
    programs = captured(module, [torch.ones(2)], StepConfig(training=False)).programs
    assert users_operator(programs[0]) == "abele_tests.twice.default"
    assert users_operator(step) is None
