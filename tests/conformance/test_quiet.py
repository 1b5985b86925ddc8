"""What torch's compiler says of an operator that it has no C interface for reaches nobody."""

import logging
import shutil

import pytest
import torch
from torch import nn

from helpers.models import plain_loss
from helpers.runs import rule_for, started

pytestmark = [
    pytest.mark.compiler,
    pytest.mark.long,  # tests/unit/targets/test_quiet.py has the same without compiling
    pytest.mark.skipif(
        not (shutil.which("g++") or shutil.which("clang++")), reason="no C++ compiler on PATH"
    ),
]


class Enlarged(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))
        self.twice = nn.Upsample(scale_factor=2, mode="bilinear")

    def forward(self, x):
        y = self.twice(x * self.scale)
        return y, plain_loss(y, "mean")


class Kept(logging.Handler):
    def __init__(self):
        super().__init__()
        self.names = []

    def emit(self, record):
        self.names.append(record.name)


def test_a_training_step_with_upsampling_compiles_without_a_word(monkeypatch, capfd):
    monkeypatch.setenv("ABELE_LOWERING", "inductor")
    monkeypatch.delenv("TORCH_LOGS", raising=False)
    said = []
    logger, handler = logging.getLogger("torch._inductor"), Kept()
    makes = logging.getLogRecordFactory()

    def noted(*given, **named):
        record = makes(*given, **named)
        said.append(record.getMessage())
        return record

    monkeypatch.setattr(logging, "_logRecordFactory", noted)
    logger.addHandler(handler)
    try:
        model = Enlarged()
        started(model, (torch.randn(1, 1, 4, 4),), rule_for(model, "sgd"), target="cpu")
    finally:
        logger.removeHandler(handler)
    assert any("missing a c-shim" in text for text in said)  # else this tests nothing
    assert handler.names == []
    assert "shim" not in "".join(capfd.readouterr())
