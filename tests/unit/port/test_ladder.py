"""The steps of a port: each says what it saw, and nothing comes after the first that fails."""

import itertools
import subprocess
from pathlib import Path

import pytest
import torch

from abele.errors import CheckError
from abele.port import files, ladder
from abele.port.check.stages import same_in_order
from abele.port.engine import port
from helpers.warm_python import python

PROGRAM = """\
import sys


import torch

torch.manual_seed(0)
net = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(int(sys.argv[1])):
    x = torch.randn(8, 4)
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


@pytest.fixture
def ported(tmp_path):
    """Ports a program: what that says, the script, and the port's."""

    def port_program(text):
        script = tmp_path / "train.py"
        script.write_text(text)
        result = port(files.read(script))
        files.write(result, script, tmp_path / "ported")
        return result, script, tmp_path / "ported" / "train.py"

    return port_program


@pytest.fixture
def climbed(ported):
    def climb(text=PROGRAM, arguments=("9",), limit="1GiB", steps=6):
        rungs = ladder.climb(*ported(text), arguments, limit, python=python())
        return list(itertools.islice(rungs, steps))

    return climb


@pytest.fixture
def step(ported):
    """Takes one step alone, which needs one process instead of five."""

    def take(which, text):
        return which(ported(text)[2], ("9",), python())

    return take


def test_a_program_that_is_right_takes_all_steps(climbed, tmp_path):
    rungs = climbed()
    assert [rung.passed for rung in rungs] == [True] * 6
    text = "\n".join(map(str, rungs))
    assert "passed  the program trains on this processor: its first loss is 0." in text
    assert "a batch of one row trains: one of 8 rows has a loss and gradients by itself" in text
    assert "losses and weights of 5 updates are equal" in text
    assert "nothing is evaluated by a program with these arguments" in text
    assert rungs[-1].title == "it fits into 1GiB"
    fits, says = ladder._fits(tmp_path / "ported" / "train.py", ("9",), "100B", python())
    assert not fits
    assert "does not fit" in says


def test_a_program_that_does_not_run_takes_no_step(climbed):
    (rung,) = climbed(arguments=())
    assert not rung.passed
    assert "IndexError" in rung.says
    (rung,) = climbed(arguments=("0",))
    assert "without an update" in rung.says


def test_a_line_that_is_left_stops_before_anything_is_compared(climbed):
    rungs = climbed(PROGRAM + "torch.save(net, 'net.pt')\nnet.register_full_backward_hook(print)\n")
    assert [rung.passed for rung in rungs] == [True, False]
    assert "manual" in rungs[1].says


NET = "torch.nn.Linear(4, 2)"
LOSS = "net(x).square().mean()"
NORM = f"torch.nn.Sequential({NET}, torch.nn.BatchNorm1d(2))"
ONE_ROW = {
    "averages over rows": (
        (NET, NORM),
        "Expected more than 1 value per channel",
        "`\nbatch norm averages over the rows of a batch",
    ),
    "a dimension of one": (
        (LOSS, "torch.nn.functional.mse_loss(net(x)[:, :1].squeeze(), x[:, 0])"),
        "Using a target size",
        "name the one that is meant",
    ),
    "a spread of rows": (
        (LOSS, "(net(x) / net(x).std(0)).square().mean()"),
        "its results are not all finite",
        "give var(correction=0).sqrt()",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_ROW)
def test_what_one_row_breaks_is_named_by_its_line(name, step):
    (old, new), problem, advice = ONE_ROW[name]
    passed, says = step(ladder._takes_one_row, PROGRAM.replace(old, new))
    assert not passed
    assert problem in says
    assert advice in says
    assert "train.py:" in says


X = "x = torch.randn(8, 4)\n"
EVALUATED = "with torch.no_grad():\n    print(net(torch.ones(8, 4)).sum().item())\n"
TWO_MODES = """\
torch.manual_seed(1)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.layer(x) if self.training else 2 * self.layer(x)


"""


def test_a_model_that_is_given_no_batch_has_no_row_to_try(step):
    text = PROGRAM.replace("    x = torch.randn(8, 4)\n", "").replace("for", X + "for", 1)
    said = "there is nothing to try: the model is given no batch"
    assert step(ladder._takes_one_row, text) == (True, said)


def test_an_inference_model_sees_the_mode_of_its_model(step):
    text = PROGRAM.replace("torch.manual_seed(0)\n", TWO_MODES)
    text = text.replace(f"net = {NET}", "net = Net()") + f"net.eval()\n{EVALUATED}"
    assert step(ladder._evaluates, text)[0]


def test_an_inference_model_that_does_not_see_the_mode_of_its_model_is_named(step):
    hidden = TWO_MODES.replace("self.training", 'getattr(self, "training")')
    text = PROGRAM.replace("torch.manual_seed(0)\n", hidden)
    text = text.replace(f"net = {NET}", "net = Net()") + f"net.eval()\n{EVALUATED}"
    passed, says = step(ladder._evaluates, text)
    assert not passed
    assert "a program keeps that of its first call: call eval() of the model" in says


HIDDEN = {
    "a rate": ("exec('optimizer.param_groups[0][\"lr\"] = 0.01')", "learning rate is now 0.01"),
    "weights": ("exec('net.weight.data.mul_(0.5)')", "weight of the host's module changed"),
}


@pytest.mark.parametrize("name", HIDDEN)
def test_what_the_program_does_not_know_is_a_note(name, climbed):
    hidden, reason = HIDDEN[name]
    *passed, failed = climbed(PROGRAM + f"    {hidden}\n")
    assert [each.passed for each in passed] == [True] * 3
    assert not failed.passed
    assert reason in failed.says


LOGITS = torch.tensor([[1.0, float("nan")]])
CONSTANT = torch.arange(3)


@pytest.mark.parametrize(
    ("outputs", "same"),
    [
        ([LOGITS], True),
        ([CONSTANT, LOGITS], True),
        ([LOGITS + 1], False),
        ([LOGITS.nan_to_num()], False),
        ([LOGITS.double()], False),
        ([LOGITS, CONSTANT], False),
    ],
    ids=["no constants", "all", "other values", "no NaN", "other type", "other order"],
)
def test_results_are_compared_in_order_and_bit_for_bit(outputs, same):
    assert same_in_order(outputs, [CONSTANT, LOGITS]) is same


def test_a_fit_check_that_takes_too_long_is_an_error_with_advice(monkeypatch):
    def never(command, timeout, **more):
        raise subprocess.TimeoutExpired(command, timeout)

    monkeypatch.setattr(subprocess, "run", never)
    with pytest.raises(CheckError, match=r"no answer within 600 s\. Give the program arguments"):
        ladder._fits(Path("train.py"), (), "1GiB", "python")
