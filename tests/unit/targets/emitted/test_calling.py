"""How code is called, as text: read again it is the same, and what is damaged is refused."""

import json

import pytest
import torch

from abele import passes
from abele.errors import CorruptExecutable
from abele.targets.cpu.emitted.calling import from_text, to_text
from abele.targets.cpu.emitted.lowering import Emitted, planned_code
from helpers.emitted_programs import traced

X = torch.linspace(-2, 3, 12).reshape(3, 4)
LARGE = torch.linspace(-2, 3, 2**14).reshape(2**7, 2**7)
TABLE = torch.tensor([1.5, -2.0, 0.25, 3.0])


def added(x, total):
    total.add_(x)
    return (total * 2).t()


def with_torch(x, total):
    total.add_(torch.special.i0(x))
    return total.exp() - 1


def with_a_constant(x, total):
    total.mul_(TABLE)
    return x * TABLE + total


def sorted_rows(x, total):
    values, order = torch.sort(x, dim=1, descending=True)
    total.add_(values)
    return order.to(x.dtype) * total


FUNCTIONS = (added, with_torch, with_a_constant, sorted_rows)


def planned(function, x=X):
    """A program before passes of lowerings, and how its code is called."""
    program = passes.run(traced("case", function, [x], [torch.ones(x.shape)]).program)
    return program, planned_code(passes.run_only(program, Emitted.passes)).calling()


@pytest.fixture(params=FUNCTIONS, ids=lambda function: function.__name__)
def written(request):
    program, calling = planned(request.param)
    text = to_text(calling)
    assert text is not None
    return program, calling, text


def test_what_is_read_is_written_alike(written):
    program, _, text = written
    again = from_text(text, program)
    assert again is not None
    assert json.loads(to_text(again)) == json.loads(text)


@pytest.mark.compiler
@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_code_gives_the_same_bits_with_its_plan_and_without_lowering(function):
    program, _ = planned(function)
    compiled = Emitted().compile(passes.run_only(program, Emitted.passes))
    assert compiled.plan is not None
    loaded = Emitted().load_planned(program, compiled.payload, compiled.plan)
    assert loaded is not None
    assert (loaded.payload, loaded.plan) == (compiled.payload, compiled.plan)
    results = []
    for each in (compiled, loaded):
        total = torch.linspace(0, 1, X.numel()).reshape(X.shape)
        given = [X.clone() if slot.name == "input0" else total for slot in program.inputs]
        results.append((*each.run(given), total))
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"format": 1', '"format": 0'),
        ('"table"', '"tables"'),
        ('"input"', '"elsewhere"'),
        ('"float32"', '"load"'),
        ("]}", "]"),
    ],
)
def test_a_damaged_text_is_refused(old, new):
    program, calling = planned(added)
    text = to_text(calling)
    assert old in text
    with pytest.raises(CorruptExecutable, match="how the code is called cannot be read"):
        from_text(text.replace(old, new), program)


def test_an_operator_that_is_unknown_is_refused():
    program, calling = planned(with_torch)
    text = to_text(calling).replace("aten::i0", "aten::i7")
    with pytest.raises(CorruptExecutable, match="torch does not know 'aten::i7"):
        from_text(text, program)


@pytest.mark.parametrize(
    ("function", "other", "what"),
    [
        (added, lambda x, total: total.add_(x).sum(), "other results"),
        (with_a_constant, lambda x, total: total.add_(x) * 2, "other constants|no attribute"),
    ],
)
def test_what_was_written_for_another_program_is_refused(function, other, what):
    program, _ = planned(other)
    _, calling = planned(function)
    with pytest.raises(CorruptExecutable, match=what):
        from_text(to_text(calling), program)


def test_inputs_of_another_shape_are_refused():
    program, _ = planned(added, torch.ones(5, 4))
    _, calling = planned(added)
    with pytest.raises(CorruptExecutable, match="the program has other inputs"):
        from_text(to_text(calling), program)


def test_places_of_torchs_tensors_are_those_of_so_many_threads():
    program, calling = planned(with_torch, LARGE)
    assert calling.places is not None
    text = to_text(calling)
    assert from_text(text, program) is not None
    data = json.loads(text)
    data["threads"] += 1
    assert from_text(json.dumps(data), program) is None


def test_code_alone_is_called_alike_by_any_number_of_threads():
    program, calling = planned(added, LARGE)
    data = json.loads(to_text(calling))
    data["threads"] += 1
    assert from_text(json.dumps(data), program) is not None


def test_what_torch_has_no_name_for_is_not_written():
    def strided(x, total):
        total.add_(1)
        return torch.as_strided_copy(x, (2, 2), (1, 2), 1) * 2

    assert to_text(planned(strided)[1]) is None
