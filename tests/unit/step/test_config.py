"""StepConfig: frozen, and every field says what changing it costs."""

import dataclasses
import json

import pytest

from abele.step.config import MatmulPrecision, MeanStrategy, OutputMode, Reduction, StepConfig
from abele.step.replica_groups import Grouping, GroupType

CHANGED = {
    "training": False,
    "gradient_accumulation": 2,
    "replicas": 2,
    "processes": 2,
    "reduction": Reduction.SUM,
    "mean_strategy": MeanStrategy.RUNNING,
    "stochastic_rounding": True,
    "trap_exceptions": True,
    "matmul_precision": MatmulPrecision.MEDIUM,
    "adopts": True,
    "broadcast_buffers": False,
    "device_iterations": 2,
    "output_mode": OutputMode.ALL,
    "output_period": 2,
    "seed": 1,
    "input_group_size": 2,
    "input_group_type": GroupType.ORTHOGONAL,
    "replica_groups": {"weight": Grouping(2)},
}
RUN_TIME = {
    "device_iterations",
    "output_mode",
    "output_period",
    "seed",
    "broadcast_buffers",
    "input_group_size",
    "input_group_type",
    "replica_groups",
}


def test_the_table_above_is_complete():
    fields = {field.name: field for field in dataclasses.fields(StepConfig)}
    assert fields.keys() == CHANGED.keys()
    assert all(field.metadata["when"] in ("compile", "run") for field in fields.values())


@pytest.mark.parametrize(("name", "value"), CHANGED.items(), ids=CHANGED)
def test_only_compile_time_fields_need_another_executable(name, value):
    changed = StepConfig(**{name: value}).compile_fields()
    assert (changed == StepConfig().compile_fields()) == (name in RUN_TIME)


def test_compile_time_fields_are_json():
    fields = StepConfig(reduction=Reduction.SUM).compile_fields()
    assert json.loads(json.dumps(fields)) == fields


def test_gradients_per_update():
    config = StepConfig(gradient_accumulation=3, replicas=5, processes=7, device_iterations=11)
    assert config.micro_batches_per_update == 105
