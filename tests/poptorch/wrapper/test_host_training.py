"""Training steps of a wrapped model that run on the host are announced; nothing else is."""

import copy
import json
import re

import pytest
import torch

import poptorch
from helpers.wrapping import options, rows, scorer, sgd, trainer
from poptorch import optim
from poptorch._wrapper import traps

WORDS = "ran on the host, not on"


@pytest.fixture(autouse=True)
def own_summary(monkeypatch):
    """What these tests provoke is not said at the end of the process."""
    monkeypatch.setattr(traps, "_seen", [])


def train(module, optimizer, steps=1):
    """The loop everybody writes."""
    for seed in range(steps):
        optimizer.zero_grad()
        module(*rows(4, seed=seed))[0].backward()
        optimizer.step()


@pytest.mark.parametrize("method", ["to", "cpu", "float", "train"])
def test_the_plain_module_that_a_method_returned_is_announced_once(method, caplog):
    model = scorer()
    wrapped = trainer(model)
    net = getattr(wrapped, method)(*(["cpu"] if method == "to" else []))
    train(net, sgd(model), steps=3)
    assert caplog.text.count(WORDS) == 1
    assert (
        f"A training step of Scorer ran on the host, not on the device, since executor.{method}()"
        in (caplog.text)
    )
    assert len(set(re.findall(r"test_host_training\.py:\d+", caplog.text))) == 2
    watch = poptorch._state.module_weights.shared_by(model).host_training
    assert watch.sentence().startswith("3 training steps of Scorer ran on the host")


def test_an_executor_that_is_gone_before_it_ran_is_missed(caplog):
    model = scorer()
    net = trainer(model).to("cpu")
    train(net, optim.Adam(net.parameters(), lr=0.1))
    assert WORDS in caplog.text


def test_the_target_is_named_once_it_is_known(caplog):
    model = scorer()
    wrapped = trainer(model)
    wrapped(*rows(4))
    train(model, sgd(model))
    assert "not on target reference. Forward was called" in caplog.text


def test_it_can_be_turned_off(caplog):
    model = scorer()
    net = trainer(model, hostTrainingWarning=False).to("cpu")
    train(net, sgd(model))
    assert caplog.text == ""


def validated(model, wrapped):
    wrapped(*rows(4))
    model.eval()
    with torch.no_grad():
        model(*rows(4))
    model.train()


def called_with_gradients_but_not_trained(model, wrapped):
    model(*rows(4))
    sgd(model).step()  # there are no gradients


def steps_of_the_usual_loop(model, wrapped):
    optimizer = optim.Adam(model.parameters(), lr=0.1)
    wrapped.setOptimizer(optimizer)
    optimizer.zero_grad()
    wrapped(*rows(4))
    optimizer.step()


def weights_and_copies(model, wrapped):
    wrapped.load_state_dict(copy.deepcopy(model.state_dict()))
    wrapped(*rows(4))
    other = copy.deepcopy(model)
    train(other, sgd(other))
    poptorch.inferenceModel(model, options())(*rows(4))


def another_model_with_the_same_part(model, wrapped):
    wrapped(*rows(4))
    other = torch.nn.Sequential(model.fc, torch.nn.Linear(3, 1))
    other(rows(4)[0]).sum().backward()
    sgd(other).step()


def the_host_after_destroy(model, wrapped):
    wrapped(*rows(4))
    wrapped.destroy()
    train(model, sgd(model))


@pytest.mark.parametrize(
    "act",
    [
        validated,
        called_with_gradients_but_not_trained,
        steps_of_the_usual_loop,
        weights_and_copies,
        another_model_with_the_same_part,
        the_host_after_destroy,
    ],
)
def test_what_is_no_training_on_the_host_is_not_announced(act, caplog):
    model = scorer()
    act(model, trainer(model))
    assert WORDS not in caplog.text


def test_the_host_may_train_on_when_the_executor_has_done_its_part(caplog):
    model = scorer()
    wrapped = trainer(model)
    wrapped(*rows(4))
    del wrapped
    train(model, sgd(model))
    assert caplog.text == ""


def test_the_end_of_a_program_and_its_report_say_how_many(tmp_path, caplog):
    model = scorer()
    made = options(modelName="net").enableProfiling(str(tmp_path))
    executor = poptorch.trainingModel(model, made, sgd(model))
    executor(*rows(4))
    train(executor.to("cpu"), sgd(model), steps=4)
    caplog.clear()
    traps._summarise()  # registered with atexit
    words = "4 training steps of Scorer ran on the host, not on target reference, since executor.to"
    assert words in caplog.text
    executor.destroy()
    run = json.loads((tmp_path / "net" / "run.json").read_text(encoding="utf-8"))
    assert run["host_steps"] == 4
    assert run["build"]["target"] == "reference"
    assert words in (tmp_path / "net" / "report.html").read_text(encoding="utf-8")
