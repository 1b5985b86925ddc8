"""Loops and branches: results as on the host, one node whatever the count, and every refusal."""

import re

import pytest
import torch
from torch import nn

import poptorch
from helpers.wrapping import inference, options, trainer

X = torch.arange(12.0).reshape(3, 4) / 10


def refused(function, *inputs):
    """The message for a bad call, which host and capture share."""
    with pytest.raises(poptorch.Error) as host:
        function(*inputs)
    with pytest.raises(poptorch.Error) as captured:
        inference(function)(*inputs)
    assert captured.value.message == host.value.message
    return host.value.message


def same(function, *inputs):
    expected = function(*inputs)
    output = inference(function)(*inputs)
    assert type(output) is type(expected)
    torch.testing.assert_close(output, expected, rtol=0, atol=0)
    return output


given = torch.full((3, 4), 2.0)
LOOPS = {
    "a result alone": lambda a, b: a * 2,
    "in place": lambda a, b: [a.add_(1), b],
    "part in place": lambda a, b: [a, b[0].mul_(3) + b],
    "swapped": lambda a, b: (b, a),
    "one twice": lambda a, b: [b, b],
    "unchanged": lambda a, b: [a, b],
    "a constant": lambda a, b: [given, a + given],
    "a view": lambda a, b: [a.t().reshape(3, 4), b.view(4, 3).view(3, 4)],
    "its own tensors": lambda a, b: [a + torch.ones(4), b - torch.tensor([1.0, 2, 3, 4])],
}


@pytest.mark.parametrize("count", [0, 1, 3])
@pytest.mark.parametrize("body", LOOPS.values(), ids=LOOPS)
def test_a_loop_computes_what_python_does(body, count):
    if body is LOOPS["a result alone"]:
        same(lambda x: poptorch.for_loop(count, lambda a: body(a, a), [x]), X)
    else:
        same(lambda x: poptorch.for_loop(count, body, [x, x + 1]), X)


class Reading(nn.Module):
    """A body that reads parameters, buffers and values of its surroundings, and counts its runs."""

    def __init__(self, count):
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.register_buffer("shift", torch.ones(4))
        self.count, self.runs = count, [0]

    def forward(self, x):
        scale = x.mean()

        def body(a):
            self.runs[0] += 1
            return [torch.tanh(self.fc(a)) * scale + self.shift]

        return poptorch.for_loop(self.count, body, [x])


def test_a_body_is_traced_once_and_reads_its_surroundings():
    model = Reading(5)
    wrapped = poptorch.inferenceModel(model, options())
    output = wrapped(X)
    assert model.runs == [1]
    with torch.no_grad():
        torch.testing.assert_close(output, model(X), rtol=0, atol=0)
    with torch.no_grad():
        model.fc.weight.zero_()
    wrapped.copyWeightsToDevice()
    with torch.no_grad():
        torch.testing.assert_close(wrapped(X), model(X), rtol=0, atol=0)


def test_a_program_does_not_grow_with_the_count():
    wrapped = [poptorch.inferenceModel(Reading(count), options()) for count in (2, 1000)]
    lines = []
    for each in wrapped:
        each(X)
        lines.append(each.program_text().count("\n"))
    assert lines[0] == lines[1]
    assert "def while_loop_body_graph_0(" in wrapped[0].program_text()
    assert wrapped[0].executable_hash != wrapped[1].executable_hash


def test_loops_and_branches_nest():
    def inner(a):
        return poptorch.cond(a.sum() > 5, lambda b: b - 1, [a], lambda b: b + 1, [a])

    same(lambda x: poptorch.for_loop(4, inner, [x]), X)
    same(lambda x: poptorch.for_loop(2, lambda a: poptorch.for_loop(3, inner, [a]), [x]), X)


def test_random_numbers_of_a_body_are_torchs():
    def forward(x):
        return poptorch.for_loop(3, lambda a: a + torch.rand(3, 4), [x])

    wrapped = inference(forward)
    wrapped.compile(X)
    torch.manual_seed(5)
    output = wrapped(X)
    torch.manual_seed(5)
    torch.testing.assert_close(output, forward(X), rtol=0, atol=0)


SIDES = {
    "a value": (lambda a: a * 2, lambda a: [a + 1]),
    "the argument": (lambda a: a, lambda a: a),
    "in place": (lambda a: a.mul_(2), lambda a: [a.add_(1)]),
    "a constant": (lambda a: given, lambda a: torch.zeros(3, 4)),
}


@pytest.mark.parametrize("sides", SIDES.values(), ids=SIDES)
def test_a_branch_is_chosen_when_the_program_runs(sides):
    def forward(c, x):
        return poptorch.cond(c, sides[0], [x], sides[1], [x + 5])

    wrapped = inference(forward)
    for truth in (True, False, True):
        output = wrapped(torch.tensor(truth), X)
        assert isinstance(output, list)
        torch.testing.assert_close(output, forward(torch.tensor(truth), X), rtol=0, atol=0)


def test_a_condition_may_have_one_dimension_or_be_computed():
    same(lambda x: poptorch.cond(x.sum() > 0, lambda a: a, [x], lambda a: -a, [x]), X)
    same(lambda x: poptorch.cond(x[:1, 0], lambda a: a, [x], lambda a: -a, [x]), X)


def test_branches_may_take_different_numbers_of_arguments():
    same(lambda c, x: poptorch.cond(c, lambda: x + 1, [], lambda a, b: a + b, [x, x]),
         torch.tensor(True), X)  # fmt: skip


def test_the_hash_covers_what_is_inside_a_branch():
    def made(factor):
        wrapped = inference(
            lambda c, x: poptorch.cond(c, lambda a: a * factor, [x], lambda a: a, [x])
        )
        wrapped.compile(torch.tensor(True), X)
        return wrapped.executable_hash

    assert made(2) == made(2) != made(3)
    assert made(torch.full((4,), 2.0)) != made(torch.full((4,), 3.0))


# -- refusals ------------------------------------------------------------------------------

NO_LISTS = [X, (X,), [X, 1], [None], None]


@pytest.mark.parametrize("inputs", NO_LISTS, ids=["tensor", "tuple", "number", "none in", "none"])
def test_inputs_are_lists_of_tensors(inputs):
    for wrap in (lambda f: f, inference):
        with pytest.raises(ValueError, match=r"for_loop\(\) expects .* to be a list of tensors"):
            wrap(lambda x: poptorch.for_loop(2, lambda a: a, inputs))(X)
        for bad in ((inputs, [X]), ([X], inputs)):
            with pytest.raises(ValueError, match="then_inps and else_inps to be lists"):
                wrap(
                    lambda x, p=bad: poptorch.cond(
                        x.sum() > 0, lambda a: a, p[0], lambda a: a, p[1]
                    )
                )(X)


MISFITS = [
    (lambda a: [a, a], "number differs: 1 inputs, 2 results of the body"),
    (lambda a: a[:2], r"shape differs: \[3, 4\] in inputs, \[2, 4\] in results of the body"),
    (lambda a: a.int(), r"dtype differs: torch.float32 in inputs, torch.int32 in results"),
    (lambda a: 3, r"returns a list of tensors, found int"),
]


@pytest.mark.parametrize(("body", "message"), MISFITS)
def test_results_of_a_loop_fit_its_inputs(body, message):
    problem = refused(lambda x: poptorch.for_loop(2, body, [x]), X)
    assert re.search(message, problem)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda a: [a, a], "number differs: 1 results of then_body, 2 results of else_body"),
        (lambda a: a[:2], r"shape differs: \[3, 4\] in results of then_body, \[2, 4\]"),
        (lambda a: a.int(), r"dtype differs: torch.float32 in results of then_body, torch.int32"),
    ],
)
def test_both_branches_return_alike(other, message):
    with pytest.raises(poptorch.Error, match=message):
        inference(lambda x: poptorch.cond(x.sum() > 0, lambda a: a, [x], other, [x]))(X)


def test_counts_and_conditions_are_checked():
    assert "count as an int, found float" in refused(
        lambda x: poptorch.for_loop(2.0, lambda a: a, [x]), X
    )
    assert "condition of one element, found a tensor of shape [3, 4]" in refused(
        lambda x: poptorch.cond(x > 0, lambda a: a, [x], lambda a: a, [x]), X
    )
    assert "condition of one element, found bool" in refused(
        lambda x: poptorch.cond(True, lambda a: a, [x], lambda a: a, [x]), X
    )


def test_bodies_change_copies_only():
    def loop(x):
        y = x * 1

        def body(a):
            y.add_(1)
            return a

        return poptorch.for_loop(2, body, [x])

    with pytest.raises(poptorch.Error, match="changes a tensor of its surroundings in place"):
        inference(loop)(X)


class Trained(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.fc, self.function = nn.Linear(4, 4), function

    def forward(self, x):
        return nn.functional.mse_loss(self.function(self.fc(x))[0], x)


def test_training_is_refused():
    functions = {
        "for_loop": lambda y: poptorch.for_loop(2, lambda a: a, [y]),
        "cond": lambda y: poptorch.cond(y.sum() > 0, lambda a: a, [y], lambda a: a, [y]),
    }
    for name, function in functions.items():
        with pytest.raises(
            poptorch.Error, match=rf"poptorch\.{name}\(\) is only supported in inference\."
        ):
            trainer(Trained(function))(X)


def test_a_loop_does_not_warn_of_tensors_that_it_makes_itself(caplog):
    wrapped = inference(lambda x: poptorch.for_loop(2, lambda y: y * 2, [x])[0])
    assert wrapped(torch.ones(2)).tolist() == [4, 4]
    assert "No device set" not in caplog.text


def test_python_may_branch_on_what_follows_from_constants_and_shapes():
    def forward(x):
        if torch.arange(x.shape[1]).max() > 1:
            x = x * torch.tensor(x.shape).prod().item()
        return x[:, : int(torch.tensor(4.0).sqrt())]

    x = torch.randn(2, 3)
    assert torch.equal(inference(forward)(x), forward(x))


@pytest.mark.parametrize(
    "forward",
    [
        lambda x: x + 1 if x.max() > 0 else x,
        lambda x: x + 1 if torch.zeros(1).add_(x.max()) > 0 else x,
        lambda x: x + torch.rand(1).item(),
        lambda x: x + torch.zeros(1).uniform_().item(),
        lambda x: x + poptorch.ipu_print_tensor(torch.ones(1)).item(),
    ],
    ids=["input", "written from an input", "random", "random in place", "printed"],
)
def test_python_may_not_branch_on_anything_else(forward):
    with pytest.raises(poptorch.Error, match="forward reads the value of a tensor"):
        inference(forward)(torch.ones(3))
