"""The session: its copies of the state, its random streams, and what changes between calls."""

import pytest
import torch
from torch import nn

from abele import get_target
from abele.errors import BatchError
from abele.runtime.session import Session
from abele.step.config import OutputMode, StepConfig
from helpers.models import MODELS
from helpers.runs import assert_same_bits, captured, rule_for, run, started

DENSE = MODELS["dense"]
AFFINE = MODELS["affine"]


class Noise(nn.Module):
    """Returns random numbers, one row per row of its input."""

    def forward(self, x):
        return torch.rand_like(x)


def noise(calls=1, **config):
    """The random numbers of some calls of one session."""
    config = StepConfig(training=False, output_mode=OutputMode.ALL, **config)
    session, _ = started(Noise(), (torch.zeros(3),), config=config)
    return torch.stack([session.step([torch.zeros(3 * config.replicas)])[0] for _ in range(calls)])


# -- random streams ------------------------------------------------------------------------


def test_the_same_seed_gives_the_same_numbers():
    torch.testing.assert_close(noise(4, seed=5), noise(4, seed=5), rtol=0, atol=0)


@pytest.mark.parametrize("other", [6, 0, 2**40])
def test_another_seed_gives_other_numbers(other):
    assert not torch.equal(noise(seed=5), noise(seed=other))


def test_replicas_draw_from_streams_of_their_own():
    alone = noise(2, seed=5)
    both = noise(2, seed=5, replicas=2).reshape(2, 2, 3)
    torch.testing.assert_close(both[:, 0], alone, rtol=0, atol=0)
    assert len(both.reshape(-1, 3).unique(dim=0)) == 4


def test_a_stream_of_its_own_leaves_torchs_alone_and_does_not_see_it():
    torch.manual_seed(1)
    undisturbed = torch.rand(3)
    torch.manual_seed(1)
    numbers = noise(3, seed=5)
    torch.testing.assert_close(torch.rand(3), undisturbed, rtol=0, atol=0)
    torch.manual_seed(99)
    torch.testing.assert_close(noise(3, seed=5), numbers, rtol=0, atol=0)


def test_torchs_stream_is_restored_after_an_error(monkeypatch):
    def fail(arguments):
        torch.rand(1)
        raise RuntimeError("out of luck")

    config = StepConfig(training=False, seed=5)
    session, _ = started(Noise(), (torch.zeros(3),), config=config)
    monkeypatch.setattr(session.runner, "_programs", [fail])
    before = torch.get_rng_state()
    with pytest.raises(RuntimeError, match="out of luck"):
        session.step([torch.zeros(3)])
    torch.testing.assert_close(torch.get_rng_state(), before, rtol=0, atol=0)


def test_without_a_seed_torchs_stream_is_shared():
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    torch.testing.assert_close(noise()[0], expected, rtol=0, atol=0)


def test_a_shared_stream_has_no_state_of_its_own():
    config = StepConfig(training=False)
    assert started(Noise(), (torch.zeros(3),), config=config)[0].random_state is None


# -- state ---------------------------------------------------------------------------------


def dense_session(config=None, **rule):
    module = DENSE.fresh()
    session, _ = started(module, DENSE.batch(), rule_for(module, **rule), config)
    return module, session


def test_the_session_trains_copies():
    module, session = dense_session()
    before = {name: value.detach().clone() for name, value in module.named_parameters()}
    run(session, DENSE.batches(2))
    for name, value in module.named_parameters():
        torch.testing.assert_close(value.detach(), before[name], rtol=0, atol=0)
        assert not torch.equal(session.params[name], value)


def test_written_parameters_are_used_and_the_others_stay():
    module, session = dense_session(lr=0.0)
    session.write_params({"fc2.weight": torch.zeros(3, 8)})
    output, _ = session.step(DENSE.batch())
    torch.testing.assert_close(output, module.fc2.bias.detach().expand(4, 3), rtol=0, atol=0)


@pytest.mark.parametrize("write", ["write_params", "write_buffers", "write_optimizer_state"])
def test_an_unknown_name_is_refused(write):
    _, session = dense_session()
    with pytest.raises(KeyError, match="nobody"):
        getattr(session, write)({"nobody": torch.zeros(1)})


def test_written_buffers_reach_every_replica():
    config = StepConfig(training=False, replicas=2, output_mode=OutputMode.ALL)
    session, _ = started(AFFINE.fresh(), AFFINE.batch(), config=config)
    session.write_buffers({"shift": torch.tensor([7.0, 7.0, 7.0])})
    (result,) = session.step([torch.zeros(8, 3)])
    torch.testing.assert_close(result, torch.full((8, 3), 7.0), rtol=0, atol=0)


def test_optimizer_state_is_not_kept_twice():
    module, first = dense_session()
    rule, params = rule_for(module), dict(module.named_parameters())
    given = rule.initial_state(params)
    session = Session(first.executable, first.config, params, {}, given, rule.hyper())
    assert given
    for name, value in given.items():
        assert session.optimizer_state[name].data_ptr() == value.data_ptr()
    for name, value in params.items():
        assert session.params[name].data_ptr() != value.data_ptr()


# -- hyper-parameters ----------------------------------------------------------------------


def test_a_variable_rate_may_change_between_calls():
    _, variable = dense_session(variable=["lr"], lr=0.1, momentum=0.0)
    first = run(variable, DENSE.batches(1))
    variable.set_hyper("group0.lr", 0.0)
    second = run(variable, DENSE.batches(2)[1:])
    for name, value in first.params.items():
        torch.testing.assert_close(second.params[name], value, rtol=0, atol=0)


def test_a_changed_rate_is_a_session_made_with_it():
    _, changed = dense_session(variable=["lr"], lr=0.1)
    changed.set_hyper("group0.lr", 0.02)
    _, made = dense_session(variable=["lr"], lr=0.02)
    assert_same_bits(run(changed, DENSE.batches(3)), run(made, DENSE.batches(3)))


def test_a_constant_rate_cannot_change():
    _, session = dense_session()
    with pytest.raises(KeyError, match=r"group0\.lr"):
        session.set_hyper("group0.lr", 0.1)


# -- batches -------------------------------------------------------------------------------


def test_a_period_that_does_not_divide_is_refused_before_anything_runs():
    config = StepConfig(device_iterations=3, output_mode=OutputMode.EVERY_N, output_period=2)
    with pytest.raises(BatchError, match="period 2 needs a period that divides"):
        dense_session(config)


@pytest.mark.parametrize("count", [1, 3], ids=["too few", "too many"])
def test_a_wrong_number_of_inputs_is_refused(count):
    _, session = dense_session()
    with pytest.raises(ValueError, match=r"zip\(\)"):
        session.step([torch.zeros(4, 6)] * count)


def test_a_0d_input_is_the_same_for_every_micro_batch():
    class Scaled(nn.Module):
        def forward(self, x, factor):
            return x * factor

    config = StepConfig(training=False, device_iterations=2, output_mode=OutputMode.ALL)
    inputs = (torch.ones(2), torch.tensor(3.0))
    session, _ = started(Scaled(), inputs, config=config)
    (result,) = session.step([torch.arange(4.0), torch.tensor(3.0)])
    torch.testing.assert_close(result, 3 * torch.arange(4.0), rtol=0, atol=0)


def test_sums_keep_integer_types():
    class Counted(nn.Module):
        def forward(self, x):
            return (x > 0).sum(), x.long()

    config = StepConfig(training=False, device_iterations=3, output_mode=OutputMode.SUM)
    session, _ = started(Counted(), (torch.ones(2),), config=config)
    total, rows = session.step([torch.ones(6)])
    torch.testing.assert_close(total, torch.tensor(6))
    torch.testing.assert_close(rows, torch.tensor([3, 3]))


def test_one_executable_serves_many_sessions():
    session, _ = started(AFFINE.fresh(), AFFINE.batch())
    other = type(session)(session.executable, session.config, session.params, session.buffers[0])
    other.write_params({"scale": torch.zeros(3)})
    (batch,) = AFFINE.batch()
    assert not torch.equal(session.step([batch])[0], other.step([batch])[0])


def test_parameters_in_another_layout_are_copied_contiguously():
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.arange(6.0).reshape(2, 3).t())

        def forward(self, x):
            return x @ self.weight

    module = Product()
    session, _ = started(module, (torch.ones(1, 3),))
    assert session.params["weight"].is_contiguous()
    expected = module(torch.ones(1, 3)).detach()
    torch.testing.assert_close(session.step([torch.ones(1, 3)])[0], expected)


def test_a_session_lives_on_the_device_of_its_target():
    assert captured(AFFINE.fresh(), AFFINE.batch()).by_name.keys() == {"forward"}
    session, _ = started(AFFINE.fresh(), AFFINE.batch())
    assert session.device == get_target("reference").device() == torch.device("cpu")
