"""The arithmetic of one call, as tables."""

import pytest

from abele.errors import BatchError
from abele.step import batching
from abele.step.config import OutputMode, StepConfig

FINAL, ALL, SUM, EVERY_N = OutputMode.FINAL, OutputMode.ALL, OutputMode.SUM, OutputMode.EVERY_N


def config(iterations=1, accumulation=1, replicas=1, mode=FINAL, period=1, training=True):
    return StepConfig(
        device_iterations=iterations,
        gradient_accumulation=accumulation,
        replicas=replicas,
        output_mode=mode,
        output_period=period,
        training=training,
    )


@pytest.mark.parametrize(
    ("mode", "period", "parts"), [(FINAL, 1, 2), (ALL, 1, 16), (EVERY_N, 2, 8), (SUM, 1, 2)]
)
def test_the_worked_example(mode, period, parts):
    example = config(2, 4, 2, mode, period)  # micro-batches of 3 rows
    assert batching.micro_batches(example) * 3 == 48
    assert batching.micro_batch_size(48, example) == 3
    assert batching.parts_out(example) == parts


@pytest.mark.parametrize("mode", OutputMode)
def test_one_micro_batch_is_one_part(mode):
    assert batching.parts_out(config(mode=mode)) == 1


@pytest.mark.parametrize(
    ("numbers", "mode", "period", "parts"),
    [
        ((5, 1, 1), FINAL, 1, 1),
        ((5, 1, 1), SUM, 1, 1),
        ((5, 1, 1), ALL, 1, 5),
        ((6, 1, 1), EVERY_N, 3, 2),
        ((6, 2, 1), EVERY_N, 3, 4),
        ((6, 1, 1), EVERY_N, 1, 6),
        ((6, 1, 1), EVERY_N, 6, 1),
        ((1, 1, 4), FINAL, 1, 4),
        ((1, 3, 4), SUM, 1, 4),
        ((1, 3, 4), ALL, 1, 12),
    ],
)
def test_parts_out(numbers, mode, period, parts):
    assert batching.parts_out(config(*numbers, mode, period)) == parts


def test_the_order_is_iteration_accumulation_replica():
    steps = list(batching.schedule(config(2, 2, 2)))
    assert [step.index for step in steps] == list(range(8))
    assert [step.replica for step in steps] == [0, 1] * 4
    assert [step.index for step in steps if step.updates] == [3, 7]


@pytest.mark.parametrize(
    ("mode", "period", "kept"),
    [
        (FINAL, 1, [14, 15]),
        (ALL, 1, list(range(16))),
        (SUM, 1, list(range(16))),
        (EVERY_N, 2, list(range(8, 16))),
    ],
)
def test_which_micro_steps_keep_their_outputs(mode, period, kept):
    steps = batching.schedule(config(2, 4, 2, mode, period))
    assert [step.index for step in steps if step.keeps] == kept


def test_inference_never_updates():
    assert not any(step.updates for step in batching.schedule(config(2, 1, 2, training=False)))


@pytest.mark.parametrize(
    ("numbers", "rows"),
    [((1, 1, 1), 7), ((7, 1, 1), 7), ((2, 3, 2), 24), ((1, 5, 1), 0)],
)
def test_rows_divide_into_micro_batches(numbers, rows):
    example = config(*numbers)
    assert batching.micro_batch_size(rows, example) * batching.micro_batches(example) == rows


def test_rows_that_do_not_divide_are_refused_with_the_arithmetic():
    with pytest.raises(
        BatchError,
        match=r"Invalid batch dimension: images has 47 rows, which is not a multiple of 16 "
        r"\(device iterations 2 x gradient accumulation 4 x replicas 2\)\. Pass 16 x micro-batch",
    ):
        batching.micro_batch_size(47, config(2, 4, 2), "images")


@pytest.mark.parametrize(("iterations", "period"), [(5, 2), (2, 4), (1, 2)])
def test_a_period_that_does_not_divide_the_iterations_is_refused(iterations, period):
    with pytest.raises(BatchError, match=f"period {period} needs a period .* found {iterations}"):
        batching.check_output_period(config(iterations, mode=EVERY_N, period=period))


@pytest.mark.parametrize("mode", [FINAL, ALL, SUM])
def test_the_period_matters_to_every_n_alone(mode):
    batching.check_output_period(config(5, mode=mode, period=2))
    assert batching.parts_out(config(5, mode=mode, period=2)) == (5 if mode is ALL else 1)
