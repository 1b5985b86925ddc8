"""Learning-rate schedules: numbers by hand, what comes after their end, resumed runs, modes."""

import math
import re
import shutil

import pytest

from cosmictagger.config.checks import settle
from cosmictagger.config.composing import composed
from cosmictagger.config.keys import LearningRates, ScheduleKind
from cosmictagger.errors import ConfigError
from cosmictagger.modes.schedule import Schedule
from helpers.cosmic_small import column, record

ONE_CYCLE = "+lr_schedule@mode.optimizer.lr_schedule=one_cycle"
DECAY = "mode.optimizer.lr_schedule.decay_epochs"


def made(kind: str, images: int = 10, surplus: int = 0, epochs: int | None = 8) -> Schedule:
    """Of 100 events, so that an epoch has ten steps; the last two of eight epochs decay."""
    rates = LearningRates(ScheduleKind[kind], 2e-5, 1e-5, 2.0)
    return Schedule(1e-3, images, 100, surplus, rates, epochs)


def test_flat():
    assert {made("flat")(step) for step in (0, 3, 79, 80, 10**6)} == {1e-3}
    assert made("flat").end() is None


# Linear in the first epoch from 1e-6; then 5 epochs flat; then 9.9e-4 exp(-0.01 i) + 1e-5.
_STANDARD = {
    0: 1e-6,
    5: 5.005e-4,
    9: 9.001e-4,
    10: 1e-3,
    59: 1e-3,
    60: 1e-3,
    61: 9.901493345e-4,
    70: 9.057890438e-4,
    79: 8.286895428e-4,
    80: 1e-5,
    1000: 1e-5,
}


def test_standard_of_a_run_in_steps_has_25_epochs():
    schedule = made("standard", epochs=None)
    assert (schedule(229), schedule(230), schedule.end()) == (1e-3, 1e-3, 250)
    assert schedule(231) == pytest.approx(9.901493345e-4, rel=1e-9)
    assert schedule(250) == 1e-5


# 30 steps up from 2e-5, 30 down to it; then 1e-5 exp(-0.01 i) + 1e-5.
_ONE_CYCLE = {
    0: 2e-5,
    15: 5.1e-4,
    29: 9.673333333e-4,
    30: 1e-3,
    45: 5.1e-4,
    59: 5.266666667e-5,
    60: 2e-5,
    70: 1.904837418e-5,
    79: 1.826959134e-5,
    80: 1e-5,
    1000: 1e-5,
}


@pytest.mark.parametrize(
    ("kind", "step", "rate"),
    [
        *(("standard", step, rate) for step, rate in _STANDARD.items()),
        *(("one_cycle", step, rate) for step, rate in _ONE_CYCLE.items()),
    ],
)
def test_rates_of_schedules_in_epochs(kind, step, rate):
    assert made(kind)(step) == pytest.approx(rate, rel=1e-9)
    assert made(kind).end() == 80


@pytest.mark.parametrize("kind", ["standard", "one_cycle", "default"])
def test_a_run_that_goes_on_with_larger_batches_goes_on_with_its_schedule(kind):
    """After 30 steps of ten images come steps of twenty: they count as two each."""
    small, large = made(kind), made(kind, images=20, surplus=-300)
    assert large.images(30) == small.images(30) == 300
    for step in range(30, 55):
        at = large.images(step) // 10
        if kind == "default" or at < 60:  # the decay of the others is by steps
            assert large(step) == pytest.approx(small(at), rel=1e-9)
    assert large.end() is None or large.end() == 55
    assert large.step_of(8) == 55


def test_epochs_end_with_the_step_that_completes_them():
    schedule = Schedule(1e-3, 2, 7)
    ends = [schedule.step_of(epoch) for epoch in range(4)]
    assert ends == [0, 4, 7, 11]
    for epoch, end in enumerate(ends[1:], 1):
        assert schedule.epoch(end - 1) < epoch <= schedule.epoch(end)


@pytest.mark.parametrize(
    ("overrides", "match"),
    [
        ([ONE_CYCLE], "one_cycle was asked for, .*run.iterations=500. Give run.epochs=N instead"),
        ([ONE_CYCLE, "run.epochs=5"], "asked for with 5 epochs, of which decay_epochs=5 leave"),
        (
            ["mode.optimizer.lr_schedule.name=standard", f"{DECAY}=24.5"],
            "standard was asked for with 25 epochs, of which decay_epochs=24.5",
        ),
        (
            [ONE_CYCLE, "run.epochs=9", "mode.optimizer.lr_schedule.min_learning_rate=0.01"],
            "min_learning_rate=0.01, which is above the highest rate, .*learning_rate=0.0003",
        ),
        (
            [ONE_CYCLE, "run.epochs=9", "mode.optimizer.lr_schedule.decay_floor=0.01"],
            "decay_floor=0.01, which is above the highest rate",
        ),
        ([f"{DECAY}=-1"], "decay_epochs=-1.0 was asked for; it has to be at least 0"),
        (["mode.optimizer.lr_schedule.decay_floor=nan"], "decay_floor=nan .* at least 0"),
        (["mode.optimizer.lr_schedule.min_learning_rate=0"], "=0.0 .* has to be positive"),
        (["mode.optimizer.weight_decay=-0.1"], "weight_decay=-0.1 .* at least 0"),
        (["mode.optimizer.lr_schedule.name=cyclic"], r"no such choice. Known: .* one_cycle \(2\)"),
    ],
)
def test_what_cannot_be(overrides, match):
    with pytest.raises(ConfigError, match=match):
        settle(composed("config", ["run.id=x", *overrides]))


def test_only_training_has_a_schedule():
    settle(composed("config", ["run.id=x", "mode=inference", ONE_CYCLE]))


@pytest.mark.parametrize(
    "kind", ["flat", "one_cycle", pytest.param("standard", marks=pytest.mark.long)]
)
def test_updates_are_the_same_in_compiled_modes(run, plane_net, kind):
    """Four updates, the last of which completes the epoch."""
    schedule = (f"mode.optimizer.lr_schedule.name={kind}", f"{DECAY}=0", "run.epochs=1")
    _, plain = run(*schedule, name="cpu")
    _, device = run(*schedule, "run.compute_mode=IPU", name="ipu")
    rates = column(plain, "learning_rate")
    assert rates == column(device, "learning_rate")
    assert len(rates) == 4
    assert len(set(rates)) == (1 if kind == "flat" else 4 if kind == "standard" else 3)
    losses = [[float(loss) for loss in column(out, "loss")] for out in (plain, device)]
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)


def test_a_resumed_run_goes_on_with_the_schedule(run):
    """In the middle of an epoch, as if nothing had happened; at other rates it says so."""
    cycle = (ONE_CYCLE, f"{DECAY}=1", "run.epochs=2", "mode.checkpoint_iteration=3")
    _, straight = run(*cycle, name="straight")
    killed = straight.parent / "killed"
    (killed / "checkpoints").mkdir(parents=True)
    shutil.copy(straight / "checkpoints" / "model-3.ckpt", killed / "checkpoints")
    assert run(*cycle, name="killed")[0] == 0
    assert record(killed)["weights_hash"] == record(straight)["weights_hash"]
    for name in ("step", "loss", "learning_rate"):
        assert column(killed, name) == column(straight, name)[3:]
        if name != "learning_rate":
            assert column(killed, name, "test") == column(straight, name, "test")
    log = (killed / "process.log").read_text()
    assert "Going on after step 3" in log
    assert "The learning rate is now" not in log
    assert run(*cycle, "run.epochs=4", name="killed")[0] == 0
    assert re.search(
        r"The learning rate is now 0.000\d+; the settings of the checkpoint gave 1e-05",
        (killed / "process.log").read_text(),
    )


def test_steps_after_the_end_of_a_schedule_are_said(run):
    """Seven events in steps of two make three steps an epoch for it, and eleven in all."""
    _, out = run(ONE_CYCLE, f"{DECAY}=1", "run.epochs=3", "mode.optimizer.learning_rate=0.01")
    rates = [float(rate) for rate in column(out, "learning_rate")]
    assert len(rates) == 11
    assert rates[9:] == [1e-5, 1e-5]
    assert math.isclose(max(rates), 0.01)
    log = (out / "process.log").read_text()
    assert "ends with step 9; the 2 steps after that have its decay_floor, 1e-05." in log
