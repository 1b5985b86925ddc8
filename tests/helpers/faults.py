"""Faults that are put into emitted code, as a compiler or an emitter might put them there."""

import dataclasses
import re

import pytest
import torch
from torch import nn

from abele.targets.cpu.emitted import lowering, source
from abele.targets.translation.places import Kind

#: Each fault: what is replaced in the text of a program, and by what.
FAULTS = {
    "wrong stride": (r"= p0\[i0 \* 13 \+ i1\]", "= p0[i0 * 12 + i1]"),
    "dropped tail": (r"i1 < 13", "i1 < 12"),
    "dropped row": (r"(k\d+\(.*), 0, 9\);", r"\1, 0, 8);"),
    "swapped operands": (r"\(v1 - v2\)", "(v2 - v1)"),
    "missing update": (r"(sqrt[^}]*?)\n  p5\[i0\] = v\d+;", r"\1"),
    "missing state": (r"(sqrt[^}]*?)\n  p2\[i0\] = v\d+;", r"\1"),
    "wrong state": (r"(v4 = )p2(\[i0\];[^}]*?0\.999\))", r"\1p0\2"),
    "stale constant": (r"float\(0\.7\)", "float(0.8)"),
    "wrong divisor": (r"0\.1111111111111111", "0.125"),
    "wrong step": (r"v1 \+ double\(1\.0\)", "v1 + double(2.0)"),
    "wrong momentum of statistics": (r"1e-05f, 0\.1f", "1e-05f, 0.2f"),
    "wrong learning rate": (r"double\(0\.001\)", "double(0.002)"),
}
#: Those that a program without an update has too.
OF_INFERENCE = ("wrong stride", "dropped tail", "dropped row")
#: A fault outside of the text: random numbers of another seed.
SEED = "wrong seed"


class Faulty(nn.Module):
    """Layers whose code has a place for every fault; 9 rows of 6."""

    def __init__(self):
        super().__init__()
        # No bias before the norm: its true gradient is zero, and Adam makes steps of the rounding.
        self.first = nn.Linear(6, 13, bias=False)
        self.norm, self.last = nn.BatchNorm1d(13), nn.Linear(13, 3)
        self.dropout = nn.Dropout(0.3)
        self.register_buffer("mask", torch.rand(13, 13).t())

    def forward(self, x, labels):
        hidden = torch.relu(self.norm(self.first(x)))
        hidden = self.dropout(hidden) * (hidden @ self.mask).tanh() + torch.linspace(0, 1, 13).to(x)
        scores = self.last(hidden)
        return scores, nn.functional.cross_entropy(scores, labels)


def faulty() -> Faulty:
    """The same weights each time."""
    torch.manual_seed(0)
    return Faulty()


def batch(count: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and labels."""
    generator = torch.Generator().manual_seed(1)
    labels = torch.randint(0, 3, (count,), generator=generator)
    return torch.randn(count, 6, generator=generator), labels


def inject(monkeypatch: pytest.MonkeyPatch, fault: str) -> None:
    """Puts a fault into all code that is emitted from now on."""
    if fault == SEED:
        _draw_once_more(monkeypatch)
        return
    pattern, replacement = FAULTS[fault]
    write = source.write

    def written(*args, **kwargs):
        plain = write(*args, **kwargs)
        return dataclasses.replace(plain, text=re.sub(pattern, replacement, plain.text))

    monkeypatch.setattr(lowering.source, "write", written)
    _fill_unwritten_memory(monkeypatch)


def _fill_unwritten_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has results and arena hold NaN before a run, never right values that an earlier run left."""
    compute = lowering.Runner._compute

    def filled(self, threads, first):
        if not first:  # else it has what an earlier run prepared
            self._arena.fill_(0xFF)
        for buffer, tensor in self._memory.items():
            if buffer.kind is Kind.OUTPUT and tensor.is_floating_point():
                tensor.fill_(torch.nan)
        compute(self, threads, first)

    monkeypatch.setattr(lowering.Runner, "_compute", filled)


def _draw_once_more(monkeypatch: pytest.MonkeyPatch) -> None:
    runner = lowering.Runner
    run = runner.run

    def drawing(self, inputs):
        torch.rand(1)
        return run(self, inputs)

    monkeypatch.setattr(runner, "run", drawing)
