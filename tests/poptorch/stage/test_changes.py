"""The changes that ``--limit mk2`` offers, each planned with the change."""

import pytest
import torch
from torch import nn

import poptorch
from abele.fit import Limit, Verdict
from poptorch import _stage as changes


@pytest.fixture(autouse=True)
def reference(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")


class Layers(nn.Module):
    """Layers in a row, which keep much for backward; with batch norms or without."""

    def __init__(self, norm=nn.Identity, depth=8, width=32):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Sequential(nn.Linear(width, width), nn.Tanh(), norm(width)) for _ in range(depth))
        )

    def forward(self, x):
        return poptorch.identity_loss(self.layers(x).square(), reduction="mean")


def wrapped(module, options=None):
    optimizer = poptorch.optim.Adam(module.parameters(), lr=0.1)
    return poptorch.trainingModel(module, options or poptorch.Options(), optimizer)


@pytest.fixture
def small(monkeypatch):
    """Answers for IPUs that are so small that small models do not fit."""

    def answer(model, *batch, size, limit="mk2"):
        known = Limit(
            name="mk2", size=size, source="a test", ipus=int(limit.partition("x")[2] or 0)
        )
        monkeypatch.setattr("poptorch._wrapper.fitting.of_machine", lambda name: known)
        monkeypatch.setattr("abele.stage.memory.BYTES", size)
        return model.fit(*batch, limit=limit)

    return answer


def expected(model, batch, small):
    """Bytes that the model itself is expected to take."""
    plan = small(model, batch, size=1).plan
    return plan.fullest.size.expected


def test_what_fits_needs_no_changes():
    report = wrapped(Layers()).fit(torch.randn(4, 32), limit="mk2")
    assert report.ladder is None
    assert report.data()["changes"] is None


def test_smaller_micro_batches_come_first_and_are_planned_with_the_change(small):
    model, rows = wrapped(Layers(nn.BatchNorm1d)), torch.randn(512, 32)
    size = int(1.2 * expected(model, rows, small))
    report = small(model, rows, size=size)
    (rung,) = report.ladder.rungs
    assert report.ladder.fits
    assert report.verdict is not Verdict.FITS
    assert "8 batch norms (layers.0.2, ...) take their statistics of" in str(report)
    assert rung.ratios == {"modelled time": pytest.approx(1, abs=0.05)}  # with as many rows
    options = poptorch.Options()
    exec(rung.lines[0], {"options": options})
    again = small(wrapped(Layers(nn.BatchNorm1d), options), rows, size=size)
    assert again.plan.fullest.size == rung.answer.size
    assert again.verdict is Verdict.FITS


def test_where_rows_and_values_are_few_state_is_made_smaller(small):
    """One row cannot be halved, and computing again saves nothing where nothing is kept."""
    model, rows = wrapped(Layers(width=256)), torch.randn(1, 256)
    report = small(model, rows, size=int(0.2 * expected(model, rows, small)))
    *before, last = report.ladder.rungs
    names = [rung.name for rung in before]
    assert names == ["weights and inputs in half", "optimizer state off-chip"]
    assert last.name.startswith("stages on ")
    assert last.lines[0].startswith("poptorch.BeginBlock(model.layers[")
    assert report.data()["changes"]["rungs"][-1]["lines"] == list(last.lines)
    assert any(line.startswith("compute the inside of") for line in report.ladder.left_out)


def test_stages_are_lines_that_make_it_fit(small, monkeypatch):
    monkeypatch.setattr(changes, "halved", lambda trial: iter(()))
    monkeypatch.setattr(changes, "optimizer_elsewhere", lambda trial: iter(()))
    model, rows = wrapped(Layers(width=256)), torch.randn(1, 256)
    size = int(0.7 * expected(model, rows, small))
    ladder = small(model, rows, size=size).ladder
    assert ladder.fits
    (rung,) = ladder.rungs
    assert rung.name.startswith("stages on ")
    *blocks, accumulation = rung.lines
    module, options = Layers(width=256), poptorch.Options()
    exec("\n".join(blocks), {"model": module, "poptorch": poptorch})
    exec(accumulation, {"options": options})
    count = options.Training.gradient_accumulation
    again = small(wrapped(module, options), rows.repeat(count, 1), size=size)
    assert again.verdict is Verdict.FITS
    assert again.plan.fullest.size.high == pytest.approx(rung.answer.size.high, rel=0.05)


def test_optimizer_state_goes_elsewhere():
    rows = torch.randn(4, 32)
    before = wrapped(Layers()).fit(rows, limit="mk2").plan
    options = poptorch.Options()
    location = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setOptimizerLocation(location)
    after = wrapped(Layers(), options).fit(rows, limit="mk2").plan
    assert "optimizer state" in {part.role for part in before.fullest.parts}
    assert "optimizer state" not in {part.role for part in after.fullest.parts}
