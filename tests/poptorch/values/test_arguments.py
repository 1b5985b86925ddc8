"""Arguments and results: any structure goes in and comes out, and inputs can be written to."""

import collections
import dataclasses
import io
import itertools

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.wrapping import Calls, inference, sgd, trainer

Pair = collections.namedtuple("Pair", "left right")
X = torch.arange(6.0).reshape(2, 3)


class Ordered(collections.OrderedDict):
    pass


STRUCTURES = {
    "a tensor": lambda x: x * 2,
    "tuple": lambda x: (x, x + 1),
    "a tuple of one": lambda x: (x,),
    "list": lambda x: [x, x + 1],
    "nested": lambda x: ([x, (x + 1,)], {"k": [x * 3]}),
    "named tuple": lambda x: Pair(x, Pair(x + 1, x + 2)),
    "dict": lambda x: {"b": x, "a": x + 1},
    "ordered dict": lambda x: collections.OrderedDict([("b", x), ("a", x + 1)]),
    "subclass of ordered dict": lambda x: Ordered([("b", x), ("a", x + 1)]),
    "default dict": lambda x: collections.defaultdict(list, {"b": x}),
    "constants": lambda x: (x, 3, "text", None, [True]),
    "None": lambda x: None,
    "empty": lambda x: (),
}


def _same(left, right):
    assert type(left) is type(right)
    if isinstance(left, torch.Tensor):
        assert torch.equal(left, right)
    elif isinstance(left, dict):
        assert list(left) == list(right)
        _same(list(left.values()), list(right.values()))
    elif isinstance(left, tuple | list):
        assert len(left) == len(right)
        for a, b in zip(left, right, strict=True):
            _same(a, b)
    else:
        assert left == right


@pytest.mark.parametrize("function", STRUCTURES.values(), ids=STRUCTURES.keys())
def test_results_keep_their_structure(function):
    wrapped = inference(function)
    _same(wrapped(X), function(X))
    _same(wrapped(X + 1), function(X + 1))


def test_a_dictionary_made_from_fields_is_made_from_fields_again():
    @dataclasses.dataclass
    class Output(collections.OrderedDict):
        scores: torch.Tensor

        def __post_init__(self):
            self["scores"] = self.scores

    assert torch.equal(inference(lambda x: Output(scores=x + 1))(X).scores, X + 1)


def test_objects_that_hide_tensors_are_refused_with_the_way_out():
    @dataclasses.dataclass
    class Output:
        scores: torch.Tensor

    with pytest.raises(poptorch.Error, match=r"registerCustomArgParser\(Output"):
        inference(lambda x: Output(x))(X)


ARGUMENTS = {
    "tuple": ((X, X + 1),),
    "list in a tuple": (([X], X),),
    "dict": ({"a": X, "b": X + 1},),
    "named tuple": (Pair(X, X),),
    "with constants": ((X, 2, None, "text"),),
}


@pytest.mark.parametrize("arguments", ARGUMENTS.values(), ids=ARGUMENTS.keys())
def test_arguments_may_be_nested(arguments):
    wrapped = inference(lambda value: value)
    _same(wrapped(*arguments), arguments[0])
    _same(wrapped(*arguments), arguments[0])


class Flexible(torch.nn.Module):
    def forward(self, x, scale=2.0, *rest, shift=0.0, **more):
        return x * scale + shift + sum(rest) + sum(more.values())


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"),
    [
        pytest.param((X,), {}, X * 2, id="defaults"),
        pytest.param((), {"x": X}, X * 2, id="by name"),
        pytest.param((X, 3.0), {"shift": 1.0}, X * 3 + 1, id="keyword only"),
        pytest.param((X, 3.0, X, X), {}, X * 5, id="any number"),
        pytest.param((X,), {"a": X, "b": X}, X * 4, id="any name"),
    ],
)
def test_calls_are_bound_like_python_calls(args, kwargs, expected):
    wrapped = poptorch.inferenceModel(Flexible(), poptorch.Options())
    for _ in range(2):
        assert torch.equal(wrapped(*args, **kwargs), expected)


def test_a_default_may_be_given_or_left_out():
    wrapped = poptorch.inferenceModel(Flexible(), poptorch.Options())
    expected = wrapped(X)
    assert torch.equal(wrapped(X, 2.0), expected)
    assert torch.equal(wrapped(x=X, scale=2.0, shift=0.0), expected)


def test_the_same_tensor_may_be_returned_twice():
    def forward(x):
        y = x + 1
        return y, y

    first, second = inference(forward)(X)
    assert torch.equal(first, X + 1)
    assert torch.equal(second, X + 1)


def _add_one(x):
    x += 1
    return x.sum(1)


@pytest.mark.parametrize("iterations", [1, 2])
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda: torch.zeros(2, 3), id="contiguous"),
        pytest.param(lambda: torch.zeros(3, 2).t(), id="transposed"),
        pytest.param(lambda: torch.zeros(4, 3)[::2], id="every second row"),
        pytest.param(lambda: torch.zeros(2, 3, dtype=torch.float64), id="demoted type"),
    ],
)
def test_what_forward_writes_to_an_input_reaches_the_caller(make, iterations):
    x = make()
    wrapped = inference(_add_one, deviceIterations=iterations)
    for count in (1, 2):
        wrapped(x)
        assert torch.equal(x, torch.full_like(x, count))


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        pytest.param(torch.float64, torch.float32, id="double is demoted"),
        pytest.param(torch.bfloat16, torch.float32, id="bfloat16 becomes float"),
        pytest.param(torch.float16, torch.float16, id="half stays"),
        pytest.param(torch.int16, torch.int16, id="small integers stay"),
        pytest.param(torch.int8, torch.int8, id="the smallest stay"),
        pytest.param(torch.uint8, torch.uint8, id="bytes stay"),
        pytest.param(torch.bool, torch.bool, id="booleans stay"),
    ],
)
def test_types_of_inputs(given, seen):
    results = []
    x = X.to(given)
    result = inference(lambda x: (results.append(x.dtype), x)[1])(x)
    assert results == [seen]
    assert torch.equal(result, x.to(seen))


def test_a_constant_tensor_is_returned_as_it_was_with_a_warning():
    fixed = torch.arange(3)
    wrapped = inference(lambda x: (x + 1, fixed), deviceIterations=2)
    with pytest.warns(UserWarning, match="Output expected to be on the IPU but is on cpu"):
        _, constant = wrapped(X)
    assert torch.equal(constant, fixed)
    constant.zero_()
    assert torch.equal(wrapped(X)[1], torch.arange(3))


def test_a_result_can_be_saved_and_loaded_as_plain_weights():
    result = inference(lambda x: x + 1)(X)
    file = io.BytesIO()
    torch.save(result, file)
    file.seek(0)
    loaded = torch.load(file, weights_only=True)
    assert torch.equal(loaded, X + 1)
    assert not loaded.__dict__


def test_keys_of_a_dictionary_come_in_any_order_and_are_named_when_they_differ():
    values = {"a": torch.ones(2), "b": torch.full((2,), 2.0), "c": torch.full((2,), 4.0)}
    wrapped = inference(lambda d: d["a"] + 10 * d["b"] + 100 * d["c"])
    for order in itertools.permutations(values):
        assert wrapped({key: values[key] for key in order}).tolist() == [421.0, 421.0]
    with pytest.raises(poptorch.Error, match="Missing arguments: c"):
        wrapped({key: values[key] for key in "ab"})
    with pytest.raises(poptorch.Error, match="Unexpected arguments: d"):
        wrapped(values | {"d": values["a"]})
    with pytest.raises(poptorch.Error, match="Keys mismatch"):
        wrapped({key: values[key] for key in "ab"} | {"d": values["a"]})


def _losses(model, x):
    """Two losses of the same value."""
    return F.mse_loss(x * model.weight, x), F.l1_loss(x * model.weight, x)


def _by_autograd(function):
    model = Calls(function)
    output = model(X)
    loss = output if isinstance(output, torch.Tensor) else output[len(output) // 2]
    loss.sum().backward()
    return 2.0 - 0.1 * model.weight.grad


@pytest.mark.parametrize(
    "forward",
    [
        lambda self, x: poptorch.identity_loss(sum(_losses(self, x)), "none"),
        lambda self, x: poptorch.identity_loss(
            poptorch.identity_loss(x * self.weight, "mean") ** 2, "sum"
        ),
        lambda self, x: (x + self.weight, F.mse_loss(x * self.weight, x), x * 3),
    ],
    ids=["a sum of two", "nested", "between outputs"],
)
def test_a_nested_loss_and_one_between_other_outputs_train(forward):
    model = Calls(forward)
    output = trainer(model)(X)
    expected = Calls(forward)(X)
    torch.testing.assert_close(output, expected, check_dtype=True)
    torch.testing.assert_close(model.weight.detach(), _by_autograd(forward))


@pytest.mark.parametrize(("reduction", "gradient"), [("none", 1.0), ("sum", 1.0), ("mean", 1 / 6)])
def test_identity_loss_seeds_ones_ones_and_one_over_n(reduction, gradient):
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.zeros(2, 3))
    model.forward = lambda x: poptorch.identity_loss(model.weight * x, reduction)
    loss = trainer(model, sgd(model, 1.0))(X)
    assert loss.shape == ((2, 3) if reduction == "none" else ())
    torch.testing.assert_close(model.weight.detach(), -gradient * X)
    host = poptorch.identity_loss(X, reduction)
    assert torch.equal(host, X if reduction == "none" else getattr(X, reduction)())
