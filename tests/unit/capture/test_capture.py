"""Capture: what becomes a slot, what is refused, and what the module looks like afterwards."""

import gc
import linecache

import numpy
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from abele import Role, StepConfig
from abele.capture import capture
from abele.errors import CaptureError, DataDependentError, ReassignedError
from helpers.models import MODELS
from helpers.runs import captured, flat, rule_for, started

X = torch.arange(12.0).reshape(4, 3) / 8


class Any(nn.Module):
    """A weight, a buffer, and the forward a test wants; counts its calls."""

    def __init__(self, forward):
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("total", torch.zeros(3))
        self._forward, self.calls = forward, 0

    def forward(self, x):
        self.calls += 1
        return self._forward(self, x)


def inferred(forward, x=X):
    """The module and what its captured forward returns for ``x``."""
    module = Any(forward)
    session, _ = started(module, (x,))
    return module, session, session.step([x])


def slots(program, *roles):
    return [slot.name for slot in program.inputs if slot.role in roles]


def mutated(program):
    return {slot.name for slot in program.inputs if slot.mutated}


# -- roles ---------------------------------------------------------------------------------


def test_a_step_has_every_role_in_order():
    model = MODELS["batch norm and dropout"]
    module = model.fresh()
    rule = rule_for(module, "adam", variable=["lr"])
    (step,) = captured(module, model.batch(), None, rule).programs
    assert step.name == "step"
    assert slots(step, Role.PARAMETER) == [name for name, _ in module.named_parameters()]
    assert slots(step, Role.BUFFER) == [name for name, _ in module.named_buffers()]
    assert slots(step, Role.INPUT) == ["input0", "input1"]
    assert slots(step, Role.OPTIMIZER_STATE)[:3] == [
        "conv.weight.step", "conv.weight.exp_avg", "conv.weight.exp_avg_sq",
    ]  # fmt: skip
    assert slots(step, Role.HYPER) == ["group0.lr"]
    assert mutated(step) == set(slots(step, Role.PARAMETER, Role.BUFFER, Role.OPTIMIZER_STATE))


def test_accumulation_splits_the_step_in_two():
    model = MODELS["dense"]
    module = model.fresh()
    config = StepConfig(gradient_accumulation=2)
    programs = captured(module, model.batch(), config, rule_for(module)).by_name
    assert list(programs) == ["accumulate", "apply"]
    sums = [f"accumulator.{name}" for name, _ in module.named_parameters()]
    assert mutated(programs["accumulate"]) == set(sums)
    assert slots(programs["apply"], Role.ACCUMULATOR) == sums
    assert not slots(programs["apply"], Role.INPUT, Role.BUFFER)


def test_forward_alone_updates_nothing():
    model = MODELS["dense"]
    (forward,) = captured(model.fresh(), model.batch()).programs
    assert (forward.name, mutated(forward)) == ("forward", set())


def test_outputs_are_numbered_with_shape_and_type():
    (program,) = captured(Any(lambda m, x: (x.sum(), x.argmax(1))), (X,)).programs
    result = [(slot.name, slot.role, slot.shape, slot.dtype) for slot in program.outputs]
    assert result == [
        ("output0", Role.OUTPUT, (), torch.float32),
        ("output1", Role.OUTPUT, (4,), torch.int64),
    ]


def test_tied_tensors_are_one_slot_under_the_first_name():
    model = MODELS["tied weights"]
    module = model.fresh()
    (step,) = captured(module, model.batch(), None, rule_for(module)).programs
    assert slots(step, Role.PARAMETER) == ["embedding.weight"]


def test_frozen_and_unused_parameters_are_read_and_not_written():
    model = MODELS["frozen parameters"]
    module = model.fresh()
    module.unused = nn.Parameter(torch.ones(2))
    program = captured(module, model.batch(), None, rule_for(module))
    assert program.updated == ("fc2.weight", "fc2.bias")
    assert "unused" in slots(program.programs[0], Role.PARAMETER)
    assert {"unused", "fc1.weight"}.isdisjoint(mutated(program.programs[0]))


def test_training_needs_a_rule():
    model = MODELS["dense"]
    with pytest.raises(CaptureError, match="needs an update rule, found none"):
        captured(model.fresh(), model.batch(), StepConfig(training=True))


# -- constants -----------------------------------------------------------------------------


def test_a_tensor_that_is_no_state_becomes_a_constant_of_the_program():
    factor = torch.tensor([2.0, 3.0, 4.0])
    _, _, (result,) = inferred(lambda m, x: x * factor)
    torch.testing.assert_close(result, X * factor, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_the_fingerprint_sees_the_values_of_constants(dtype):
    def fingerprint(*values):
        constant = torch.tensor(values, dtype=dtype)
        return captured(Any(lambda m, x: x + constant), (X,)).programs[0].fingerprint()

    assert fingerprint(0, 1, 1) == fingerprint(0, 1, 1) != fingerprint(1, 1, 1)


def test_a_0d_constant_has_a_fingerprint():
    constant = torch.tensor(3.0)
    program = captured(Any(lambda m, x: x + constant), (X,)).programs[0]
    assert len(program.fingerprint()) == 64


def test_a_returned_constant_is_kept_by_position():
    given = torch.ones(2)
    program = captured(Any(lambda m, x: (x + 1, given, x + 2)), (X,))
    assert list(program.constants) == [1]
    assert torch.equal(program.constants[1], given)
    assert len(program.programs[0].outputs) == 2


# -- outputs and state ---------------------------------------------------------------------

ALIASES = {
    "a parameter": lambda m, x: m.weight,
    "a buffer": lambda m, x: m.total,
    "a view of a parameter": lambda m, x: m.weight[1:],
    "a detached parameter": lambda m, x: m.weight.detach(),
    "an input": lambda m, x: x,
    "a transposed view of an input": lambda m, x: x.t(),
    "a buffer after it was written": lambda m, x: m.total.add_(1),
}


@pytest.mark.parametrize("forward", ALIASES.values(), ids=ALIASES)
def test_outputs_never_share_memory_with_state_or_inputs(forward):
    x = X.clone()
    session, _ = started(Any(forward), (x,))
    (result,) = session.step([x])
    memory = {t.untyped_storage().data_ptr() for t in (*session.params.values(), x)}
    memory |= {t.untyped_storage().data_ptr() for t in session.buffers[0].values()}
    assert result.untyped_storage().data_ptr() not in memory


def test_a_returned_parameter_shows_the_update_as_its_alias_does_in_eager():
    module = Any(lambda m, x: (m.weight, F.mse_loss(x * m.weight, x)))
    session, _ = started(module, (X,), rule_for(module))
    returned, _ = session.step([X])
    torch.testing.assert_close(returned, session.params["weight"], rtol=0, atol=0)
    assert not torch.equal(returned, module.weight)


def test_a_returned_buffer_is_read_when_forward_ends():
    def forward(m, x):
        early = m.total
        m.total.add_(1)
        return early

    _, _, (result,) = inferred(forward)
    torch.testing.assert_close(result, torch.ones(3), rtol=0, atol=0)


def test_buffers_are_written_in_place_and_the_module_keeps_its_own():
    module, session, _ = inferred(lambda m, x: m.total.add_(x.sum(0)) * 2)
    torch.testing.assert_close(session.buffers[0]["total"], X.sum(0), rtol=0, atol=0)
    assert not module.total.any()


def test_an_input_written_in_place_is_written_in_the_batch():
    x = X.clone()
    module, session, (result,) = inferred(lambda m, x: x.mul_(2) + 1, x)
    assert mutated(session.executable.programs[0]) == {"input0"}
    torch.testing.assert_close(x, X * 2, rtol=0, atol=0)
    torch.testing.assert_close(result, X * 2 + 1, rtol=0, atol=0)
    assert module.calls == 1


@pytest.mark.parametrize("training", [False, True], ids=["forward alone", "a whole step"])
def test_forward_runs_once(training):
    module = Any(lambda m, x: F.mse_loss(x * m.weight, x))
    captured(module, (X,), None, rule_for(module) if training else None)
    assert module.calls == 1


def test_capture_draws_no_random_numbers_and_leaves_gradients_alone():
    model = MODELS["batch norm and dropout"]
    module = model.fresh()
    before = torch.get_rng_state()
    captured(module, model.batch(), None, rule_for(module))
    torch.testing.assert_close(torch.get_rng_state(), before, rtol=0, atol=0)
    assert all(parameter.grad is None for parameter in module.parameters())


def test_a_program_keeps_the_constants_it_was_captured_with():
    hidden, returned = nn.Parameter(torch.full((3,), 3.0)), torch.full((2,), 5.0)
    config = StepConfig(training=False)
    module = Any(lambda m, x: x)
    made = capture(lambda inputs: [inputs[0] * hidden, returned], module, (X,), config)
    hidden.data.zero_()
    returned.zero_()
    (program,) = made.programs
    assert [value.tolist() for value in program.graph.state_dict().values()] == [[3.0] * 3]
    assert {i: value.tolist() for i, value in made.constants.items()} == {1: [5.0, 5.0]}


# -- refusals ------------------------------------------------------------------------------


def reassign_buffer(m, x):
    m.total = m.total + 1
    return x + m.total


def reassign_parameter(m, x):
    m.weight = nn.Parameter(m.weight * 2)
    return x * m.weight


def remove_buffer(m, x):
    del m.total
    return x


def remove_parameter(m, x):
    del m.weight
    return x


def none_buffer(m, x):
    m.total = None
    return x


def add_buffer(m, x):
    m.register_buffer("extra", x.sum(0))
    return x


REASSIGNED = [
    (reassign_buffer, r"Buffer total is reassigned .*Use self\.total\.copy_\(\.\.\.\) instead"),
    (reassign_parameter, r"Parameter weight is reassigned within the model in forward"),
    (none_buffer, r"Buffer total is reassigned"),
    (remove_buffer, r"Buffer total is removed .*Delete it before wrapping"),
    (remove_parameter, r"Parameter weight is removed from the model in forward"),
    (add_buffer, r"Buffer extra is added .*Register extra in __init__"),
]


@pytest.mark.parametrize(
    ("forward", "message"), REASSIGNED, ids=[forward.__name__ for forward, _ in REASSIGNED]
)
def test_state_stays_what_it_is_in_forward(forward, message):
    module = Any(forward)
    before = dict(module.state_dict(keep_vars=True))
    with pytest.raises(ReassignedError, match=message):
        captured(module, (X,))
    after = module.state_dict(keep_vars=True)
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)


def test_a_child_is_named_by_its_path():
    module = nn.Sequential(nn.Linear(3, 3), Any(reassign_buffer))
    with pytest.raises(ReassignedError, match=r"Buffer 1\.total is reassigned"):
        captured(module, (X,))


class Mine(ValueError):
    pass


def test_an_error_of_forward_passes_unchanged_and_restores_the_module():
    error = Mine("mine")

    def forward(m, x):
        raise error

    module = Any(forward)
    weight, total = module.weight, module.total
    with pytest.raises(Mine, match="mine") as caught:
        captured(module, (X,))
    assert caught.value is error
    assert module.weight is weight
    assert module.total is total


@pytest.mark.parametrize(
    "error", [RuntimeError("no luck"), KeyError("key"), IndexError("5"), AssertionError("no")]
)
def test_errors_of_common_types_are_not_mistaken(error):
    def forward(m, x):
        raise error

    with pytest.raises(type(error)) as caught:
        captured(Any(forward), (X,))
    assert caught.value is error


# -- values that are not there yet ---------------------------------------------------------


def if_tensor(m, x):
    return x if x.sum() > 0 else -x


def while_tensor(m, x):
    while x.sum() < 10:
        x = x + 1
    return x


def numpy_array(m, x):
    return x + numpy.asarray(x)[0, 0]


def swallow(text):
    return len(text)


READS = {
    "item": lambda m, x: x * x.sum().item(),
    "item of a parameter": lambda m, x: x * m.weight[0].item(),
    "int": lambda m, x: x * int(x.sum()),
    "float": lambda m, x: x * float(x.sum()),
    "bool": lambda m, x: x * bool(x.sum()),
    "if": if_tensor,
    "while": while_tensor,
    "index": lambda m, x: x * [10, 20][x.sum().long()],
    "a slice bound": lambda m, x: x[: x.sum().long()],
    "in": lambda m, x: x * (3 in x),
    "max of Python": lambda m, x: x + max(x.sum(), x.mean()),
    "tolist": lambda m, x: x * len(x.tolist()),
    "numpy": lambda m, x: x + torch.from_numpy(x.numpy()),
    "numpy of a parameter": lambda m, x: x + torch.from_numpy(m.weight.detach().numpy()),
    "numpy.asarray": numpy_array,
    "equal": lambda m, x: x * torch.equal(x, x + 1),
    "allclose": lambda m, x: x * torch.allclose(x, x),
    "nonzero": lambda m, x: x.nonzero(),
    "where with one argument": lambda m, x: torch.where(x > 0)[0],
    "a boolean mask": lambda m, x: x[x > 0],
    "masked_select": lambda m, x: torch.masked_select(x, x > 0),
    "unique": lambda m, x: torch.unique(x),
    "one_hot without classes": lambda m, x: F.one_hot(x.long()),
    "arange": lambda m, x: torch.arange(x.sum()),
    "print": lambda m, x: x * swallow(print(x) or ""),
    "str": lambda m, x: x * swallow(str(x)),
    "an f-string": lambda m, x: x * swallow(f"{x}"),
    "an f-string with a format": lambda m, x: x * swallow(f"{x.sum():.3f}"),
}


@pytest.mark.parametrize("forward", READS.values(), ids=READS)
def test_reading_a_value_names_the_line(forward):
    line = forward.__code__.co_firstlineno + (0 if "lambda" in forward.__name__ else 1)
    code = linecache.getline(__file__, line).strip()
    with pytest.raises(DataDependentError) as caught:
        captured(Any(forward), (X,))
    message = str(caught.value)
    assert message.startswith("forward reads the value of a tensor while the program is being")
    assert f"at {__file__}:{line}: `{code}`" in message
    assert "Avoid .item(), int(tensor), `if tensor`" in message


FINE = {
    "a masked assignment": lambda m, x: x.masked_fill(x > 0, 0.0),
    "an assignment by mask": lambda m, x: x.index_put((x > 0,), torch.tensor(0.0)),
    "where with three arguments": lambda m, x: torch.where(x > 0, x, -x),
    "one_hot with classes": lambda m, x: F.one_hot(x.long(), 5),
    "a branch on a shape": lambda m, x: x if x.shape[0] > 2 else -x,
    "printing a shape": lambda m, x: x * swallow(f"{x.shape} {x.dtype}"),
    "the value of a constant": lambda m, x: x * torch.tensor(3.0).item(),
}


@pytest.mark.parametrize("forward", FINE.values(), ids=FINE)
def test_no_value_is_needed_for(forward):
    module, _, (result,) = inferred(forward)
    torch.testing.assert_close(result, forward(module, X), rtol=0, atol=0)


def test_gradient_checkpoints_are_captured():
    def forward(m, x):
        inner = torch.utils.checkpoint.checkpoint(
            lambda y: torch.sin(y * m.weight), x, use_reentrant=False
        )
        return F.mse_loss(inner, x)

    module = Any(forward)
    session, _ = started(module, (X,), rule_for(module, momentum=0.0, lr=1.0))
    session.step([X])
    module(X).backward()
    expected = module.weight.detach() - module.weight.grad
    torch.testing.assert_close(session.params["weight"], expected, rtol=0, atol=0)


def test_non_contiguous_parameters_keep_their_values():
    module = Any(lambda m, x: x @ m.matrix)
    module.matrix = nn.Parameter(torch.arange(9.0).reshape(3, 3).t())
    session, _ = started(module, (X,))
    torch.testing.assert_close(session.step([X]), flat(module(X).detach()))


def test_the_call_hides_how_arguments_are_passed():
    module = Any(lambda m, pair: pair["a"] + pair["b"])
    config = StepConfig(training=False)
    result = capture(lambda ab: [module({"a": ab[0], "b": ab[1]})], module, [X, X[0]], config)
    assert slots(result.programs[0], Role.INPUT) == ["input0", "input1"]


class Lingering:
    """Refers to itself, so that only the collector ends it; computes when it goes."""

    def __init__(self, held):
        self.own, self.held, self.copied = self, held, []

    def __del__(self):
        self.copied.append(self.held.clone())


def test_what_is_collected_meanwhile_is_not_captured():
    copied, held = [], torch.ones(3)

    def forward(m, x):
        copied.append(Lingering(held).copied)  # garbage from here on
        kept = [[index] for index in range(2000)]  # enough for the collector to look
        return x * m.weight + len(kept)

    before = gc.get_threshold()
    gc.set_threshold(100)
    try:
        (program,) = captured(Any(forward), (X,)).programs
    finally:
        gc.set_threshold(*before)
    assert not program.graph.state_dict()
    gc.collect()
    ((result,),) = copied
    assert type(result) is torch.Tensor


@pytest.mark.parametrize(
    "draw",
    [
        lambda x, g: torch.randn(4, 3, generator=g),
        lambda x, g: torch.empty_like(x).uniform_(generator=g),
        lambda x, g: torch.bernoulli(x.sigmoid(), generator=g),
    ],
)
@pytest.mark.parametrize("made", ["in forward", "before"])
def test_a_generator_of_its_own_is_refused(draw, made):
    before = torch.Generator().manual_seed(7)

    def forward(module, x):
        own = before if made == "before" else torch.Generator().manual_seed(7)
        return x + draw(x, own)

    words = r"torch.Generator of its own, with \w+ at .*test_capture.py.*register_buffer"
    with pytest.raises(CaptureError, match=words):
        inferred(forward)
