"""Operations that make infinities or NaN stop the step, are named, and leave the state alone."""

import linecache
import re

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch import nn

from abele import Role, StepConfig
from abele.capture import losses
from abele.errors import TrappedError
from abele.runtime.micro_steps import Sequential
from helpers.models import MODELS, plain_loss
from helpers.runs import assert_same_bits, rule_for, run, started

TRAPPING = {"trap_exceptions": True}


class Of(nn.Module):
    """The forward a test wants, inside a submodule ``inner``; one weight."""

    def __init__(self, forward):
        super().__init__()
        self.inner = Inner(forward)

    def forward(self, x):
        return self.inner(x)


class Inner(nn.Module):
    """The named part."""

    def __init__(self, forward):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))
        self._forward = forward

    def forward(self, x):
        return self._forward(self, x)


def inferring(forward, x, target="reference"):
    session, _ = started(Of(forward), (x,), None, StepConfig(training=False, **TRAPPING),
                         target=target)  # fmt: skip
    return session


def training(forward, x, kind="sgd", target="reference", settings=None, **config):
    module = Of(forward)
    rule = rule_for(module, kind, settings=settings)
    return started(module, (x,), rule, StepConfig(**TRAPPING, **config), target=target)[0]


X = torch.tensor([[1.0, 2.0, 3.0]])
ZERO = torch.tensor([[1.0, 0.0, 3.0]])
INF = torch.inf


# -- what is an exception ------------------------------------------------------------------

RAISING = {
    "division by zero": (lambda m, x: 1 / x, ZERO, "aten.reciprocal.default|aten.div", "infinity"),
    "logarithm of zero": (lambda m, x: x.log(), ZERO, "aten.log.default", "infinity"),
    "overflow": (lambda m, x: (x * 1000).exp(), X, "aten.exp.default", "infinity"),
    "half overflow": (lambda m, x: (x * 30000).half(), X, "aten._to_copy.default", "infinity"),
    "zero by zero": (lambda m, x: x / x, ZERO, "aten.div.Tensor", "NaN"),
    "root": (lambda m, x: (-x).sqrt(), X, "aten.sqrt.default", "NaN"),
    "infinity less infinity": (lambda m, x: x + INF - INF, X, "aten.sub.Tensor", "NaN"),
    "fully masked softmax": (
        lambda m, x: x.masked_fill(x > 0, -INF).softmax(-1), X, "aten._softmax.default", "NaN",
    ),
    "inside several results": (lambda m, x: (x / x).sort()[0], ZERO, "aten.div.Tensor", "NaN"),
}  # fmt: skip


@pytest.mark.parametrize("name", RAISING)
def test_the_operation_is_named(name):
    forward, x, operator, what = RAISING[name]
    with pytest.raises(TrappedError, match=operator) as caught:
        inferring(forward, x).step([x])
    text = str(caught.value)
    assert re.search(rf"{what} from", text)
    assert "module 'inner'" in text
    assert "forward" in text
    assert re.fullmatch(r".*test_trap_exceptions\.py:\d+ in .*", caught.value.line)


NAN = torch.tensor([[1.0, torch.nan, 3.0]])


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: x < 2,
        lambda m, x: x >= x.flip(1),
        lambda m, x: torch.ones(3) > x,
        lambda m, x: torch.where(x[:, 1:] <= 0, 1.0, 2.0),
    ],
)
def test_a_comparison_by_order_with_a_nan_is_an_exception(forward):
    session = inferring(forward, NAN)
    with pytest.raises(
        TrappedError, match=r"aten\.\w\w\.\w+ .*a NaN is compared by order"
    ) as caught:
        session.step([NAN])
    assert re.fullmatch(r".*test_trap_exceptions\.py:\d+ in .*", caught.value.line)
    session.step([X])


@pytest.mark.parametrize(
    "forward",
    [
        lambda m, x: x == 2,
        lambda m, x: x != x,
        lambda m, x: torch.isnan(x),
        lambda m, x: x[:, :1] < 2,
        lambda m, x: torch.nan_to_num(x) > 0,
        lambda m, x: torch.arange(3) > 1,
    ],
)
def test_other_comparisons_are_silent(forward):
    inferring(forward, NAN).step([NAN])


def additive_mask(m, x):
    return (x + torch.full((3,), -INF).masked_fill(x[0] > 1, 0.0)).softmax(-1)


SILENT = {
    "masked fill": lambda m, x: x.masked_fill(x > 2, -INF),
    "where": lambda m, x: torch.where(x > 2, x, -INF),
    "full": lambda m, x: torch.full_like(x, INF) * x,
    "additive mask": additive_mask,
    "softmax of a mask": lambda m, x: x.masked_fill(x > 2, -INF).softmax(-1),
    "attention": lambda m, x: F.scaled_dot_product_attention(
        x[None], x[None], x[None], torch.tensor([[True]])
    ),
    "padding": lambda m, x: F.pad(x, (1, 1), value=-INF),
    "max pool": lambda m, x: F.max_pool1d(x, 3, padding=1),
    "unset memory": lambda m, x: torch.zeros_like(x).copy_(x),
    "integers": lambda m, x: x.long() * 2,
    "nothing": lambda m, x: x,
}


@pytest.mark.parametrize("name", SILENT)
def test_constants_and_finite_results_are_silent(name):
    (output,) = inferring(SILENT[name], X).step([X])
    (plain,) = started(Of(SILENT[name]), (X,))[0].step([X])
    assert torch.equal(output, plain)


def test_what_comes_in_is_nobodys_fault():
    session = inferring(lambda m, x: (x * m.weight).relu(), X)
    assert session.step([torch.tensor([[1.0, torch.nan, INF]])])[0].isnan().any()


def test_an_attention_layer_with_a_mask_trains():
    layer = nn.TransformerEncoderLayer(4, 2, 8, dropout=0.0, batch_first=True)
    causal = nn.Transformer.generate_square_subsequent_mask(3)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = layer

        def forward(self, x):
            total = self.layer(x, src_mask=causal).pow(2).mean() + plain_loss(x[0, 0]) * 0
            return losses.mark_loss(total) or total

    module, x = Model(), torch.randn(2, 3, 4)
    session, _ = started(module, (x,), rule_for(module, "lamb"), StepConfig(**TRAPPING))
    session.step([x])


# -- where it stops ------------------------------------------------------------------------


def test_the_first_of_several_is_named():
    session = inferring(lambda m, x: (1 / x).log() / (x / x), ZERO)
    with pytest.raises(TrappedError, match=r"aten\.reciprocal\.default|aten\.div\.Tensor \("):
        session.step([ZERO])


class RootOfZero(nn.Module):
    """Its square root has an infinite derivative at zero."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3))

    def forward(self, x):
        scaled = F.layer_norm(self.weight, (3,)) + self.weight * x
        root = scaled.sqrt()
        return root * self.weight


def test_backward_names_the_line_of_forward():
    module = nn.Sequential(nn.Identity(), RootOfZero())
    whole = Of(lambda m, x: plain_loss(m.inside(x)))
    whole.inner.inside = module
    session, _ = started(whole, (ZERO,), rule_for(whole), StepConfig(**TRAPPING))
    with pytest.raises(TrappedError, match=r"\(backward, module 'inner\.inside\.1', at") as caught:
        session.step([ZERO])
    # The derivative of the root, not that of the product after it.
    file, _, rest = caught.value.line.rpartition(":")
    line = linecache.getline(file, int(rest.split()[0])).strip()
    assert line == "root = scaled.sqrt()"


IN_UPDATE = r"aten\.\w+\.\w+ \(update\): overflow"


@pytest.mark.thorough
def test_an_overflowing_update_is_named(target):
    big = torch.full((1, 3), 1e30)
    session = training(lambda m, x: plain_loss(m.weight * x, "mean"), big, "adam", target)
    before = session.params["inner.weight"].clone()
    session.step([(big / 1e30).to(session.device)])
    after = session.params["inner.weight"].clone()
    state = {name: value.clone() for name, value in session.optimizer_state.items()}
    with pytest.raises(TrappedError, match=IN_UPDATE):
        session.step([big.to(session.device)])
    assert not torch.equal(before, after)
    assert torch.equal(session.params["inner.weight"], after)
    assert all(torch.equal(session.optimizer_state[name], state[name]) for name in state)
    session.step([(big / 1e30).to(session.device)])


# -- what is left --------------------------------------------------------------------------


def running_mean(m, x):
    return plain_loss(x / m.weight * m.weight + 1 / x)


def test_everything_since_the_last_update_is_taken_back():
    session = training(running_mean, X, gradient_accumulation=2, device_iterations=2)
    good, expected = X.expand(4, -1), training(running_mean, X, gradient_accumulation=2)
    expected.step([good[:2].contiguous()])
    with pytest.raises(TrappedError):
        session.step([torch.cat([X, X, X, ZERO])])
    assert torch.equal(session.params["inner.weight"], expected.params["inner.weight"])
    assert not any(value.any() for value in session.accumulators.values())
    for one in (session, expected):
        for _ in range(2 if one is expected else 1):
            one.step([good[: 2 if one is expected else 4].contiguous()])
    assert torch.equal(session.params["inner.weight"], expected.params["inner.weight"])


def test_buffers_are_taken_back():
    def forward(m, x):
        return plain_loss(m.norm(x) * m.weight / x)

    module = Of(forward)
    module.inner.norm = nn.BatchNorm1d(3)
    x, bad = torch.rand(4, 3) + 1, torch.rand(4, 3)
    bad[1, 1] = 0.0
    session, _ = started(module, (x,), rule_for(module), StepConfig(**TRAPPING))
    session.step([x])
    before = {name: value.clone() for name, value in session.buffers[0].items()}
    with pytest.raises(TrappedError):
        session.step([bad])
    for name, value in before.items():
        assert torch.equal(session.buffers[0][name], value), name


def test_weights_sent_between_calls_survive_a_stop_of_inference():
    session = inferring(lambda m, x: m.weight / x, X)
    session.step([X])
    session.write_params({"inner.weight": torch.full((3,), 5.0)})
    with pytest.raises(TrappedError):
        session.step([ZERO])
    assert torch.equal(session.params["inner.weight"], torch.full((3,), 5.0))


# -- what it costs -------------------------------------------------------------------------


def test_off_costs_nothing():
    session = started(Of(lambda m, x: 1 / x), (X,))[0]
    (program,) = session.executable.programs
    assert program.checks == ()
    assert not [slot for slot in program.outputs if slot.role is Role.MAGNITUDES]
    assert isinstance(session.runner, Sequential)
    assert session.runner._programs == [session.executable.compiled["forward"].run]


@pytest.mark.parametrize("name", ["batch norm and dropout", "embedding and layer norm", "dense"])
def test_watching_changes_no_bit(name):
    model, trained = MODELS[name], []
    for config in (StepConfig(), StepConfig(**TRAPPING)):
        module = model.fresh()
        session, _ = started(module, model.batch(), rule_for(module, "adam"), config)
        trained.append(run(session, model.batches(5)))
    assert_same_bits(*trained)


def test_a_half_that_overflows_inside_fused_code_is_seen(target):
    x = torch.full((1, 3), 100.0).half()
    session = inferring(lambda m, x: ((x * x) * 100 - 7).relu(), x, target)
    session.step([(x / 100).to(session.device)])
    with pytest.raises(TrappedError, match=r"aten\.mul\.Tensor .* overflow"):
        session.step([x.to(session.device)])
