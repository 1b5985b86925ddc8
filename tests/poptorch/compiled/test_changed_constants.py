"""Arguments that are no tensors are part of the program: changing one between calls is refused."""

import dataclasses
import enum
import functools
import struct
import types
from collections import deque
from decimal import Decimal

import numpy
import pytest
import torch

import poptorch
from helpers.wrapping import inference, options, scorer, sgd

X = torch.ones(2)


@dataclasses.dataclass
class Batch:
    x: torch.Tensor
    scale: float = 2.0
    more: list = dataclasses.field(default_factory=list)
    _seen: int = 0


class Slotted:
    __slots__ = ("x",)

    def __init__(self, x):
        self.x = x


class Kind(enum.Enum):
    FIRST = 1
    SECOND = 2


def multiplied(factor):
    return lambda x: x * factor[0]


class Given(torch.nn.Module):
    """Computes a function of an input and a constant."""

    def __init__(self, function):
        super().__init__()
        self._function = function

    def forward(self, x, value):
        return x * self._function(value)


def given(function):
    return poptorch.inferenceModel(Given(function), options())


def _set(container, key, value):
    container[key] = value


# An argument, what forward computes with it, how it changes, and what the error names.
CHANGES = {
    "array": (numpy.ones(2), lambda a: a.sum(), lambda a: a.fill(3), "value:"),
    "array in a list": ([numpy.ones(2)], lambda v: v[0][0], lambda v: v[0].fill(3), r"value\[0\]:"),
    "array of objects": (
        numpy.array([[1], [2]], dtype=object).reshape(-1), lambda a: a[0], lambda a: _set(a, 0, 5),
        r"value\.flat\[0\]"),
    "array in a dictionary": (
        {"a": numpy.ones(2)}, lambda v: v["a"][0], lambda v: v["a"].fill(3), r"value\[a\]:"),
    "tensor of an object replaced": (
        Batch(torch.ones(2)), lambda b: b.x, lambda b: setattr(b, "x", torch.zeros(2)),
        r"value\.x: expected a tensor \[2\] torch\.float32 \(1\.0, 1\.0\), found .*\(0\.0, 0\.0\)"),
    "tensor of an object written": (
        Batch(torch.ones(2)), lambda b: b.x, lambda b: b.x.zero_(), r"value\.x:"),
    "tensor of an object written unseen": (
        Batch(torch.ones(2)), lambda b: b.x, lambda b: b.x.numpy().fill(3), r"value\.x:"),
    "number of an object": (
        Batch(torch.ones(2)), lambda b: b.scale, lambda b: setattr(b, "scale", 3.0),
        r"value\.scale: expected 2\.0, found 3\.0"),
    "private number of an object": (
        Batch(torch.ones(2)), lambda b: b._seen, lambda b: setattr(b, "_seen", 3), r"value\._seen"),
    "list of an object": (
        Batch(X, more=[1]), lambda b: len(b.more), lambda b: b.more.append(3), r"value\.more\[1\]"),
    "list of an object, shorter": (
        Batch(X, more=[1]), lambda b: len(b.more), lambda b: b.more.clear(),
        r"value\.more\[0\]: expected 1, found nothing"),
    "new attribute": (
        Batch(torch.ones(2)), lambda b: getattr(b, "y", 1), lambda b: setattr(b, "y", 3),
        r"value\.y: expected nothing, found 3"),
    "slots": (Slotted(1.0), lambda s: s.x, lambda s: setattr(s, "x", 3.0), r"value\.x"),
    "namespace": (
        types.SimpleNamespace(a=types.SimpleNamespace(b=1)), lambda n: n.a.b,
        lambda n: setattr(n.a, "b", 3), r"value\.a\.b"),
    "set": ({1, 2}, lambda s: sum(s), lambda s: s.add(3), "value: expected {1, 2}, found"),
    "deque": (deque([1]), lambda d: d[0], lambda d: d.append(3), r"value\[1\]"),
    "bytes": (bytearray(b"ab"), lambda b: b[0], lambda b: _set(b, 0, 3), "value: expected"),
    "enclosed": (multiplied(factor := [1]), lambda f: f(1.0), lambda f: _set(factor, 0, 3),
                 r"value\.factor\[0\]"),
    "partial": (functools.partial(sum, [1]), lambda p: p(), lambda p: p.args[0].append(2),
                r"value\.args\[0\]\[1\]"),
    "cycle": ((lambda n: (setattr(n, "me", n), n)[1])(types.SimpleNamespace(b=1)), lambda n: n.b,
              lambda n: setattr(n, "b", 2), r"value\.b"),
    "member": (types.SimpleNamespace(kind=Kind.FIRST), lambda n: n.kind.value,
               lambda n: setattr(n, "kind", Kind.SECOND), r"value\.kind"),
    "module": (torch.nn.Linear(1, 1), lambda m: m.weight.detach(), lambda m: m.weight.data.zero_(),
               r"value\._parameters\['weight'\]"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "function", "change", "named"), CHANGES.values(), ids=CHANGES)
def test_a_constant_that_changes_between_calls_is_refused_by_name(value, function, change, named):
    wrapped = given(function)
    first = wrapped(X, value)
    assert torch.equal(wrapped(X, value), first)
    change(value)
    with pytest.raises(poptorch.Error, match=f"Value mismatch for {named}"):
        wrapped(X, value)
    wrapped.destroy()
    wrapped(X, value)


def test_equal_constants_of_other_objects_are_accepted():
    class Several(torch.nn.Module):
        def forward(self, x, batch, array, f):
            return x * batch.x * float(array[0]) * f(1)

    wrapped = poptorch.inferenceModel(Several(), options())
    first = wrapped(X, Batch(torch.full((2,), 3.0)), numpy.ones(2), multiplied([2]))
    assert torch.equal(first, torch.full((2,), 6.0))
    again = wrapped(X, Batch(torch.full((2,), 3.0)), numpy.ones(2), multiplied([2]))
    assert torch.equal(first, again)
    with pytest.raises(poptorch.Error, match=r"Value mismatch for f: expected <function"):
        wrapped(X, Batch(torch.full((2,), 3.0)), numpy.ones(2), lambda x: x)
    with pytest.raises(poptorch.Error, match=r"Value mismatch for batch\.x.*registerCustomArg"):
        wrapped(X, Batch(torch.full((2,), 4.0)), numpy.ones(2), multiplied([2]))
    with pytest.raises(poptorch.Error, match=r"Value mismatch for array: .*\[3\]"):
        wrapped(X, Batch(torch.full((2,), 3.0)), numpy.ones(3), multiplied([2]))


def test_defaults_that_change_are_refused():
    table = numpy.ones(2)

    class Defaults(torch.nn.Module):
        def forward(self, x, table=table):
            return x * float(table[0])

    wrapped = poptorch.inferenceModel(Defaults(), options())
    assert torch.equal(wrapped(X), X)
    table.fill(2)
    with pytest.raises(poptorch.Error, match="Value mismatch for table"):
        wrapped(X)


def test_nan_is_equal_to_itself():
    wrapped = inference(lambda x, a, b: (x, a.sum(), b.x))
    arguments = X, numpy.full(2, numpy.nan), Batch(torch.full((2,), torch.nan), float("nan"))
    with pytest.warns(UserWarning, match="Output expected"):
        wrapped(*arguments)
    wrapped(*arguments)


def nan(payload=0):
    return struct.unpack(">d", struct.pack(">Q", 0x7FF8000000000000 | payload))[0]


def holding(value):
    return types.SimpleNamespace(held=value)


# Two constants that are equal in Python, or written alike, and give other results.
EQUAL = {
    "zeros": (0.0, -0.0, "value: expected 0.0, found -0.0"),
    "complex zeros": (0j, complex(0.0, -0.0), "value: expected 0j"),
    "zeros in a list": ([0.0], [-0.0], r"value\[0\]: expected 0.0"),
    "keys of a dictionary": ({1: X}, {True: X}, "value: Missing arguments: 1"),
    "zeros as keys": ({0.0: X}, {-0.0: X}, "value: Missing arguments: 0.0"),
    "payloads of NaN": (nan(), nan(1), "value: expected nan .bits 7ff8000000000000., found nan"),
    "zeros of an object": (holding(0.0), holding(-0.0), r"value\.held: expected 0\.0, found -0\.0"),
    "zeros of a set": ({0.0}, {-0.0}, r"value: expected \{0\.0\}"),
    "one in a set": ({1}, {True}, r"value: expected \{1\}"),
    "zeros of numpy": (numpy.float64(0.0), numpy.float64(-0.0), "value: expected"),
    "small zeros of numpy": (numpy.float32(0.0), numpy.float32(-0.0), "value: expected"),
    "decimal zeros": (Decimal("0"), Decimal("-0"), "value: expected"),
    "enclosed zeros": (multiplied([0.0]), multiplied([-0.0]), r"value\.factor\[0\]: expected 0"),
}


@pytest.mark.parametrize(("first", "second", "named"), EQUAL.values(), ids=EQUAL)
def test_constants_are_compared_by_bits(first, second, named):
    wrapped = given(lambda value: 1.0)
    wrapped(X, first)
    wrapped(X, first)
    with pytest.raises(poptorch.Error, match=f"mismatch for {named}"):
        wrapped(X, second)
    wrapped.destroy()
    wrapped(X, second)
    wrapped(X, second)


@pytest.mark.parametrize("make", [nan, lambda: complex(nan(), 0), lambda: [nan()]])
def test_a_new_object_of_nan_is_the_constant_that_it_was(make):
    wrapped = given(lambda value: 1.0)
    wrapped(X, make())
    wrapped(X, make())


def test_the_sign_of_zero_reaches_the_result():
    def signs(zero):
        wrapped = given(lambda value: value)
        return torch.signbit(wrapped(X, zero)).tolist()

    assert signs(0.0) == [False, False]
    assert signs(-0.0) == [True, True]


def test_an_iterator_is_refused():
    for made in (iter([X]), (x for x in [X])):
        with pytest.raises(
            poptorch.Error, match=r"Argument value of type .* gives its values once"
        ):
            given(next)(X, made)
    with pytest.raises(poptorch.Error, match=r"value\.a is a set of tensors, which has no order"):
        given(len)(X, types.SimpleNamespace(a={X}))


def test_the_models_own_tensors_are_no_constants():
    model = scorer()
    model.also = types.SimpleNamespace(weight=model.fc.weight, layer=model.fc)

    class Around(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self, x, target, also):
            return poptorch.identity_loss(also.layer(x) - target, "mean")

    around = Around()
    wrapped = poptorch.trainingModel(around, options(), sgd(around))
    arguments = torch.ones(2, 4), torch.ones(2, 3), model.also
    first, second = wrapped(*arguments), wrapped(*arguments)
    assert first != second


class Parser(poptorch.ICustomArgParser):
    def yieldTensors(self, struct):
        yield struct.x

    def reconstruct(self, original_structure, tensor_iterator):
        return dataclasses.replace(original_structure, x=next(tensor_iterator))


def test_what_a_parser_does_not_yield_is_constant():
    poptorch.registerCustomArgParser(Batch, Parser())
    try:
        wrapped = given(lambda b: b.x * b.scale)
        batch = Batch(torch.ones(2))
        assert torch.equal(wrapped(X, batch), X * 2)
        batch.x, batch._seen = torch.full((2,), 3.0), 5  # an input, and nothing that is public
        assert torch.equal(wrapped(X, batch), X * 6)
        batch.scale = 3.0
        with pytest.raises(poptorch.Error, match=r"Value mismatch for value\.scale"):
            wrapped(X, batch)
    finally:
        poptorch.registerCustomArgParser(Batch, None)
