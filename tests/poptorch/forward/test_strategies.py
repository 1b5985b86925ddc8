"""Execution strategies: constructors, their checks, and where blocks go."""

import copy

import pytest

from poptorch._error import Error
from poptorch.enums import AutoStage, Liveness
from poptorch.options import (
    Options,
    ParallelPhasedExecution,
    Phase,
    PipelinedExecution,
    SerialPhasedExecution,
    ShardedExecution,
    Stage,
)

PIPELINES = (PipelinedExecution, ShardedExecution)
PHASED = (SerialPhasedExecution, ParallelPhasedExecution)


@pytest.mark.parametrize("kind", PIPELINES)
def test_a_stage_is_a_name_a_stage_or_a_sequence(kind):
    strategy = kind("A", Stage("B").ipu(3), ["C", "D"])
    placements = [strategy.place(name) for name in "ABCD"]
    assert [p.stage for p in placements] == [0, 1, 2, 2]
    assert [p.ipu for p in placements] == [0, 3, 2, 2]


@pytest.mark.parametrize("given", [None, 7], ids=["nothing at the block", "7 at the block"])
@pytest.mark.parametrize("chosen", [None, 5], ids=["nothing at the stage", "5 at the stage"])
def test_the_device_of_a_stage_wins_then_the_block_then_the_stage_number(given, chosen):
    stage = Stage("B") if chosen is None else Stage("B").ipu(chosen)
    expected = chosen or given or 1
    assert PipelinedExecution("A", stage).place("B", given).ipu == expected


@pytest.mark.parametrize("strategy", [PipelinedExecution(), PipelinedExecution(AutoStage(0))])
def test_same_as_ipu_numbers_stages_by_device(strategy):
    assert strategy.place("A", 3).stage == 3
    with pytest.raises(AssertionError, match="no IPU was specified for Block 'B'"):
        strategy.place("B")


def test_auto_increment_starts_at_one_and_remembers():
    strategy = PipelinedExecution(AutoStage.AutoIncrement)
    assert [strategy.place(name).stage for name in "ABA"] == [1, 2, 1]


@pytest.mark.parametrize("strategy", [PipelinedExecution("A", "B"), SerialPhasedExecution("A")])
def test_unknown_blocks_are_named(strategy):
    with pytest.raises(AssertionError, match="Unknown Block 'x' list of expected Blocks: A"):
        strategy.place("x")
    with pytest.raises(AssertionError, match="Unknown block 'x'"):
        strategy.stage("x")


@pytest.mark.parametrize("kind", [*PIPELINES, *PHASED])
def test_a_block_has_one_stage(kind):
    with pytest.raises(AssertionError, match="associated with more than one stage"):
        kind("A", Stage("A"))


@pytest.mark.parametrize("kind", [*PIPELINES, *PHASED])
def test_stage_finds_a_block(kind):
    stage = Stage("B", "C")
    assert kind("A", stage if kind in PIPELINES else [stage]).stage("C") is stage


@pytest.mark.parametrize("wrong", [1, 2.5, AutoStage.SameAsIpu, None])
def test_a_pipeline_refuses_other_entries(wrong):
    with pytest.raises(AssertionError, match="A stage is a block name"):
        PipelinedExecution("A", wrong)


def test_a_stage_takes_names_and_a_number():
    assert Stage("A", "B").blocks == ["A", "B"]
    with pytest.raises(AssertionError, match="names of blocks"):
        Stage("A", 1)
    with pytest.raises(AssertionError, match="number of a device"):
        Stage("A").ipu("0")


@pytest.mark.parametrize("kind", PHASED)
@pytest.mark.parametrize("arguments", [(), ([],)], ids=["nothing", "an empty list"])
def test_phases_must_be_listed(kind, arguments):
    with pytest.raises(AssertionError, match="no AutoStage"):
        kind(*arguments)


@pytest.mark.parametrize(
    "entry",
    [Phase(Stage("A"), Stage("B")), [Stage("A"), Stage("B")], ["A", "B"]],
    ids=["a phase", "stages", "names"],
)
def test_a_phase_of_two_stages(entry):
    strategy = SerialPhasedExecution("start", entry)
    assert strategy.phase(1).stages == [Stage("A"), Stage("B")]
    assert strategy.place("B") == strategy.place("B", 1)
    assert strategy.place("B").phase == 1


def test_all_phases_may_come_as_one_list():
    assert SerialPhasedExecution(["A"], ["B"]) == SerialPhasedExecution([["A"], ["B"]])


def test_names_given_to_a_phase_make_one_stage():
    assert Phase("A", "B").stages == [Stage("A", "B")]
    with pytest.raises(AssertionError, match="either Stages or names"):
        Phase("A", Stage("B"))


@pytest.mark.parametrize("index", [-1, 2, "0"])
def test_positions_are_checked(index):
    strategy = SerialPhasedExecution("A", "B")
    with pytest.raises(AssertionError, match="There is no phase"):
        strategy.phase(index)
    with pytest.raises(AssertionError, match="There is no stage"):
        strategy.phase(0).stage(index)


def test_ipus_needs_one_number_per_stage():
    phase = Phase(Stage("A"), Stage("B")).ipus(2, 4)
    assert phase.stage(1) == Stage("B").ipu(4)
    with pytest.raises(AssertionError, match="one number for each of the 2 stages"):
        phase.ipus(1)


def test_parallel_phases_alternate_between_even_and_odd_devices():
    strategy = ParallelPhasedExecution(["A", "B"], ["C", "D"])
    assert [strategy.place(name).ipu for name in "ABCD"] == [0, 2, 1, 3]
    with pytest.raises(Error, match="even phases must run"):
        strategy.place("A", 1)


def test_serial_liveness_is_an_enumeration():
    strategy = SerialPhasedExecution("A").setTensorsLiveness(Liveness.OffChipAfterFwd)
    assert strategy.backendOptions()["tensors_liveness"] == 1
    with pytest.raises(AssertionError, match="Liveness"):
        strategy.setTensorsLiveness(1)


def test_parallel_tensors_may_leave_the_chip():
    strategy = ParallelPhasedExecution("A").sendTensorsOffChipAfterFwd(True)
    assert strategy.useSeparateBackwardPhase(True).backendOptions() == {
        "execution_mode": 2,
        "separate_backward_phase": True,
        "serial_phases_execution": False,
        "tensors_liveness": 1,
    }
    with pytest.raises(AssertionError, match="takes a bool"):
        strategy.sendTensorsOffChipAfterFwd(1)


@pytest.mark.parametrize("kind", [*PIPELINES, *PHASED])
def test_copies_are_equal_and_print_alike(kind):
    strategy = kind("A", Stage("B").ipu(1)) if kind in PIPELINES else kind("A", "B")
    duplicate = copy.deepcopy(strategy)
    assert duplicate == strategy
    assert repr(duplicate) == repr(strategy)
    assert strategy != kind("A")
    assert ShardedExecution("A") != PipelinedExecution("A")


@pytest.mark.parametrize("wrong", [PipelinedExecution, "pipelined", None])
def test_options_take_a_strategy(wrong):
    with pytest.raises(AssertionError, match="execution strategy"):
        Options().setExecutionStrategy(wrong)
