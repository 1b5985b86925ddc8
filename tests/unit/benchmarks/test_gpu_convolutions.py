"""Convolutions are measured with cuDNN and with ours; without a GPU by the host."""

import json
import sys

import torch
from benchmarks import gpu_convolutions, gpu_records

from abele.targets.cuda.emitted import convolutions, lowering
from abele.targets.cuda.emitted.blocks import Blocks
from abele.targets.cuda.emitted.lowering import Emitted
from abele.targets.cuda.emitted.source import Launch


def test_each_operator_is_planned_both_ways(monkeypatch):
    plans = []

    class Planned(Emitted):
        passes = ()

        def compile(self, program):
            plan = lowering.planned(program)
            launches = (step for step in plan.steps if isinstance(step, Launch))
            first = [unit.operations[0] for step in launches for unit in step.units]
            plans.append(any(isinstance(each, Blocks) for each in first))
            return type("Compiled", (), {"_plain": None})

    monkeypatch.setattr(gpu_convolutions, "Emitted", Planned)
    monkeypatch.setattr(gpu_convolutions, "microseconds", lambda works: [2.0, 1.0])
    monkeypatch.setattr(torch.Tensor, "cuda", lambda self: self)
    before = convolutions.LEAST_PIXELS
    for side in (1, 3):
        for operator in gpu_convolutions.OPERATORS:
            answer = gpu_convolutions.measured((2, 4, 5, 6, 7, side), operator)
            assert answer == {"cuDNN": 2.0, "ours": 1.0}
    assert plans == [False, True] * 6
    assert convolutions.LEAST_PIXELS is before


def test_without_a_gpu_nothing_is_measured(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["gpu_convolutions"])
    assert gpu_convolutions.main() == 3
    assert "torch finds no GPU here" in capsys.readouterr().err


def test_a_record_has_every_size(monkeypatch, capsys, tmp_path):
    both = {"cuDNN": 2.0, "ours": 1.0}
    monkeypatch.setattr(gpu_convolutions, "measured", lambda *_: both)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(gpu_records.ways, "plain_float32", lambda: None)
    monkeypatch.setattr(gpu_records.harness, "environment", dict)
    monkeypatch.setattr(sys, "argv", ["gpu_convolutions", "--out", str(tmp_path)])
    assert gpu_convolutions.main() == 0
    sizes = json.loads((tmp_path / "convolutions.json").read_text())["convolutions"]
    assert len(sizes) == len(gpu_convolutions.SIZES)
    assert "result 2.0 1.0" in capsys.readouterr().out
