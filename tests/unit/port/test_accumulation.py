"""Which accumulations of gradients are ported, and which are refused by line."""

import pytest

from abele.port.engine import port
from abele.port.finding import Verdict
from abele.port.project import Project
from abele.port.source import Source

PROGRAM = """
import os

import torch
from torch.utils.data import DataLoader, TensorDataset

PARTS = 4
{given}
data = TensorDataset(torch.randn(64, 4), torch.randn(64, 3))
loader = DataLoader(data, batch_size=8)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def train(parts):
    {before}
    for i, (x, y) in {loop}:
        loss = torch.nn.functional.mse_loss(model(x), y) / {number}
        loss.backward()
        if {condition}:
            optimizer.step()
            optimizer.zero_grad()
        {rest}
    {after}


train(4)
"""


def ported(**more):
    texts = {"given": "", "before": "optimizer.zero_grad()", "loop": "enumerate(loader)"}
    texts |= {"number": "PARTS", "rest": "pass", "after": "pass"} | more
    texts.setdefault("condition", f"(i + 1) % {texts['number']} == 0")
    return port(Project([Source("train.py", PROGRAM.format(**texts))]))


def lines(result, verdict):
    return {(each.text, each.code) for each in result.findings if each.verdict is verdict}


SIMPLE = {
    "a constant of the file": {},
    "a number": {"number": "4"},
    "negated": {"condition": "not (i + 1) % PARTS"},
    "counted from one": {"loop": "enumerate(loader, 1)", "condition": "i % PARTS == 0"},
}


@pytest.mark.parametrize("name", SIMPLE)
def test_a_constant_number_of_batches_is_given_to_options(name):
    result = ported(**SIMPLE[name])
    assert not lines(result, Verdict.MANUAL) | lines(result, Verdict.BLOCKED)
    after = result.after["train.py"]
    assert after.count("training_opts.Training.gradientAccumulation(4)") == 1
    assert "losses = training_model(x, y)" in after


REFUSED = {
    "an argument": {"number": "parts"},
    "read from the environment": {"given": "PARTS = int(os.environ['PARTS'])"},
    "assigned twice": {"given": "PARTS = 2"},
    "added to": {"given": "PARTS += 1"},
    "assigned in a branch": {"given": "if len(os.environ) > 3:\n    N = 2", "number": "N"},
    "a global of a function": {"given": "def more():\n    global PARTS\n    PARTS = 2"},
    "shadowed": {"given": "for PARTS in range(3):\n    pass"},
    "the last batch, too": {"condition": "(i + 1) % PARTS == 0 or i + 1 == len(loader)"},
    "counted from nothing": {"condition": "i % PARTS == 0"},
    "another number": {"condition": "(i + 1) % 2 == 0", "number": "PARTS", "rest": "print(x)"},
    "an update behind the loop": {"after": "optimizer.step()"},
    "a batch is printed": {"rest": "print(x)"},
    "no enumerate": {"loop": "zip(range(8), loader)"},
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_accumulations_are_refused_by_line(name):
    result = ported(**REFUSED[name])
    assert result.verdict is Verdict.BLOCKED
    assert {code for _, code in lines(result, Verdict.BLOCKED)} <= {"ABP399", "ABP616"}


def test_gradients_that_are_kept_for_the_next_epoch_are_named():
    result = ported(before="pass")
    assert lines(result, Verdict.MANUAL) == {("if (i + 1) % PARTS == 0:", "ABP311")}


def test_a_count_of_batches_is_named():
    result = ported(after="print(len(loader))")
    assert lines(result, Verdict.MANUAL) == {("print(len(loader))", "ABP311")}
