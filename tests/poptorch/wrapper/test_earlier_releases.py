"""Names of earlier releases still work, or say what became of them."""

import logging

import pytest
import torch

import poptorch
from poptorch.options import _container


@pytest.fixture(autouse=True)
def _logged(monkeypatch):
    monkeypatch.setattr(_container, "_logged", set())


def test_anchor_modes_are_output_modes(caplog):
    options = poptorch.Options()
    assert options.defaultAnchorMode()
    assert options.anchorMode(poptorch.AnchorMode.EveryN, 2) is options
    assert (options.output_mode, options.output_return_period) == (poptorch.OutputMode.EveryN, 2)
    assert not options.defaultAnchorMode()
    assert "anchorMode is of an earlier release" in caplog.text


def test_each_name_is_mentioned_once(caplog):
    for _ in range(3):
        poptorch.Options().anchorMode(poptorch.OutputMode.All)
    assert caplog.text.count("anchorMode") == 1


def test_the_old_namespace_is_the_new_one():
    options = poptorch.Options()
    options.Popart.set("outlineThreshold", 3.0)
    assert options._Popart.options["outlineThreshold"] == 3.0


def test_the_old_reduction_is_the_new_one():
    training = poptorch.Options().Training
    assert training.accumulationReductionType(poptorch.ReductionType.Sum) is training
    kind = training.accumulation_and_replication_reduction_type
    assert kind is poptorch.ReductionType.Sum
    with pytest.raises(ValueError, match="must be set to"):
        training.accumulationReductionType(poptorch.ReductionType.NoReduction)


def test_switches_of_casting_are_accepted_and_said_to_do_nothing(caplog):
    precision = poptorch.Options().Precision
    policy = poptorch.autocasting.Policy(fp16=["linear"])
    assert policy.fp16 == ["linear"]
    assert precision.autocastEnabled(True).autocastPolicy(policy) is precision
    assert precision.runningVarianceAlwaysFloat(True) is precision
    assert "nothing is cast by itself" in caplog.text


def test_autocast_is_a_context_and_a_decorator():
    @poptorch.autocast(enabled=True)
    def double(x):
        return x * 2

    with poptorch.autocast():
        assert double(torch.ones(2)).dtype is torch.float32


def test_partials_types_of_the_first_release():
    assert poptorch.MultiConvPartialsType.Half.value is torch.float16


@pytest.mark.parametrize("name", ["eager", "experimental", "IPUScope", "Compiler"])
def test_removed_names_say_so(name):
    with pytest.raises(AttributeError, match=rf"poptorch\.{name} was removed by PopTorch 3\.1"):
        getattr(poptorch, name)


def test_nothing_is_logged_at_a_use_of_todays_names(caplog):
    caplog.set_level(logging.WARNING)
    poptorch.Options().outputMode(poptorch.OutputMode.All)
    assert not caplog.records
