"""The changes that make a model fit, each captured with the change."""

import importlib
import re
import types

import pytest
import torch
from torch import nn

import poptorch
from abele import arena
from abele.fit import Verdict
from abele.fit.run import STATE
from poptorch._fit import Rung, not_worth_it


class Layers(nn.Module):
    """Layers in a row, which keep much for backward; with batch norms or without."""

    def __init__(self, norm=nn.Identity, depth=6):
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 32), norm(32))
                for _ in range(depth)
            )
        )

    def forward(self, x):
        return poptorch.identity_loss(self.layers(x).square(), reduction="mean")


@pytest.fixture(autouse=True)
def interpreted(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    monkeypatch.setattr(arena, "available", lambda: False)
    process = importlib.import_module("abele.fit.estimate")
    monkeypatch.setattr(process, "_status", lambda name: 0)  # it grows while tests run
    monkeypatch.setattr(process, "_OF_OPERATION", (0, 0, 0))  # more than these small tensors


def wrapped(module=None, options=None):
    module = module or Layers()
    optimizer = poptorch.optim.SGD(module.parameters(), lr=0.1)
    return poptorch.trainingModel(module, options or poptorch.Options(), optimizer)


def batch(rows=512):
    return torch.randn(rows, 32)


def limit_of(share, model, *inputs):
    """A limit that only a share of what the model needs fits into."""
    return str(int(share * model.fit(*inputs, limit="1TiB").answer.size.high))


def limit_below_all(model, *inputs):
    """A limit that no change reaches, and weights in half alone would."""
    parts = model.fit(*inputs, limit="1TiB").answer.estimate.peak.parts
    return str(int(0.51 * sum(part.size.high for part in parts if part.role in STATE)))


def names(ladder):
    return [rung.name for rung in ladder.rungs]


def test_what_fits_needs_no_changes():
    report = wrapped().fit(batch(), limit="1TiB")
    assert report.ladder is None
    assert report.data()["changes"] is None


def test_smaller_micro_batches_come_first_and_are_estimated_with_the_change():
    model, rows = wrapped(), batch()
    report = model.fit(rows, limit=limit_of(0.55, model, rows))
    ladder = report.ladder
    assert ladder.fits
    (rung,) = ladder.rungs
    assert rung.lines[0].startswith("options.Training.gradientAccumulation(")
    options = poptorch.Options()
    exec(rung.lines[0], {"options": options})
    changed = wrapped(Layers(), options)
    again = changed.fit(rows, limit="1TiB").answer.estimate
    assert again.size.high == pytest.approx(rung.answer.estimate.size.high, rel=0.01)
    assert rung.saved > 0
    assert rung.ratios == {"FLOPs": pytest.approx(1.0), "bytes moved": pytest.approx(1.0, abs=0.5)}
    assert f"a step has {rung.ratios['FLOPs']:.2f} times the FLOPs and " in str(report)
    assert rung.lines[0] in str(report)


@pytest.mark.parametrize(
    ("saved", "ratios", "verdict", "why"),
    [
        (0.5, {"FLOPs": 12.4}, Verdict.UNCERTAIN, ""),
        (0.05, {"FLOPs": 1.1, "bytes moved": 1.9}, Verdict.UNCERTAIN, ""),
        (0.05, {}, Verdict.UNCERTAIN, ""),
        (0.05, {"FLOPs": 12.4}, Verdict.FITS, ""),
        (
            0.05,
            {"FLOPs": 1.0, "bytes moved": 12.4},
            Verdict.UNCERTAIN,
            "change: saves 5 %, and a step has 12.40 times the bytes moved",
        ),
        (0.001, {}, Verdict.UNCERTAIN, "change: saves less than 1 %"),
    ],
)
def test_what_saves_little_and_costs_much_is_offered_only_where_it_suffices(
    saved, ratios, verdict, why
):
    outcome = types.SimpleNamespace(verdict=verdict)
    parts = {"name": "change", "lines": (), "warning": ""}
    rung = Rung(saved=1000 * saved, ratios=ratios, answer=outcome, **parts)
    assert not_worth_it(rung, 1000) == why


def test_one_row_cannot_be_halved_so_the_inside_of_modules_is_computed_again():
    model, rows = wrapped(Layers(depth=8)), batch(511)  # 7 x 73, so that it cannot be halved
    report = model.fit(rows, limit=limit_of(0.8, model, rows))
    rung = report.ladder.rungs[0]
    assert rung.name == "compute the inside of 8 modules of layers again"
    assert 1 < rung.ratios["FLOPs"] < 1.5  # forward once more, at most
    changed = Layers(depth=8)
    exec("\n".join(rung.lines), {"model": changed, "poptorch": poptorch})
    again = wrapped(changed).fit(rows, limit="1TiB").answer.estimate
    assert again.size.high == pytest.approx(rung.answer.estimate.size.high, rel=0.01)


def test_the_model_is_as_it_was():
    module = Layers(depth=8)
    model = wrapped(module)
    rows = batch(511)
    model.fit(rows, limit=limit_below_all(model, rows)).data()
    assert all(not each._forward_hooks for each in module.modules())
    assert all(each.dtype is torch.float32 for each in module.parameters())


@pytest.mark.long
def test_where_nothing_suffices_all_are_listed_and_none_is_promised():
    model, rows = wrapped(Layers(depth=8)), batch()
    report = model.fit(rows, limit=limit_below_all(model, rows))
    assert not report.ladder.fits
    assert names(report.ladder)[-1] == "weights and inputs in half"
    halved = report.ladder.rungs[-1].ratios
    assert halved["FLOPs"] == pytest.approx(1.0)
    assert halved["bytes moved"] < 1.0
    assert report.ladder.rungs[0].ratios["bytes moved"] > 10  # weights once per row
    assert "none of them is sure to make it fit" in str(report)


class OnlyWide(Layers):
    def forward(self, x):
        if x.dtype is not torch.float32:
            raise TypeError("only float32 here")
        return super().forward(x)


def inference():
    layers = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 1))
    return poptorch.inferenceModel(layers)


def summing():
    options = poptorch.Options()
    options.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)
    return wrapped(options=options)


LEFT_OUT = {
    "no effect here": (wrapped, "setOptimizerLocation: there is one memory here"),
    "no effect of stages": (wrapped, "BeginBlock: stages of a pipeline share the memory"),
    "sums": (summing, "gradients are summed"),
    "forward": (lambda: wrapped(OnlyWide()), "only float32 here"),
    "inference": (inference, "inference keeps nothing"),
}


@pytest.mark.parametrize(("make", "why"), LEFT_OUT.values(), ids=LEFT_OUT)
def test_changes_that_are_not_offered_say_why(make, why):
    model, rows = make(), batch()
    report = model.fit(rows, limit=limit_below_all(model, rows))
    assert any(why in reason for reason in report.ladder.left_out)
    assert why in str(report)


def test_nothing_is_captured_where_no_change_can_suffice():
    tried = []
    report = wrapped().fit(batch(), limit="1KiB")
    first, rest = report.pieces(tried.append)
    assert first.startswith("It does not fit into 1KiB")
    assert re.search(r"weights and the optimizer's state take \d+ KiB whatever is changed", rest)
    assert "Not offered" not in rest
    assert (tried, report.ladder.rungs) == ([], ())
    assert report.data()["changes"]["stays"]["process"] == 0


@pytest.mark.long
def test_the_answer_is_there_before_changes_are_tried():
    model, rows = wrapped(), batch()
    tried = []
    pieces = model.fit(rows, limit=limit_of(0.1, model, rows)).pieces(tried.append)
    assert next(pieces).startswith("It does not fit")
    assert tried == []
    next(pieces)
    assert tried[0].startswith("trying micro-batches of ")


@pytest.mark.long
def test_micro_batches_that_cannot_suffice_are_not_tried():
    model, rows = wrapped(), batch()
    tried = []
    report = model.fit(rows, limit=limit_of(0.2, model, rows))
    list(report.pieces(tried.append))
    assert tried
    assert "trying micro-batches of 256 instead of 512 rows" not in tried
