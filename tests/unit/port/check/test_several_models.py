"""Programs that train several models: each update is compared with one of the same model."""

import contextlib
import re
from pathlib import Path

import pytest
import torch

from abele.port.check import check
from abele.port.check.process import Messages
from abele.port.check.side_by_side import SideBySide, models_of, pairs
from abele.port.check.watch import Enough, Original, Port, digest
from helpers.warm_python import python

SCRIPTS = Path(__file__).parent / "scripts"


@pytest.fixture
def both(tmp_path):
    """A script with two models, and its port by hand."""
    ported = tmp_path / "ported" / "two_models.py"
    ported.parent.mkdir()
    ported.write_text((SCRIPTS / "two_models_port.py").read_text())
    return SCRIPTS / "two_models.py", ported


def test_each_model_is_compared_and_named(both):
    comparison = check(*both, 20, timeout_s=120, python=python())
    assert comparison.equal, str(comparison)
    assert comparison.models == ("Teacher", "Student")
    assert [each.model for each in comparison.steps] == [0] * 3 + [1] * 3
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


class Recorder:
    """A channel that keeps what it is told."""

    def __init__(self):
        self.said = []

    def send(self, kind, **content):
        self.said.append((kind, content))

    def model(self, number, name, tensors, kinds, lines):
        self.send("model", model=number, name=name, tensors=list(tensors))

    def state(self, model, step, tensors):
        self.send("state", model=model, step=step, digests=dict.fromkeys(tensors))

    def of(self, kind, *keys):
        return [tuple(content[key] for key in keys) for each, content in self.said if each == kind]


def told_by(program, watcher=Original, steps=20):
    channel = Recorder()
    watch = watcher(channel, steps)
    with contextlib.suppress(Enough), watch.watching():
        program()
        watch.finish()
    return channel


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
    assert told.of("step", "model", "first") == [(0, 1), (1, 1), (0, 2), (1, 2)]
    assert all(len(losses) == 1 for (losses,) in told.of("step", "losses"))
    assert told.of("state", "model", "step")[:2] == [(0, 0), (0, 1)]


def test_a_network_made_anew_for_each_fold_is_another_model():
    def program():
        for _ in range(3):
            model = torch.nn.Linear(3, 2)
            optimizer = sgd(model)
            step(optimizer, loss_of(model))
            loss_of(model)  # an evaluation with gradients belongs to no later model

    told = told_by(program)
    assert told.of("model", "model", "name", "tensors") == [
        (number, "Linear", ["weight", "bias"]) for number in range(3)
    ]


def test_a_network_with_another_optimizer_is_the_same_model():
    body, head = torch.nn.Linear(3, 3), torch.nn.Linear(3, 2)

    def program():
        network = torch.nn.Sequential(body, head)
        for part in (head, body, network):
            step(sgd(part), network(torch.ones(2, 3)).square().mean())

    assert told_by(program).of("step", "model", "first") == [(0, 1), (0, 2), (0, 3)]


def test_networks_of_one_class_in_one_model_have_names_of_their_own():
    networks = [torch.nn.Linear(3, 2) for _ in range(3)]

    def program():
        step(sgd(*networks), sum(map(loss_of, networks)))

    ((names,),) = told_by(program).of("model", "tensors")
    assert names == [
        f"{prefix}{name}" for prefix in ("", "Linear.", "Linear2.") for name in ("weight", "bias")
    ]


def test_an_optimizer_without_an_update_is_named():
    first, second = torch.nn.Linear(3, 2), torch.nn.Linear(4, 1)

    def program():
        one, two = sgd(first), sgd(second)  # noqa: F841 - kept, as a program keeps it
        replaced = sgd(first, momentum=0.5)  # noqa: F841
        for _ in range(3):
            step(one, loss_of(first))

    ((note,),) = told_by(program, steps=2).of("note", "text")
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
    assert told.of("step", "model", "first") == [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3)]


# -- which update is which -------------------------------------------------------------------


class Said:
    """A script that has said all that it says."""

    path, wrapped = Path("script.py"), False

    def __init__(self, name, *messages):
        self.name = name
        self._messages = [*messages, {"kind": "end", "error": None}]

    def message(self):
        return self._messages.pop(0)

    def answer(self, text):
        if text != "go":
            value = torch.ones(2) if self.name == "original" else torch.full((2,), 1.5)
            torch.save({"w": value}, text)
            self._messages.insert(0, {"kind": "saved"})


def says(name, *updates, shapes=None, together=False):
    """A script that makes updates, each a model's number and its loss."""
    said, made = [], {}
    for model, loss in updates:
        if model not in made:
            made[model] = 0
            shape = (shapes or {}).get(model, [2])
            facts = {"w": {"shape": shape, "kind": "parameter", "line": "a.py:1"}}
            said.append({"kind": "model", "model": model, "name": "Net", "tensors": facts})
            said.append({"kind": "state", "model": model, "step": 0, "digests": {"w": "start"}})
        made[model] += 1
        state = {"model": model, "step": made[model]}
        said.append({"kind": "state", **state, "digests": {"w": str(loss)}})
        first = made[model] - together
        if not together or made[model] % 2 == 0:
            said.append(
                {"kind": "step", "model": model, "first": first, "last": made[model],
                 "losses": [loss], "inputs": [], "line": "a.py:2"}
            )  # fmt: skip
    return Messages(Said(name, *said))


def compared(original, port, tmp_path, steps=20):
    return SideBySide(original, port, tmp_path, steps).run(lambda step: None)


A, B = [(0, 0.5), (0, 0.25)], [(1, 2.0), (1, 3.0)]


def test_models_of_one_name_get_numbers(tmp_path):
    result = compared(says("original", *A, *B), says("port", *A, *B), tmp_path)
    assert result.equal
    assert result.models == ("Net 1", "Net 2")


def test_updates_in_another_turn_are_paired_by_model(tmp_path):
    in_turn = [A[0], B[0], A[1], B[1]]
    result = compared(says("original", *in_turn), says("port", *A, *B, together=True), tmp_path)
    assert result.equal, str(result)
    assert [each.model for each in result.steps] == [0, 1, 0, 1]
    wrong = [*A, B[0], (1, 4.0)]
    result = compared(says("original", *in_turn), says("port", *wrong, together=True), tmp_path)
    assert (result.difference.step, result.difference.model) == (4, "Net 2")


def test_models_in_another_order_are_paired_by_their_tensors(tmp_path):
    original = says("original", *A, *B, shapes={0: [2], 1: [3]})
    turned = [(1 - model, loss) for model, loss in (*B, *A)]
    result = compared(original, says("port", *turned, shapes={0: [3], 1: [2]}), tmp_path)
    assert result.difference.kind == "steps"  # each is the same, their order is not
    assert "updates Net 1 in the original and Net 2 in the port" in str(result)
    assert all(each.same_loss for each in result.steps)


def test_a_model_with_fewer_updates_is_noticed(tmp_path):
    result = compared(says("original", *A, *B), says("port", A[0], *B, (1, 4.0)), tmp_path)
    assert (result.difference.kind, result.difference.step) == ("steps", 2)
    assert "first in step 2, which they do not both make" in str(result)


def test_a_model_that_the_port_does_not_train_is_noticed(tmp_path):
    result = compared(says("original", *A, *B), says("port", *A), tmp_path)
    assert (result.difference.kind, result.difference.step) == ("steps", 3)
    assert "The port ends after 2 steps, the original goes on" in str(result)


def test_two_models_of_one_script_may_be_one_of_the_other(tmp_path):
    one = [*A, (0, 2.0), (0, 3.0)]
    assert compared(says("original", *A, *B), says("port", *one), tmp_path).equal
    assert compared(says("original", *one), says("port", *A, *B), tmp_path).equal


def test_a_second_model_that_starts_otherwise_is_said_of_it(tmp_path):
    other = says("port", *A, *B)
    start = next(
        each
        for each in other.script._messages
        if each["kind"] == "state" and (each["model"], each["step"]) == (1, 0)
    )
    start["digests"] = {"w": "another"}
    result = compared(says("original", *A, *B), other, tmp_path)
    assert (result.difference.step, result.difference.name) == (0, "w")
    assert "parameter 'w' of Net 2 before its first step, by 5.0e-01" in str(result)


def test_two_networks_with_the_same_names_are_told_apart():
    names = [f"{each}.{name}" for each in ("teacher", "student") for name in ("weight", "bias")]
    shapes = {"weight": [3], "bias": [1]}
    facts = {name: {"shape": shapes[name.split(".")[1]], "kind": "parameter"} for name in names}
    mine = {name.removeprefix("student."): each for name, each in reversed(facts.items())}
    mine = {name.replace("teacher", "Teacher"): each for name, each in mine.items()}
    values = {name: digest(torch.zeros(1)) for name in names}  # biases are equal
    values |= {"student.weight": "s", "teacher.weight": "t"}
    here = {"weight": "s", "bias": values["student.bias"]}
    here |= {"Teacher.weight": "t", "Teacher.bias": values["teacher.bias"]}
    assert pairs(mine, facts, (here, values)) == {
        "weight": "student.weight", "bias": "student.bias",
        "Teacher.weight": "teacher.weight", "Teacher.bias": "teacher.bias",
    }  # fmt: skip
    assert models_of([mine], [facts]) == [0]
