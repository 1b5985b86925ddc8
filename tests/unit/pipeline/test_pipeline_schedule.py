"""The order of a pipeline's tasks, for every number of stages and micro-batches."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from abele.pipeline.runner import picture
from abele.pipeline.running import (
    AHEAD,
    Task,
    Timed,
    finished,
    forward_only,
    ideal_bubble,
    needs,
    one_forward_one_backward,
)

STAGES = st.integers(1, 8)
MICRO_BATCHES = st.integers(1, 24)


def waiting(tasks):
    """How many micro-batches wait for their backward after each task of a stage."""
    count, result = 0, []
    for task in tasks:
        count += -1 if task.backward else 1
        result.append(count)
    return result


@given(STAGES, MICRO_BATCHES)
def test_every_micro_batch_goes_forward_and_backward_once_in_order(stages, micro_batches):
    for stage, tasks in enumerate(one_forward_one_backward(stages, micro_batches)):
        for backward in (False, True):
            mine = [task for task in tasks if task.backward is backward]
            assert mine == [Task(stage, k, backward) for k in range(micro_batches)]
        places = {task: index for index, task in enumerate(tasks)}
        assert all(
            places[Task(stage, k)] < places[Task(stage, k, True)] for k in range(micro_batches)
        )


@given(STAGES, MICRO_BATCHES)
def test_a_stage_keeps_no_more_than_what_it_must(stages, micro_batches):
    for stage, tasks in enumerate(one_forward_one_backward(stages, micro_batches)):
        assert max(waiting(tasks)) == min(stages - stage, micro_batches)


@given(STAGES, MICRO_BATCHES, st.data())
def test_no_stage_waits_for_ever_whatever_tasks_take(stages, micro_batches, data):
    order = one_forward_one_backward(stages, micro_batches)
    times = data.draw(st.lists(st.floats(0.01, 10), min_size=2 * stages, max_size=2 * stages))
    ends = finished(order, lambda task: times[2 * task.stage + task.backward], training=True)
    assert len(ends) == 2 * stages * micro_batches
    for task, end in ends.items():
        assert all(ends[other] < end for other in needs(task, stages, training=True))


@given(STAGES, MICRO_BATCHES)
def test_equal_stages_wait_as_long_as_the_formula_says(stages, micro_batches):
    ends = finished(one_forward_one_backward(stages, micro_batches), lambda _: 1.0, training=True)
    busy = 2 * stages * micro_batches
    # One unit each for forward and backward: the pipeline is (m + p - 1) pairs long.
    assert max(ends.values()) == 2 * (micro_batches + stages - 1)
    assert 1 - busy / (stages * max(ends.values())) == pytest.approx(
        ideal_bubble(stages, micro_batches)
    )


@given(STAGES, MICRO_BATCHES, st.data())
def test_inference_ends_and_no_stage_runs_far_ahead(stages, micro_batches, data):
    order = forward_only(stages, micro_batches)
    times = data.draw(st.lists(st.floats(0.01, 10), min_size=stages, max_size=stages))
    ends = finished(order, lambda task: times[task.stage], training=False)
    assert len(ends) == stages * micro_batches
    for stage in range(stages - 1):
        for k in range(AHEAD, micro_batches):
            begin = ends[Task(stage, k)] - times[stage]
            assert begin >= ends[Task(stage + 1, k - AHEAD)] - 1e-6


def test_an_order_that_cannot_work_is_refused():
    order = [[Task(0, 0, True), Task(0, 0)], [Task(1, 0), Task(1, 0, True)]]
    with pytest.raises(ValueError, match="Stages wait for each other"):
        finished(order, lambda _: 1.0, training=True)


def test_the_picture_of_the_module():
    text = [
        " ".join(f"{'B' if task.backward else 'F'}{task.micro_batch}" for task in tasks)
        for tasks in one_forward_one_backward(3, 4)
    ]
    assert text == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


def test_a_timeline_has_digits_of_forwards_and_letters_of_backwards():
    times = [
        *(Timed(Task(0, 0), 0, 20), Timed(Task(1, 0), 20, 40), Timed(Task(0, 1), 20, 40)),
        *(Timed(Task(1, 0, True), 40, 70), Timed(Task(0, 0, True), 70, 100)),
    ]
    assert picture(times, 2, width=10).splitlines() == [
        "stage 0  0011...aaa",
        "stage 1  ..00aaa...",
    ]
