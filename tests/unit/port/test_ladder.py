"""The steps of a port: each says what it saw, and nothing comes after the first that fails."""

import itertools
import re

import pytest

from abele.port import files, ladder
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
        _, script, of_port = ported(text)
        return which(script, of_port, ("9",), python())

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
    assert "did not call backward" in rung.says or "without an update" in rung.says


def test_a_line_that_is_left_stops_before_anything_is_compared(climbed):
    rungs = climbed(PROGRAM + "torch.save(net, 'net.pt')\nnet.register_full_backward_hook(print)\n")
    assert [rung.passed for rung in rungs] == [True, False]
    assert "manual" in rungs[1].says


def mended(text, rung):
    """A program after the edit that a step prints."""
    old, new = re.findall(r"^[-+] (.*)$", rung.says, re.MULTILINE)
    assert text.count(old) == 1
    return text.replace(old, new)


NET = "torch.nn.Linear(4, 2)"
LOSS = "net(x).square().mean()"
NORM = f"torch.nn.Sequential({NET}, torch.nn.BatchNorm1d(2))"
ONE_ROW = {
    "averages over rows": (
        (NET, NORM),
        "Expected more than 1 value per channel",
        "GroupNorm(1, 2)",
    ),
    "a dimension of one": (
        (LOSS, "torch.nn.functional.mse_loss(net(x)[:, :1].squeeze(), x[:, 0])"),
        "Using a target size",
        ".squeeze(1)",
    ),
    "a spread of rows": (
        (LOSS, "(net(x) / net(x).std(0)).square().mean()"),
        "its results are not all finite",
        ".var(0, correction=0).add(1e-5).sqrt()",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ONE_ROW)
def test_what_one_row_breaks_is_mended_by_the_edit_that_is_printed(name, climbed, step):
    (old, new), problem, edit = ONE_ROW[name]
    text = PROGRAM.replace(old, new)
    *others, last = climbed(text)
    assert [rung.passed for rung in others] == [True, True]
    assert str(last).startswith("FAILED  a batch of one row trains: ")
    assert problem in last.says
    assert edit in last.says
    assert "train.py:" in last.says
    assert step(ladder._takes_one_row, mended(text, last))[0]


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
    assert "A wrapper copies the mode of its model: call eval() of it in the port" in says
