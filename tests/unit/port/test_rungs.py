"""What steps of the ladder compare, without the processes that they run."""

import subprocess
from pathlib import Path

import pytest
import torch

from abele.errors import CheckError
from abele.port import ladder
from abele.port.rungs.inference import _same_in_order

LOGITS = torch.tensor([[1.0, float("nan")]])
CONSTANT = torch.arange(3)


@pytest.mark.parametrize(
    ("outputs", "same"),
    [
        ([LOGITS], True),
        ([CONSTANT, LOGITS], True),
        ([LOGITS + 1], False),
        ([LOGITS.nan_to_num()], False),
        ([LOGITS.double()], False),
        ([LOGITS, CONSTANT], False),
    ],
    ids=["no constants", "all", "other values", "no NaN", "other type", "other order"],
)
def test_results_are_compared_in_order_and_bit_for_bit(outputs, same):
    assert _same_in_order(outputs, [CONSTANT, LOGITS]) is same


def test_a_fit_check_that_takes_too_long_is_an_error_with_advice(monkeypatch):
    def never(command, timeout, **more):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", never)
    with pytest.raises(CheckError, match=r"no answer within 600 s\. Give the program arguments"):
        ladder._fits(Path("train.py"), (), "1GiB", "python")
