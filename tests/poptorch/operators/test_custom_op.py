"""custom_op: operators of the program's own, by decorator or by torch.library."""

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.wrapping import inference, options, sgd, weights
from poptorch._forward import custom_op as _custom_op

torch.library.define("com_acme_library::scale", "(Tensor x, float factor, int[] shift) -> Tensor")


@torch.library.impl("com_acme_library::scale", "CompositeImplicitAutograd")
def _scale(x, factor, shift):
    return x * factor + sum(shift)


@pytest.fixture(autouse=True)
def _registry():
    """Leaves the registry as it was."""
    before = dict(_custom_op._registered)
    yield
    _custom_op._registered.clear()
    _custom_op._registered.update(before)


def cubes(inputs, attributes):
    """x ** 3 * factor, and how many there are."""
    (x,) = inputs
    return [x**3 * attributes.get("factor", 1.0), torch.full((), x.numel())]


def cube(x, version=1, **attributes):
    examples = [x, torch.zeros((), dtype=torch.int64)]
    return poptorch.custom_op([x], "Cube", "com.acme", version, examples, attributes)


def test_a_registered_function_becomes_part_of_the_program():
    poptorch.register_custom_op("Cube", "com.acme")(cubes)
    kinds = []

    def forward(x):
        results = cube(x, factor=2.0)
        kinds.append(type(results))
        return results

    output = inference(forward)(torch.tensor([1.0, 2.0]))
    assert [each.tolist() for each in output] == [[2.0, 16.0], 2]
    assert kinds == [list]


class Trained(torch.nn.Module):
    def __init__(self, operator):
        super().__init__()
        torch.manual_seed(0)
        self.fc = torch.nn.Linear(3, 3)
        self.operator = operator

    def forward(self, x, target):
        return F.mse_loss(self.operator(self.fc(x)), target)


def after_a_step(operator):
    model = Trained(operator)
    generator = torch.Generator().manual_seed(1)
    batch = [torch.randn(4, 3, generator=generator) for _ in range(2)]
    poptorch.trainingModel(model, options(), sgd(model))(*batch)
    return weights(model)


def test_the_gradient_is_that_of_autograd():
    poptorch.register_custom_op("Cube", "com.acme")(cubes)
    output = after_a_step(lambda x: cube(x, factor=2.0)[0])
    assert torch.equal(output, after_a_step(lambda x: x**3 * 2.0))


def test_the_gradient_can_be_given():
    def backward(gradients, inputs, attributes):
        assert attributes == {"slope": 0.5}
        return gradients[0] * attributes["slope"] * torch.ones_like(inputs[0])

    @poptorch.register_custom_op("Round", "com.acme", backward=backward)
    def rounded(inputs, attributes):
        return inputs[0].round()

    def straight_through(x):
        return poptorch.custom_op([x], "Round", "com.acme", 1, [x], {"slope": 0.5})[0]

    def expected(x):
        return x * 0.5 + (x.round() - x * 0.5).detach()

    torch.testing.assert_close(after_a_step(straight_through), after_a_step(expected))


def test_operators_of_torch_library_are_found_by_domain_and_name():
    def forward(x):
        attributes = {"factor": 3.0, "shift": (1, 2)}
        return poptorch.custom_op([x], "scale", "com.acme.library", 1, [x], attributes)

    assert inference(forward)(torch.ones(2))[0].tolist() == [6.0, 6.0]


def test_arguments_that_do_not_fit_the_operator_are_named():
    def forward(x):
        return poptorch.custom_op([x], "scale", "com.acme.library", 1, [x], {"power": 3.0})

    with pytest.raises(poptorch.Error, match=r"scale cannot be called with 1 tensors.*power"):
        inference(forward)(torch.ones(2))


def test_an_unknown_operator_says_how_to_register_one():
    with pytest.raises(
        poptorch.Error,
        match=r"no custom operator 'Cube' of domain 'com\.acme'.*register_custom_op\(\"Cube\".*"
        r"torch\.ops\.com_acme\.Cube.*original's devices cannot run",
    ):
        inference(cube)(torch.ones(2))


def test_the_version_is_compared_if_one_was_registered():
    poptorch.register_custom_op("Cube", "com.acme", 2)(cubes)
    inference(lambda x: cube(x, version=2))(torch.ones(2))
    with pytest.raises(poptorch.Error, match=r"version 1; registered are .*Cube version 2"):
        inference(cube)(torch.ones(2))


@pytest.mark.parametrize(
    "example", [torch.zeros(3), torch.zeros(2, dtype=torch.int32), torch.zeros(1, 2)]
)
def test_results_unlike_the_examples_are_refused(example):
    poptorch.register_custom_op("Negate", "com.acme")(lambda inputs, attributes: -inputs[0])
    with pytest.raises(poptorch.Error, match=r"returns \['float32\[2\]'\], the example outputs"):
        inference(lambda x: poptorch.custom_op([x], "Negate", "com.acme", 1, [example]))(
            torch.ones(2)
        )


def test_on_the_host_the_results_are_zeros():
    result = cube(torch.ones(2))
    assert [each.tolist() for each in result] == [[0.0, 0.0], 0]
    assert result[1].dtype is torch.int64


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        ({1: 2}, "must be strings"),
        ({"a": None}, "Attribute values"),
        ({"a": [torch.ones(1)]}, "Attribute values"),
        ({"a": {"b": 1}}, "Attribute values"),
        ({"a": [1, 2.0]}, "must all be the same"),
        ({"a": ("x", 1)}, "must all be the same"),
        ({"a": "Zürich"}, "non-ASCII"),
        ({"a": ["x", "Zürich"]}, "non-ASCII"),
        ({"ä": 1}, "non-ASCII"),
    ],
)
def test_illegal_attributes(attributes, words):
    x = torch.ones(1)
    with pytest.raises(ValueError, match=words):
        poptorch.custom_op([x], "Cube", "com.acme", 1, [x], attributes)


@pytest.mark.parametrize("value", [1, 1.5, "text", [1, 2], (1.5,), ["a", "b"], []])
def test_legal_attributes_arrive_as_they_are(value):
    seen = []

    @poptorch.register_custom_op("Look", "com.acme")
    def look(inputs, attributes):
        seen.append(attributes)
        return inputs[0] + 1

    inference(lambda x: poptorch.custom_op([x], "Look", "com.acme", 1, [x], {"value": value}))(
        torch.ones(1)
    )
    assert seen == [{"value": value}]


# Operators that the original ships


def fast_gather(values, indices, **attributes):
    example = torch.zeros(indices.shape, dtype=values.dtype)
    names = ("FastGatherLastDim", "poptorch.custom_ops")
    return poptorch.custom_op([values, indices], *names, 1, [example], attributes)[0]


@pytest.mark.parametrize("attributes", [{}, {"axis": -1}, {"axis": 2}], ids=str)
@pytest.mark.parametrize("kind", [torch.float32, torch.half])
def test_fast_gather_takes_the_last_dimension(kind, attributes):
    torch.manual_seed(1)
    values, indices = torch.randn(3, 4, 6).to(kind), torch.randint(0, 6, (3, 4, 5))
    output = inference(lambda x, i: fast_gather(x, i, **attributes))(values, indices)
    assert torch.equal(output, torch.gather(values, -1, indices))


def test_fast_gather_passes_its_gradient():
    columns = torch.tensor([0, 2, 2])
    output = after_a_step(lambda x: fast_gather(x, columns.expand(x.shape[0], 3)))
    torch.testing.assert_close(output, after_a_step(lambda x: x[:, columns]))


def test_fast_gather_refuses_other_uses():
    values, indices = torch.randn(3, 4), torch.zeros(3, 4, dtype=torch.long)
    with pytest.raises(
        poptorch.Error, match=r"along the last dimension, found axis=0.*torch.gather"
    ):
        inference(lambda x, i: fast_gather(x, i, axis=0))(values, indices)
    names = ("FastGatherLastDim", "poptorch.custom_ops")
    with pytest.raises(poptorch.Error, match="takes values and indices, found 1 inputs"):
        inference(lambda x: poptorch.custom_op([x], *names, 1, [x])[0])(values)


TARGETS, LENGTHS = (
    torch.tensor([[1, 2, 2], [3, 1, 0]]),
    (torch.tensor([6, 5]), torch.tensor([3, 2])),
)


class Recognition(torch.nn.Module):
    """Log probabilities of a dense layer, and the CTC loss of PopART or of torch."""

    def __init__(self, attributes, outputs=1):
        super().__init__()
        torch.manual_seed(0)
        self.fc, self.attributes, self.outputs = torch.nn.Linear(3, 4), attributes, outputs

    def forward(self, x, targets, *lengths):
        log_probs = torch.log_softmax(self.fc(x), -1)
        each = self.attributes.get("reduction") == "NoReduction"
        examples = [torch.zeros(2) if each else torch.zeros(()), log_probs][: self.outputs]
        results = poptorch.custom_op(
            [log_probs, targets, *lengths], "Ctc", "ai.graphcore", 1, examples, self.attributes
        )
        return poptorch.identity_loss(results[0], "sum"), *results

    def by_torch(self, x, reduction, blank):
        log_probs = torch.log_softmax(self.fc(x), -1)
        return F.ctc_loss(log_probs, TARGETS, *LENGTHS, blank, reduction)


@pytest.mark.parametrize(
    ("attributes", "reduction"),
    [
        ({"reduction": "Mean", "blank": 0}, "mean"),
        ({"reduction": "Sum", "blank": 0, "outDataType": 1}, "sum"),
        ({"reduction": "NoReduction"}, "none"),
        ({}, "mean"),
    ],
)
def test_ctc_of_popart_trains_as_that_of_torch(attributes, reduction):
    model, plain = Recognition(attributes), Recognition(attributes)
    x = torch.linspace(-1, 1, 36).reshape(6, 2, 3)
    wrapped = poptorch.trainingModel(model, options(), sgd(model))
    _, loss = wrapped(x, TARGETS, *LENGTHS)
    wrapped.copyWeightsToHost()
    expected = plain.by_torch(x, reduction, 0)
    expected.sum().backward()
    sgd(plain).step()
    torch.testing.assert_close(loss, expected.detach())
    torch.testing.assert_close(model.fc.weight, plain.fc.weight)


def test_ctc_of_popart_returns_the_gradient_of_each_sample():
    x = torch.linspace(-1, 1, 36).reshape(6, 2, 3)
    model = Recognition({"reduction": "Mean", "blank": 3}, outputs=2)
    targets = torch.tensor([[1, 2, 2], [0, 1, 0]])
    _, _, gradient = poptorch.inferenceModel(model, options())(x, targets, *LENGTHS)
    log_probs = torch.log_softmax(model.fc(x), -1).detach().requires_grad_()
    F.ctc_loss(log_probs, targets, *LENGTHS, 3, "sum").backward()
    torch.testing.assert_close(gradient, log_probs.grad)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ({"reduction": "mean"}, r"knows reduction \['Mean', 'Sum', 'NoReduction'\], found 'mean'"),
        ({"outDataType": 7}, r"knows outDataType \[0, 1, 10\], found 7"),
        ({"blank": 4}, r"knows blank \[0, 1, 2, 3\], found 4"),
        ({"zeroInfinity": 1}, r"knows zeroInfinity \[0\], found 1"),
        ({"Blank": 0}, r"knows Blank \[\], found 0"),
    ],
)
def test_ctc_of_popart_refuses_other_attributes(attributes, message):
    x = torch.zeros(6, 2, 3)
    with pytest.raises(poptorch.Error, match=message):
        poptorch.inferenceModel(Recognition(attributes), options())(x, TARGETS, *LENGTHS)
    with pytest.raises(poptorch.Error, match="input lengths and target lengths, found 1 inputs"):
        inference(lambda x: poptorch.custom_op([x], "Ctc", "ai.graphcore", 1, [x])[0])(x)
