"""Arguments of calls: inputs of a program, and values that it depends on."""

import contextlib
import math
import operator
from collections import namedtuple

import pytest
import torch

from abele.errors import CaptureError
from abele.functions.arguments import Arguments
from abele.functions.varying import Derived, Place, Slots, Unread, Varying
from abele.program import Role

Pair = namedtuple("Pair", "x y")


def ones(*shape, **options):
    return torch.ones(*shape, **options)


def test_tensors_are_the_inputs_and_others_the_values():
    given = Arguments((ones(2), {"scale": 2.0}), {"y": ones(3)})
    assert [(each.name, each.role) for each in given.named] == [
        ("input0", Role.INPUT),
        ("input1", Role.INPUT),
    ]
    assert [each.value.shape for each in given.named] == [(2,), (3,)]
    assert given.others == [2.0]


TAGGED = ones(2, 3)
TAGGED.tag = 1


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((ones(2, 3), 1.0), {}),
        ((ones(2, 3) * 5, 1.0), {}),
        ((ones(4, 3)[1:3], 1.0), {}),
    ],
)
def test_calls_with_the_same_layouts_are_accepted(args, kwargs):
    given = Arguments((ones(2, 3), 1.0), {})
    (accepted,) = given.accepts(args, kwargs)
    assert torch.equal(accepted, args[0])
    assert given.present[0] is args[0]


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((ones(3, 3), 1.0), {}),
        ((ones(3, 2).t(), 1.0), {}),
        ((ones(2, 3, dtype=torch.float64), 1.0), {}),
        ((ones(2, 3, requires_grad=True), 1.0), {}),
        ((TAGGED, 1.0), {}),
        ((ones(2, 3), 2.0), {}),
        ((ones(2, 3), 1), {}),
        ((ones(2, 3), True), {}),
        ((ones(2, 3), ones(())), {}),
        ((1.0, ones(2, 3)), {}),
        (([ones(2, 3)], 1.0), {}),
        ((ones(2, 3),), {}),
        ((ones(2, 3),), {"scale": 1.0}),
    ],
)
def test_other_calls_are_not(args, kwargs):
    assert Arguments((ones(2, 3), 1.0), {}).accepts(args, kwargs) is None


def test_calls_with_tensors_alone_are_compared_without_a_structure():
    given = Arguments((ones(2), ones(3)), {})
    assert given.accepts((ones(2), ones(3)), {}) is not None
    assert given.accepts((ones(2), ones(2)), {}) is None
    assert given.accepts((ones(2), 1.0), {}) is None
    assert given.accepts((ones(2),), {"y": ones(3)}) is None


@pytest.mark.parametrize(("after", "accepted"), [(0.0, True), (-0.0, False)])
def test_zeros_have_signs(after, accepted):
    given = Arguments((ones(2), 0.0), {})
    assert (given.accepts((ones(2), after), {}) is not None) == accepted


def test_nan_is_nan():
    given = Arguments((ones(2), float("nan")), {})
    assert given.accepts((ones(2), float("nan")), {}) is not None


LAYOUTS = {
    "transposed": torch.arange(6).view(2, 3).t(),
    "permuted": torch.arange(24).view(2, 3, 4).permute(2, 0, 1),
    "every second column": torch.arange(12).view(2, 6)[:, ::2],
    "expanded": torch.arange(3).expand(2, 3),
    "a number": torch.tensor(1),
}


@pytest.mark.parametrize("tensor", LAYOUTS.values(), ids=LAYOUTS)
def test_inputs_are_contiguous_and_rebuilt_in_their_layout(tensor):
    given = Arguments((tensor,), {})
    (value,) = given.inputs([tensor])
    assert value.is_contiguous()
    (rebuilt,), _ = given.rebuilt([value])
    assert torch.equal(rebuilt, tensor)
    assert (rebuilt + 1).stride() == (tensor + 1).stride()


def test_containers_are_rebuilt_with_other_tensors():
    given = Arguments((Pair(ones(2), [1.0, ones(3)]),), {"name": "a"})
    (pair,), kwargs = given.rebuilt([ones(2) * 2, ones(3) * 3])
    assert isinstance(pair, Pair)
    assert pair.x[0] == 2
    assert pair.y[1][0] == 3
    assert (pair.y[0], kwargs) == (1.0, {"name": "a"})


def test_values_that_differ_may_be_unread():
    first = Arguments((ones(2), 1, "a"), {})
    assert first.changed((ones(2), 2, "a"), {}) == {1: 2}
    assert first.changed((ones(2), 1, "b"), {}) == {2: "b"}
    assert first.changed((ones(2), 1), {}) == {}  # another structure
    assert [*first.changed((ones(2), object(), "a"), {})] == [1]
    given = Arguments((ones(2), 2, "a"), {}, unread={1: Unread(1, int)})
    (_, unread, name), _ = given.rebuilt([ones(2)])
    assert (type(unread), unread.what, name) == (Unread, 1, "a")
    assert unread.now(["x", 7]) == 7
    assert given.accepts((ones(2), 3, "a"), {}) is not None
    assert given.accepts((ones(2), 3, "b"), {}) is None


def test_objects_do_not_become_unread():
    assert Arguments((ones(2), object()), {}).changed((ones(2), object()), {}) == {}


COMPUTATIONS = [
    *(bool, int, float, len, iter, str, hash, abs, range, operator.neg),
    *(lambda u: u + 1, lambda u: 2 * u, lambda u: u == 1, lambda u: u < 1, lambda u: u[0]),
    *(lambda u: f"{u}", lambda u: ones(2) * u, lambda u: {u: 1}, lambda u: 1 in u, lambda u: u()),
]


@pytest.mark.parametrize("compute", COMPUTATIONS)
def test_nothing_computes_with_an_unread_argument(compute):
    unread = Unread(0, int)
    assert isinstance(unread, int)
    with pytest.raises(CaptureError, match="The value of a number is computed with"):
        compute(unread)
    assert unread.error is not None


def varying(number):
    """A number, and the slots that are made of it."""
    slots = Slots({0: number})
    return slots, slots.stand_ins[0]


def test_a_number_has_the_bits_that_it_has_without_a_slot():
    slots, found = varying(0.1)
    x = torch.rand(7)
    assert type(found) is Varying
    assert torch.equal(found * x, 0.1 * x)
    assert torch.equal((1 - found) / 3 * x, (1 - 0.1) / 3 * x)
    assert type(1 - found) is Derived
    assert torch.equal(x.clone().mul_(found), x * 0.1)
    assert {tensor.dtype for _, tensor in slots.tensors.values()} == {torch.float64}
    assert [*slots.followed(["number0", "number1"]).values] == ["number0", "number1"]


def test_python_computes_numbers_of_other_numbers():
    slots, found = varying(3)
    with slots.in_place():
        numbers = 1 - 0.9**found, found * 2 - 7, math.sqrt(found / 5), 1 / found, -found
    for each, compute in zip(
        numbers,
        (
            *(lambda n: 1 - 0.9**n, lambda n: n * 2 - 7, lambda n: math.sqrt(n / 5)),
            *(lambda n: 1 / n, lambda n: -n),
        ),
        strict=True,
    ):
        assert (each.number, type(each.number)) == (compute(3), each.kind)
        assert each.now([8]) == compute(8)
    assert math.sqrt(4) == 2


def test_slots_follow_numbers_of_the_same_type():
    slots, found = varying(4)
    torch.ones(2) * (1 / found) * found
    followed, written = slots.followed(["number0", "number1"]), {}
    assert followed.values == {"number0": 0.25, "number1": 4.0}
    assert followed.follow([8], written.__setitem__)
    assert written == {"number0": 0.125, "number1": 8.0}
    for other in (8.0, 0, 2**60):
        assert not followed.follow([other], written.__setitem__)


def test_other_values_have_no_slots():
    slots = Slots({0: "a"})
    assert not slots.tensors
    assert type(slots.stand_ins[0]) is Unread


@pytest.mark.parametrize("value", [True, None])
def test_what_code_compares_by_identity_has_no_stand_in(value):
    assert not Slots({0: value}).stand_ins


@pytest.mark.parametrize(
    "compute",
    [
        *(lambda n: torch.ones(2).bfloat16() * n, lambda n: torch.ones(2).long() + n),
        *(
            lambda n: torch.ones(2) ** n,
            lambda n: torch.full((2,), n),
            lambda n: n * n.slot().int(),
        ),
        *(lambda n: n * True, lambda n: torch.clamp(n, max=n), lambda n: (n + 2**70) * ones(2)),
        lambda n: (-n) ** 0.5 * ones(2),
    ],
)
def test_a_number_is_not_computed_with_otherwise(compute):
    slots, found = varying(3)
    with pytest.raises(CaptureError, match="The value of a number is computed with"):
        compute(found)
    assert slots.read == {0}


def test_stand_ins_are_in_place_only_while_a_call_is_captured():
    holder = {"a": 1.0}
    place = Place(holder, "a")
    slots = Slots({place: 1.0})
    with slots.in_place():
        assert type(holder["a"]) is Varying
    assert holder == {"a": 1.0}
    with (
        pytest.raises(CaptureError, match="The value of a number"),
        slots.in_place(),
        contextlib.suppress(CaptureError),
    ):
        float(holder["a"])
    assert (holder, slots.read) == ({"a": 1.0}, {place})


def test_changed_containers_are_refused():
    given = Arguments(({"x": ones(2)},), {})
    args, kwargs = given.rebuilt([ones(2)])
    given.require_unchanged(args, kwargs)
    args[0]["out"] = ones(1)
    with pytest.raises(CaptureError, match="changes a list or dictionary that it was given"):
        given.require_unchanged(args, kwargs)


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (ones(2, requires_grad=True), "An argument requires a gradient"),
        (ones(2, 2).to_sparse(), "An argument is .*sparse"),
        (TAGGED, "a tensor with an attribute 'tag' of its own"),
    ],
)
def test_arguments_that_no_program_takes(tensor, reason):
    with pytest.raises(CaptureError, match=reason):
        Arguments((tensor,), {})


WRITES_FIRST = {(Role.INPUT, "input0")}


def test_memory_that_nothing_writes_may_be_shared():
    x = ones(4)
    Arguments((x, x[1:]), {}).check_memory([x], set())


@pytest.mark.parametrize(
    ("args", "state", "reason"),
    [
        (
            lambda x: (x.view(-1),),
            lambda x: [x],
            "shares its memory with a tensor that the function",
        ),
        (lambda x: (x, x[1:]), lambda x: [], "shares its memory with another one"),
        (lambda x: (x[:, 1:],), lambda x: [], "whose elements do not lie together"),
    ],
)
def test_memory_that_is_written_may_not(args, state, reason):
    x = ones(4, 4)
    with pytest.raises(CaptureError, match=reason):
        Arguments(args(x), {}).check_memory(state(x), WRITES_FIRST)


def test_transposed_arguments_may_be_written():
    Arguments((ones(2, 3).t(), ones(2)), {}).check_memory([ones(1)], WRITES_FIRST)


def test_the_tensors_of_the_traced_call_are_released():
    given = Arguments((ones(2), 1.0), {})
    given.forget_examples()
    assert (given.present, given.given) == ([], [])
    assert given.accepts((ones(2), 1.0), {}) is not None
