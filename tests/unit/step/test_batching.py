"""The arithmetic of one call: an example, and what is refused; see the properties beside it."""

import pytest

from abele.errors import BatchError
from abele.step import batching
from abele.step.config import OutputMode, StepConfig

FINAL, ALL, SUM, EVERY_N = OutputMode.FINAL, OutputMode.ALL, OutputMode.SUM, OutputMode.EVERY_N


def config(iterations=1, accumulation=1, replicas=1, mode=FINAL, period=1):
    return StepConfig(
        device_iterations=iterations,
        gradient_accumulation=accumulation,
        replicas=replicas,
        output_mode=mode,
        output_period=period,
    )


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
