"""Wrappers in notebooks: a card, the report's page, and a progress bar."""

import importlib.util
import sys
import traceback
import types

import pytest
import torch

import poptorch
from poptorch._wrapper import progress


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, x):
        return poptorch.identity_loss(self.layer(x).square(), reduction="mean")


@pytest.fixture
def model(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    module = Net()
    options = poptorch.Options().deviceIterations(2).showCompilationProgressBar(False)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return poptorch.trainingModel(module, options, optimizer)


def test_a_card_says_what_runs_and_shows_the_loss(model):
    assert "not compiled yet" in model._repr_html_()
    losses = [float(model(torch.ones(8, 4))) for _ in range(3)]
    shown = model._repr_html_()
    assert "<b>Net: training</b>" in shown
    assert "programs are interpreted" in shown
    assert ">2 device iterations<" in shown
    assert f">loss {losses[0]:.4g} to {losses[-1]:.4g}, call 1 to 3<" in shown


def test_a_report_returns_its_page(model, tmp_path):
    model(torch.ones(8, 4))
    assert model.report(tmp_path / "page.htm").path == tmp_path / "page.htm"
    assert model.report(tmp_path / "run").path == tmp_path / "run" / "report.html"
    assert "<iframe" in model.report(tmp_path / "run")._repr_html_()


def test_a_mismatch_has_no_frame_of_its_check(model):
    model(torch.ones(8, 4))
    with pytest.raises(poptorch.Error, match="Shape mismatch") as caught:
        model(torch.ones(6, 4))
    names = [each.name for each in traceback.extract_tb(caught.value.__traceback__)]
    assert names == ["test_a_mismatch_has_no_frame_of_its_check", "__call__"]


@pytest.mark.parametrize(
    ("config", "widgets", "drawn"),
    [({"IPKernelApp": {}}, True, True), ({"IPKernelApp": {}}, False, False), ({}, True, False)],
    ids=["notebook", "without ipywidgets", "terminal of IPython"],
)
def test_a_bar_is_drawn_by_widgets_where_there_are_some(
    monkeypatch, capsys, config, widgets, drawn
):
    bars = []

    class Bar(progress.tqdm):
        def __init__(self, *args, **kwargs):
            bars.append(self)
            super().__init__(*args, **kwargs)

    shell = types.SimpleNamespace(config=config)
    python = types.SimpleNamespace(get_ipython=lambda: shell)
    monkeypatch.setitem(sys.modules, "IPython", python)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: widgets or None)
    monkeypatch.setattr(progress, "_of_notebooks", lambda: Bar)
    with progress.CompilationProgress(True) as shown:
        shown.on_stage("passes", 0.5)
    assert bool(bars) == drawn
    assert ("Graph compilation:  50% passes [0.0 s]\n" in capsys.readouterr().err) != drawn
