"""Mistakes in wrapping a module, and in using a wrapper before or without its device."""

import importlib.metadata

import pytest
import torch

import poptorch
from helpers.wrapping import options, rows, scorer, sgd, trainer
from poptorch._wrapper import distribution


def test_options_that_cannot_be_honoured_are_named_when_wrapping():
    chosen = options()
    chosen._Popart.set("accumulationFactor", 4)
    with pytest.raises(poptorch.Error, match=r"_Popart\.set\('accumulationFactor', 4\): set Train"):
        poptorch.inferenceModel(scorer(), chosen)


def test_options_without_effect_are_reported_once(caplog, monkeypatch):
    monkeypatch.setattr("poptorch._wrapper.translate._reported", set())
    for _ in range(2):
        poptorch.inferenceModel(scorer(), options(enableStableNorm=True))
    assert caplog.text.count("has no effect here") == 1


def test_the_report_names_what_the_program_called(caplog, monkeypatch):
    monkeypatch.setattr("poptorch._wrapper.translate._reported", set())
    chosen = options()
    chosen._Popart.set("outlineThreshold", 10.0)
    chosen.Precision.setPartialsType(torch.float16)
    poptorch.inferenceModel(scorer(), chosen)
    assert "Option _Popart.set('outlineThreshold', 10.0) has no effect here" in caplog.text
    assert "setPartialsType" in caplog.text
    assert "Dithering" not in caplog.text


def test_a_distribution_of_the_same_name_is_warned_of(monkeypatch):
    class Vendor:
        version = "3.4.0"

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Vendor())
    words = r"run on abele.*poptorch 3\.4\.0 is installed, too.*pip uninstall"
    with pytest.warns(poptorch.OtherPoptorchWarning, match=words):
        distribution.announce()


def test_what_may_be_asked_before_compiling():
    wrapped = trainer(scorer())
    assert not wrapped.isCompiled()
    assert not wrapped.isAttachedToDevice()
    assert not wrapped.copyWeightsToHostIfNeeded()
    wrapped.destroy()


def test_an_offline_device_can_only_compile():
    chosen = options(connectionType=poptorch.ConnectionType.Never)
    wrapped = poptorch.inferenceModel(scorer(), chosen)
    with pytest.raises(AssertionError, match="offline device"):
        wrapped(*rows(4))
    wrapped.compile(*rows(4))
    assert wrapped.isCompiled()
    assert not wrapped.isAttachedToDevice()
    with pytest.raises(AssertionError, match="offline device"):
        wrapped.attachToDevice()


def test_on_demand_attaches_at_the_first_call():
    chosen = options(connectionType=poptorch.ConnectionType.OnDemand)
    wrapped = poptorch.inferenceModel(scorer(), chosen)
    wrapped.compile(*rows(4))
    assert not wrapped.isAttachedToDevice()
    wrapped(*rows(4))
    assert wrapped.isAttachedToDevice()


def test_replacing_the_module_of_another_wrapper_is_refused():
    model = scorer()
    old = trainer(model)
    old(*rows(4))
    old.destroy()
    new = trainer(model, sgd(model))
    with pytest.raises(RuntimeError, match="already been wrapped"):
        old(*rows(4))
    new(*rows(4))
