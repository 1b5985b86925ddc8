"""Mistakes in wrapping a module, and in using a wrapper before or without its device."""

import importlib.metadata

import pytest
import torch

import poptorch
from helpers.wrapping import options, rows, scorer, sgd, trainer
from poptorch._wrapper import distribution


@pytest.mark.parametrize("wrap", [poptorch.trainingModel, poptorch.inferenceModel])
@pytest.mark.parametrize("given", [{}, torch.optim.SGD, 3], ids=["dict", "a class", "number"])
def test_options_must_be_options(wrap, given):
    with pytest.raises(poptorch.Error, match="Invalid type: 'options'"):
        wrap(scorer(), given)


def test_buffers_of_a_class_of_their_own_are_refused():
    class Special(torch.Tensor):
        pass

    model = scorer()
    model.register_buffer("special", torch.ones(2).as_subclass(Special))
    with pytest.raises(poptorch.Error, match=r"All buffers must be an instance of torch\.Tensor"):
        trainer(model)


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


def test_a_distribution_of_the_same_name_is_refused(monkeypatch):
    class Vendor:
        version = "3.4.0"

    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: Vendor())
    with pytest.raises(ImportError, match=r"poptorch 3\.4\.0 is installed.*pip uninstall"):
        distribution.announce()


@pytest.mark.parametrize(
    "method",
    ["copyWeightsToHost", "copyWeightsToDevice", "detachFromDevice", "attachToDevice"],
)
def test_methods_that_need_an_executable(method):
    wrapped = trainer(scorer())
    with pytest.raises(poptorch.Error, match="has not been compiled or has been destroyed"):
        getattr(wrapped, method)()


def test_what_may_be_asked_before_compiling():
    wrapped = trainer(scorer())
    assert not wrapped.isCompiled()
    assert not wrapped.isAttachedToDevice()
    assert not wrapped.copyWeightsToHostIfNeeded()
    wrapped.destroy()


def test_compilation_time_needs_compiling_and_the_bar():
    chosen = poptorch.Options()
    with pytest.raises(poptorch.Error, match="compile the model before"):
        poptorch.inferenceModel(scorer(), chosen).compilationTime()
    wrapped = poptorch.inferenceModel(scorer(), options())
    wrapped(*rows(4))
    with pytest.raises(poptorch.Error, match="showCompilationProgressBar"):
        wrapped.compilationTime()


def test_attaching_and_detaching_twice():
    wrapped = trainer(scorer())
    wrapped(*rows(4))
    with pytest.raises(poptorch.Error, match="Device is already attached"):
        wrapped.attachToDevice()
    wrapped.detachFromDevice()
    with pytest.raises(poptorch.Error, match="Device is not attached"):
        wrapped.detachFromDevice()


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
