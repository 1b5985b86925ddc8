"""Programs that train several models: each update is compared with one of the same model."""

import contextlib
import os
import re
from pathlib import Path

import pytest
import torch

from abele.port import engine, files
from abele.port.check import Comparison, check
from abele.port.check.process import Recorded
from abele.port.check.side_by_side import Pairing, pairs
from abele.port.check.watch import Enough, Original, Port, Record
from helpers.warm_python import python

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def both(tmp_path):
    """A script with two models, and its port."""
    script, folder = SCRIPTS / "two_models.py", tmp_path / "ported"
    files.write(engine.port(files.read(script)), script, folder)
    return script, folder / script.name


def test_each_model_is_compared_and_named(both):
    comparison = check(*both, 20, timeout_s=120, python=python())
    assert comparison.equal, str(comparison)
    assert [each.model for each in comparison.steps] == ["Teacher"] * 3 + ["Student"] * 3
    assert comparison.compared == 8
    assert "8 tensors of Teacher (3) and Student (3), bit for bit" in str(comparison)
    assert str(comparison).splitlines()[6].split()[-1] == "Student"


def test_a_mistake_in_the_second_model_is_said_of_it(both):
    text = both[1].read_text()
    assert text.count("lr=0.05") == 1
    both[1].write_text(text.replace("lr=0.05", "lr=0.06"))
    comparison = check(*both, 20, timeout_s=120, python=python())
    first = comparison.difference
    assert (first.step, first.kind, first.name, first.model) == (
        4, "parameter", "body.weight", "Student"
    )  # fmt: skip
    assert "first in parameter 'body.weight' of Student after step 4" in str(comparison)


# -- what a script says of its models --------------------------------------------------------


def told_by(program, watcher=Original, steps=20):
    """The records of a program, each with its kind."""
    told = []
    record = Record(os.devnull)
    record.steps, record.add = steps, lambda kind, **facts: told.append((kind, facts))
    watch = watcher(record)
    with contextlib.suppress(Enough), watch.watching():
        program()
        watch.finish()
    return told


def of(told, kind, *keys):
    return [tuple(facts[key] for key in keys) for each, facts in told if each == kind]


def step(optimizer, *losses):
    optimizer.zero_grad()
    for loss in losses:
        loss.backward()
    optimizer.step()


def loss_of(model):
    return model(torch.ones(2, model.in_features)).square().mean()


def sgd(*modules, **more):
    parameters = [each for module in modules for each in module.parameters()]
    return torch.optim.SGD(parameters, lr=0.1, **more)


def test_models_that_are_trained_in_turn_keep_their_losses():
    first, second = torch.nn.Linear(3, 2), torch.nn.Linear(4, 1)

    def program():
        one, two = sgd(first), sgd(second)
        for _ in range(2):
            losses = loss_of(second), loss_of(first)
            for loss in losses:  # both, before either update
                loss.backward()
            one.step()
            two.step()

    told = told_by(program)
    assert of(told, "update", "model") == [(0,), (1,), (0,), (1,)]
    assert all(len(losses) == 1 for (losses,) in of(told, "update", "losses"))


def test_a_network_made_anew_for_each_fold_is_another_model():
    def program():
        for _ in range(3):
            model = torch.nn.Linear(3, 2)
            optimizer = sgd(model)
            step(optimizer, loss_of(model))
            loss_of(model)  # an evaluation with gradients belongs to no later model

    told = told_by(program)
    assert of(told, "model", "model", "name") == [(number, "Linear") for number in range(3)]
    assert [[*tensors] for (tensors,) in of(told, "model", "tensors")] == [["weight", "bias"]] * 3


def test_a_network_with_another_optimizer_is_the_same_model():
    body, head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)

    def program():
        network = torch.nn.Sequential(body, head)
        for part in (head, body, network):
            step(sgd(part), network(torch.ones(2, 3)).square().mean())

    assert of(told_by(program), "update", "model") == [(0,)] * 3


def test_networks_of_one_class_in_one_model_have_names_of_their_own():
    networks = [torch.nn.Linear(3, 2) for _ in range(3)]

    def program():
        step(sgd(*networks), sum(map(loss_of, networks)))

    ((names,),) = of(told_by(program), "model", "tensors")
    assert [*names] == [
        f"{prefix}{name}" for prefix in ("", "Linear2.", "Linear3.") for name in ("weight", "bias")
    ]


def test_an_optimizer_without_an_update_is_named():
    first, second = torch.nn.Linear(3, 2), torch.nn.Linear(4, 1)

    def program():
        one, two = sgd(first), sgd(second)  # noqa: F841 - kept, as a program keeps it
        replaced = sgd(first, momentum=0.5)  # noqa: F841
        for _ in range(3):
            step(one, loss_of(first))

    ((note,),) = of(told_by(program, steps=2), "note", "text")
    assert re.fullmatch(
        r"the optimizer of .*: `return torch.optim.SGD.*` made no update in these steps", note
    )


def test_sessions_of_a_port_are_models(monkeypatch):
    import poptorch

    monkeypatch.setenv("ABELE_TARGET", "reference")

    class Net(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(3, 2)

        def forward(self, x):
            return poptorch.identity_loss(self.layer(x).square().mean(), reduction="none")

    def program():
        first, second = Net(), Net()
        options = poptorch.Options().showCompilationProgressBar(False)
        both = [
            poptorch.trainingModel(each, options, poptorch.optim.SGD(each.parameters(), lr=0.1))
            for each in (first, second)
        ]
        for _ in range(2):
            for model in both:
                model(torch.ones(4, 3))
        both[0].destroy()
        anew = poptorch.optim.SGD(first.parameters(), lr=0.2)
        poptorch.trainingModel(first, options, anew)(torch.ones(4, 3))

    told = told_by(program, Port)
    assert of(told, "update", "model") == [(0,), (1,), (0,), (1,), (2,)]


# -- which update is which -------------------------------------------------------------------


def says(*updates):
    """The record of a script that makes updates, each a model's number and its loss."""
    record = Recorded()
    for model, loss in updates:
        if model == len(record.models):
            facts = {"shape": [2], "kind": "parameter", "line": "a.py:1", "digest": "start"}
            record.add("model", {"model": model, "name": "Net", "tensors": {"w": facts}})
        record.add(
            "update",
            {"model": model, "losses": [loss], "inputs": [], "alone": True, "line": "a.py:2",
             "digests": {"w": str(loss)}},
        )  # fmt: skip
    return record


A, B = [(0, 0.5), (0, 0.25)], [(1, 2.0), (1, 3.0)]


@pytest.mark.parametrize(
    ("original", "port", "step", "kind"),
    [
        ([*A, *B], [*A, *B], None, None),
        ([*A, *B], [*A, (0, 2.0), (0, 3.0)], None, None),  # one of them has one model
        ([*A, (0, 2.0), (0, 3.0)], [*A, *B], None, None),
        ([*A, *B], [*A, B[0], (1, 4.0)], 4, "loss"),
        ([*A, *B], [A[0], *B], 2, "loss"),
        ([*A, *B], A, 3, "steps"),
    ],
)
def test_updates_are_paired_in_their_order(original, port, step, kind):
    pairing = Pairing(says(*original), says(*port), 20)
    first = pairing.difference()
    assert (first and first.step, first and first.kind) == (step, kind)
    assert {each.model for each in pairing.steps} in ({""}, {"Net 1"}, {"Net 1", "Net 2"})


def test_a_second_model_that_starts_otherwise_is_said_of_it():
    other = says(*A, *B)
    other.models[1].tensors["w"] = other.models[1].tensors["w"] | {"digest": "another"}
    first = Pairing(says(*A, *B), other, 20).difference()
    assert (first.step, first.name, first.model) == (0, "w", "Net 2")
    result = Comparison(steps=(), difference=first, compared=2)
    assert "parameter 'w' of Net 2 before its first step" in str(result)


def test_two_networks_with_the_same_names_are_told_apart():
    def facts(**digests):
        shape = {"weight": [3], "bias": [1]}
        return {
            name.replace("_", "."): {
                "shape": shape[name.rpartition("_")[2]], "kind": "parameter", "digest": digest
            }
            for name, digest in digests.items()
        }  # fmt: skip

    # Biases are equal.
    mine = facts(Teacher_bias="0", Teacher_weight="t", bias="0", weight="s")
    port = facts(teacher_weight="t", teacher_bias="0", student_weight="s", student_bias="0")
    assert pairs(mine, port) == {
        "weight": "student.weight", "bias": "student.bias",
        "Teacher.weight": "teacher.weight", "Teacher.bias": "teacher.bias",
    }  # fmt: skip
