"""``abele port --ladder``: steps that fail late, and that the edit that is printed mends them."""

import functools
import json
import re
import subprocess

import pytest

from abele.__main__ import main
from abele.port import ladder
from abele.port.check import check
from helpers.warm_python import python

PROGRAM = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
net = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Dropout(0.5), torch.nn.Linear(3, 2))
optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
loader = DataLoader(TensorDataset(torch.randn(48, 4)), batch_size=8)
for step, (x,) in enumerate(loader):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""
PASSED = ["the program trains on this processor", "its lines are ported", "a batch of one row"]


@pytest.fixture
def climbed(tmp_path, capsys, monkeypatch):
    """Takes the steps for a program: the exit status, and what is printed."""
    monkeypatch.setattr(ladder, "climb", functools.partial(ladder.climb, python=python()))

    def climb(text, *options):
        script = tmp_path / "train.py"
        script.write_text(text)
        status = main(["port", str(script), "-o", str(tmp_path / "out"), "--ladder", *options])
        return status, capsys.readouterr().out

    return climb


def inserted(text, printed):
    """A program with the lines that an edit adds before another."""
    edit = re.search(r"\.py:(\d+): .*\n((?: +\+ .*\n)+) {10}(.*)$", printed, re.M)
    assert edit is not None
    lines = text.splitlines(keepends=True)
    at = int(edit[1]) - 1
    assert lines[at].strip() == edit[3]
    indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
    new = [indent + line.split("+ ", 1)[1] + "\n" for line in edit[2].splitlines()]
    return "".join([*lines[:at], *new, *lines[at:]])


HIDDEN = {
    "a rate": (
        "    if step == 1:\n        exec('optimizer.param_groups[0][\"lr\"] = 0.01')\n",
        "the optimizer's lr is 0.01 before this call, and the program's is 0.1",
        "+ training_model.setOptimizer(optimizer)",
    ),
    "weights": (
        "    if step == 2:\n        exec('net[0].weight.data.mul_(0.5)')\n",
        "0.weight, and the program has its own; send it, here or where it changes",
        "+     training_model.copyWeightsToDevice()",
    ),
    "a mode": (
        "    exec('net.train(step != 0)')\n",
        "is in evaluation mode now, and a program keeps the mode of its first call",
        "+ training_model.destroy()",
    ),
}


def some(cases):
    """The first case, and the others where long tests run."""
    first, *others = cases
    return [first, *(pytest.param(each, marks=pytest.mark.long) for each in others)]


@pytest.mark.parametrize("name", some(HIDDEN))
def test_what_the_program_does_not_know_is_told_by_the_edit(name, climbed, tmp_path):
    hidden, reason, edit = HIDDEN[name]
    status, printed = climbed(PROGRAM + hidden)
    assert status == 1
    *passed, failed = re.split(r"\n(?=passed|FAILED)", printed[printed.index("passed") :])
    assert [each.startswith(f"passed  {title}") for each, title in zip(passed, PASSED, strict=True)]
    assert failed.startswith("FAILED  the training model computes the same: step ")
    assert reason in failed
    assert edit in failed
    port = tmp_path / "out" / "train.py"
    assert not check(tmp_path / "train.py", port, 5, python=python()).equal
    port.write_text(inserted(port.read_text(), failed))
    assert check(tmp_path / "train.py", port, 5, python=python()).equal


SEEDS = {
    "torch.seed()": "torch.manual_seed(0)",
    "torch.manual_seed(int(time.time_ns()) % 1000)": "torch.manual_seed(0)",
}


@pytest.mark.parametrize("seed", some(SEEDS))
def test_a_program_that_is_another_at_each_start_gets_a_seed(seed, climbed):
    text = PROGRAM.replace("torch.manual_seed(0)", f"import time\n\n{seed}")
    status, printed = climbed(text)
    assert status == 1
    assert "FAILED  the training model computes the same: " in printed
    assert "this is another number at each start, so no two runs are alike" in printed
    ((old, new),) = re.findall(r"^ +- (.*)\n +\+ (.*)$", printed, re.M)
    assert (old, new) == (seed, SEEDS[seed])
    status, printed = climbed(text.replace(old, new))
    assert status == 0
    assert printed.count("passed  ") == 6


# What a step keeps is large beside what it multiplies, so that runs are short.
WIDE = """\
import torch
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
net = torch.nn.Sequential(
    *(torch.nn.Linear(8, 32), torch.nn.Tanh(), torch.nn.Linear(32, 32), torch.nn.Tanh()),
    *(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1)),
)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for (x,) in DataLoader(TensorDataset(torch.randn(8192, 16, 8)), batch_size=8192):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


def replaced(text, printed):
    """A program after the edits of the fit check: a line about options, and another batch size."""
    edit = printed[printed.index("The edit:") :]
    ((at, after, new),) = re.findall(r"\.py:(\d+): after .*\n {10}(.*)\n +\+ (.*)$", edit, re.M)
    lines = text.splitlines(keepends=True)
    assert lines[int(at) - 1].strip() == after
    lines.insert(int(at), f"{new}\n")
    ((old, size),) = re.findall(r"^ +- (.*)\n +\+ (.*)$", edit, re.M)
    assert text.count(old) == 1
    return "".join(lines).replace(old, size)


def fitting(port, limit):
    """What ``abele fit`` says of a port."""
    command = [python(), "-m", "abele", "fit", str(port), "--limit", limit, "--json"]
    return json.loads(subprocess.run(command, capture_output=True, text=True).stdout)


def test_what_does_not_fit_is_made_to_by_the_edit(climbed, tmp_path):
    port = tmp_path / "out" / "train.py"
    status, _ = climbed(WIDE, "--limit", "2GiB")
    assert status == 0
    low = fitting(port, "2GiB")["bytes"]["low"]
    changes = fitting(port, str(int(low / 1.05)))["changes"]
    enough = changes["rungs"][-1]["answer"]["bytes"]["high"] * 1.04
    assert low > enough
    status, printed = climbed(WIDE, "--limit", f"{enough / 2**20:.0f}MiB")
    assert status == 1
    assert printed.count("passed  ") == 5
    assert "FAILED  it fits into " in printed
    assert "It fits with these changes" in printed
    port.write_text(replaced(port.read_text(), printed))
    assert ladder._fits(port, (), f"{enough / 2**20:.0f}MiB", python())[0]
