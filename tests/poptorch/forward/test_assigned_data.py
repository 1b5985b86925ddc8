"""Assignments to ``.data`` and other replacements of tensors in forward: computed, or refused."""

import copy

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.wrapping import options, sgd, trains_like_eager

_HERE = r"test_assigned_data\.py:\d+: "


class Model(torch.nn.Module):
    """A query and a key encoder, whose forward acts on the model first."""

    def __init__(self, act):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.frozen = torch.nn.Parameter(torch.ones(4), requires_grad=False)
        self.register_buffer("buf", torch.randn(4))
        self.plain = torch.randn(4)
        self._act = act

    def forward(self, x, target):
        extra = self._act(self, x)
        scores = self.q(x) + self.k(x) * self.frozen + self.buf
        scores = scores if extra is None else scores + extra
        return F.mse_loss(scores, target), scores


def _pairs(model):
    return zip(model.q.parameters(), model.k.parameters(), strict=True)


def clipped_weights(model, x):
    model.q.weight.data = model.q.weight.data.clamp(-0.1, 0.1)


def decayed_buffer(model, x):
    model.buf.data = model.buf.data * 0.5


def momentum_encoder(model, x):
    for q, k in _pairs(model):
        k.data = k.data * 0.9 + q.data * 0.1


def momentum_encoder_without_grad(model, x):
    with torch.no_grad():
        momentum_encoder(model, x)


def swapped(model, x):
    for q, k in _pairs(model):
        q.data, k.data = k.data, q.data


def assigned_twice(model, x):
    clipped_weights(model, x)
    model.q.weight.data = model.q.weight.data + 0.1


def written_after_the_assignment(model, x):
    clipped_weights(model, x)
    model.q.weight.data.add_(1)
    with torch.no_grad():
        model.q.weight.mul_(0.5)


def old_view_is_written(model, x):
    old = model.buf.data
    decayed_buffer(model, x)
    old.mul_(3)
    return old


def read_before_the_assignment(model, x):
    before = x @ model.q.weight
    clipped_weights(model, x)
    return before


def constant(model, x):
    model.buf.data = torch.full((4,), 2.0)


def by_setattr(model, x):
    setattr(model.buf, "data", model.buf * 0.5)  # noqa: B010 - as frameworks do


def itself(model, x):
    for param in model.parameters():
        param.data = param.data


def of_an_intermediate(model, x):
    hidden = model.q(x)
    hidden.data = hidden.data * 2
    return hidden.relu()


def of_an_input(model, x):
    x.data = x * 2


def view_of_data(model, x):
    model.q.weight.data[0] = model.q.weight.data[0] * 0.5
    model.k.weight.data[1].mul_(0.5)
    model.q.weight[2].data = model.q.weight[2].data * 7  # of a temporary view: changes nothing


def copied_through_lists(model, x):
    with torch.no_grad():
        for k, q in zip([*model.k.parameters()], [*model.q.parameters()], strict=True):
            k.copy_(k * 0.9 + q * 0.1)


def in_a_checkpoint(model, x):
    def part(x):
        clipped_weights(model, x)
        return (x @ model.q.weight).relu()

    return torch.utils.checkpoint.checkpoint(part, x, use_reentrant=False)


def set_to_a_tensor(model, x):
    with torch.no_grad():
        model.buf.set_(model.buf * 0.5)
        model.q.weight.set_(model.q.weight.clamp(-0.1, 0.1))


def loaded(model, x):
    model.k.load_state_dict(model.q.state_dict())


def frozen_in_forward(model, x):
    model.q.requires_grad_(False)


def frozen_for_a_part(model, x):
    model.q.requires_grad_(False)
    part = model.q(x).relu()
    model.q.requires_grad_(True)
    return part


def frozen_after_use(model, x):
    part = model.q(x)
    model.q.requires_grad_(False)
    return part


COMPUTED = [
    clipped_weights,
    decayed_buffer,
    momentum_encoder,
    momentum_encoder_without_grad,
    swapped,
    assigned_twice,
    written_after_the_assignment,
    old_view_is_written,
    read_before_the_assignment,
    constant,
    by_setattr,
    itself,
    of_an_intermediate,
    of_an_input,
    view_of_data,
    copied_through_lists,
    in_a_checkpoint,
    set_to_a_tensor,
    loaded,
    frozen_in_forward,
    frozen_for_a_part,
    frozen_after_use,
]


def _batch(step, rows=3):
    x = torch.randn(rows, 4, generator=torch.Generator().manual_seed(step))
    return x, x * 0.5


def _momentum(model):
    return sgd(model, momentum=0.9)


def _equal(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=0)


@pytest.mark.parametrize("act", COMPUTED)
def test_training_steps_are_those_of_plain_pytorch(act):
    trains_like_eager(Model(act), map(_batch, range(4)), _momentum)


@pytest.mark.parametrize("act", COMPUTED)
def test_inference_is_that_of_plain_pytorch(act):
    plain, model = Model(act), Model(act)
    wrapped = poptorch.inferenceModel(model, options())
    for step in range(4):
        results = wrapped(*_batch(step))
        with torch.no_grad():
            _equal(tuple(results), plain(*_batch(step)))
        wrapped.copyWeightsToHost()
        _equal(dict(model.state_dict()), dict(plain.state_dict()))


@pytest.mark.parametrize("act", [momentum_encoder, decayed_buffer, swapped])
def test_each_micro_batch_assigns(act):
    plain, model = Model(act), Model(act)
    optimizer = sgd(plain)
    settings = options(deviceIterations=2, gradientAccumulation=3)
    wrapped = poptorch.trainingModel(model, settings, sgd(model))
    x, target = _batch(0, rows=12)
    wrapped(x, target)
    for rows in range(0, 12, 6):
        optimizer.zero_grad()
        for micro in range(rows, rows + 6, 2):
            (plain(x[micro : micro + 2], target[micro : micro + 2])[0] / 3).backward()
        optimizer.step()
    torch.testing.assert_close(dict(model.state_dict()), dict(plain.state_dict()))


@pytest.mark.compiler
@pytest.mark.parametrize("act", [momentum_encoder, swapped, of_an_input])
def test_compiled_steps_are_close(act, monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "cpu")
    monkeypatch.setenv("ABELE_START", "wait")
    trains_like_eager(Model(act), map(_batch, range(3)), _momentum, rtol=None, atol=None)


# -- refused ---------------------------------------------------------------------------------


def _set_to_a_storage(model, x):
    new = model.buf * 0.5
    model.buf.set_(new.untyped_storage(), 0, (4,), (1,))


def _tied(model, x):
    model.k.weight.data = model.q.weight.data


def _tied_to_an_input(model, x):
    model.buf.data = x[0].data


def _tied_to_a_plain_tensor(model, x):
    model.buf.data = model.plain


def _plain_tensor(model, x):
    model.plain.data = model.plain * 2


def _other_shape(model, x):
    model.buf.data = x * 2


def _other_dtype(model, x):
    model.buf.data = model.buf.double()
    return model.buf.float()


def _new_parameter(model, x):
    model.q.weight = torch.nn.Parameter(model.q.weight * 0.5)


def _new_buffer(model, x):
    model.buf = model.buf * 0.5


def _assigned_state(model, x):
    model.k.load_state_dict(model.q.state_dict(), assign=True)


def _swapped_tensors(model, x):
    torch.utils.swap_tensors(model.q.weight, model.k.weight)


def _converted(model, x):
    model.q.double()


@pytest.mark.parametrize(
    ("act", "words"),
    [
        (_set_to_a_storage, f"calls set_ with a storage.*{_HERE}`model.buf.set_.*copy_"),
        (_tied, f"k.weight, at .*{_HERE}`model.k.weight.data = .*memory of q.weight.*clone"),
        (_tied_to_an_input, f"assigns data to buf, at .*{_HERE}.*in the memory of an input"),
        (_tied_to_a_plain_tensor, f"buf, at .*{_HERE}.*neither a parameter nor a buffer"),
        (_plain_tensor, f"data of a tensor that it did not compute, at .*{_HERE}.*register_buffer"),
        (_other_shape, rf"shape \[3, 4\] and torch.float32 to buf, at .*{_HERE}.*shape \[4\]"),
        (_other_dtype, f"torch.float64 to buf, at .*{_HERE}.*torch.float32"),
        (_new_parameter, "q.weight is reassigned .*copy_"),
        (_new_buffer, "Buffer buf is reassigned .*copy_"),
        (_assigned_state, "k.weight is reassigned"),
        (_swapped_tensors, f"in the place of parameters, at .*{_HERE}`torch.utils.swap"),
        (_converted, f"in the place of parameters, at .*{_HERE}`model.q.double.*before"),
    ],
)
def test_replacements_that_no_program_keeps_are_refused(act, words):
    model = Model(act)
    before = copy.deepcopy(dict(model.state_dict()))
    with pytest.raises(poptorch.Error, match=words):
        poptorch.inferenceModel(model, options())(*_batch(0))
    _equal(dict(model.state_dict()), before)


def test_a_frozen_parameter_cannot_become_trainable_in_forward():
    def thaw(model, x):
        model.frozen.requires_grad_(True)

    model = Model(thaw)
    wrapped = poptorch.trainingModel(model, options(), sgd(model))
    with pytest.raises(poptorch.Error, match=f"makes frozen trainable, at .*{_HERE}.*wrapped"):
        wrapped(*_batch(0))
    poptorch.inferenceModel(Model(thaw), options())(*_batch(0))


def test_bodies_of_loops_assign_no_data():
    def assign(model, x):
        def body(value):
            model.buf.data = model.buf.data * 0.5
            return (value + model.buf,)

        return poptorch.for_loop(2, body, [x])[0]

    with pytest.raises(poptorch.Error, match=f"within a loop or branch.*{_HERE}`model.buf.data"):
        poptorch.inferenceModel(Model(assign), options())(*_batch(0))
