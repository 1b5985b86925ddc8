"""What several instances do together, tried out; started by tests of `cosmictagger.instances`."""

import math
import sys

import pytest
import torch

from cosmictagger import instances
from cosmictagger.errors import DataError, InstanceError


def main(maker: str) -> None:
    group = getattr(instances, maker)()
    index, count = group.shard
    assert group.is_first is (index == 0)
    assert group.gather("values", {"a": [index, float("inf")]}) == [
        {"a": [each, math.inf]} for each in range(count)
    ]
    assert group.from_first("a name", "first" if index == 0 else "other") == "first"
    tensors = {"weights": torch.arange(3.0), "others": [1, None]}
    values = group.tensors_from_first("weights", tensors if index == 0 else None)
    assert values["weights"].equal(torch.arange(3.0))
    assert values["others"] == [1, None]
    assert group.tensors_from_first("nothing", None) is None
    assert group.total([index, 0.5]) == [sum(range(count)), 0.5 * count]
    rows = torch.arange(6).view(2, 3) + 10 * index
    joined = group.rows(rows)
    assert joined.dtype == torch.int64
    assert joined[2 * index : 2 * index + 2].equal(rows)
    assert len(joined) == 2 * count
    means = group.mean({"x": float(index), "y": math.nan if index else 3.0}, index + 1)
    weights = [each + 1 for each in range(count)]
    assert means["x"] == sum(i * w for i, w in enumerate(weights)) / sum(weights)
    assert means["y"] == 3.0
    assert math.isnan(group.mean({"x": math.nan}, 1)["x"])
    assert math.isnan(group.mean({"x": 1.0}, 0)["x"])
    disagree(group)
    fail_together(group)
    if index == count - 1:
        group.fail("the disk is full")
        sys.exit(3)
    try:
        group.total([0.0])
    except InstanceError as error:
        print(error)


def disagree(group: instances.Instances) -> None:
    group.agree("the configuration", {"data.seed": 7})
    different = "run.iterations is 0 on process 0 and 1 on process 1"
    with pytest.raises(InstanceError, match=different):
        group.agree("the configuration", {"data.seed": 7, "run.iterations": group.index})


def fail_together(group: instances.Instances) -> None:
    with group.together("something easy"):
        pass
    last = group.count - 1
    kind, text = InstanceError, f"^Instance {last} of {group.count}: there is no file$"
    if group.index == last:
        kind, text = DataError, "^there is no file$"
    with pytest.raises(kind, match=text), group.together("the files"):
        fail_if(group.index == last)


def fail_if(wanted: bool) -> None:
    if wanted:
        raise DataError("there is no file")


if __name__ == "__main__":
    main(sys.argv[1])
