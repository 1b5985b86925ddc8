"""Which numbers of batches that are no numbers in the text options are given."""

import pytest

from abele.port.engine import port
from abele.port.finding import Verdict
from abele.port.project import Project
from abele.port.source import Source

HEAD = """
import argparse
import torch
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(64, 4), torch.randn(64, 3))


def train(model, loader, optimizer, parts):
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        loss = torch.nn.functional.mse_loss(model(x), y) / {number}
        loss.backward()
        if (i + 1) % {number} == 0:
            optimizer.step()
            optimizer.zero_grad()


class Config:
    def __init__(self, parts):
        self.parts = parts

    def set(self, count):
        {method}


def override(settings, name, value):
    {override}


args = argparse.Namespace(parts=4)
config = {{"train": {{"parts": 4}}}}
own = Config(int("4"))
PARTS = int("4")
"""
MAIN = """
def main():
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loader = DataLoader(data, batch_size=8)
    for _ in range(2):
        {before}
        train(model, loader, optimizer, {given})
        {after}


main()
"""


def ported(given="None", number="parts", **more):
    """The port of a program, and why it is blocked."""
    texts = {"method": "pass", "override": "pass", "before": "pass", "after": "pass", **more}
    text = HEAD.format(number=number, **texts) + MAIN.format(given=given, **texts)
    result = port(Project([Source("train.py", text)]))
    blocked = [each.reason for each in result.findings if each.verdict is Verdict.BLOCKED]
    return result.after["train.py"], " ".join(blocked)


@pytest.mark.parametrize(
    ("given", "number", "text"),
    [
        ("args.parts", "parts", "args.parts"),
        ("parts=args.parts", "parts", "args.parts"),
        ("config['train']['parts']", "parts", 'config["train"]["parts"]'),
        ("own.parts", "parts", "own.parts"),
        ("PARTS", "parts", "PARTS"),
        ("args", "parts.parts", "args.parts"),
        ("None", "PARTS", "PARTS"),
        ("None", "args.parts", "args.parts"),
    ],
)
def test_a_number_that_stays_is_given_to_options(given, number, text):
    after, blocked = ported(given, number)
    assert not blocked
    assert after.count(f"training_opts.Training.gradientAccumulation({text})") == 1
    assert after.index("gradientAccumulation") < after.index("poptorch.trainingModel(")
    assert after.index("gradientAccumulation") < after.index("poptorch.DataLoader(")


CHANGES = {
    "set": ("args.parts", {"after": "args.parts = 8"}),
    "added to": ("args.parts", {"after": "args.parts += 1"}),
    "set in a function": ("args.parts", {"override": "settings.parts = value"}),
    "set by its name": ("args.parts", {"override": "setattr(settings, 'parts', value)"}),
    "set by a name": ("args.parts", {"override": "setattr(settings, name, value)"}),
    "set in its dictionary": ("args.parts", {"override": "settings.__dict__['parts'] = 2"}),
    "its dictionary is changed": ("args.parts", {"after": "vars(args).update(parts=2)"}),
    "a key is set": ("config['train']['parts']", {"after": "config['train']['parts'] = 2"}),
    "a key of a name is set": ("config['train']['parts']", {"after": "config[str(_)] = 2"}),
    "a key is updated": ("config['train']['parts']", {"after": "config['train'].update(parts=2)"}),
    "a method sets it": ("own.parts", {"method": "self.parts = count"}),
    "a method of it is called": ("own.parts", {"after": "own.set(2)"}),
    "a global is set": ("PARTS", {"override": "global PARTS; PARTS = value"}),
    "a global is set by its name": ("PARTS", {"override": "globals()['PARTS'] = 2"}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_number_that_may_change_is_refused(name):
    given, more = CHANGES[name]
    _, blocked = ported(given, **more)
    assert "has to be known and the same for the whole run" in blocked
    assert "may give it another value" in blocked or "is not given its value in one" in blocked


@pytest.mark.parametrize(
    ("given", "more", "why"),
    [
        ("2 + _", {}, "it is computed anew in each turn"),
        ("args.parts", {"after": "train(model, loader, optimizer, 2)"}, "different values"),
        ("args.parts", {"after": "print(map(train, []))"}, "others may call train()"),
        ("many", {"before": "many = int('2')"}, "many is given its value in a loop"),
        ("args.parts", {"number": "max(1, parts)"}, "it is computed anew in each turn"),
    ],
)
def test_a_number_that_is_not_known_is_refused(given, more, why):
    _, blocked = ported(given, **more)
    assert why in blocked


def test_what_is_left_over_is_not_known():
    _, blocked = ported("args.parts")
    assert not blocked
    text = HEAD.replace("    optimizer.zero_grad()\n    for", "    for")
    text = text.format(number="parts", method="pass", override="pass")
    text += MAIN.format(given="args.parts", before="pass", after="pass")
    found = port(Project([Source("train.py", text)])).findings
    (kept,) = [each for each in found if each.verdict is Verdict.MANUAL]
    assert kept.reason.startswith("where parts does not divide the number of whole batches")


TWO = """
import torch
import torch.distributed as dist
from data import make

dist.init_process_group("gloo")
loader = make()
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer.zero_grad()
for i, (x, y) in enumerate(loader):
    loss = torch.nn.functional.mse_loss(model(x), y){divided}
    loss.backward()
    if (i + 1) % 4 == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
DATA = """
import torch
from torch.utils.data import DataLoader, TensorDataset


def make():
    return DataLoader(TensorDataset(torch.randn(64, 4), torch.randn(64, 3)), batch_size=4)
"""


def of_instances(divided):
    main = Source("main.py", TWO.format(divided=divided))
    return port(Project([main, Source("data.py", DATA)]))


def test_options_of_instances_are_made_in_each_file_that_needs_them():
    result = of_instances(" / 4")
    assert result.verdict is Verdict.MODIFIED
    for text in result.after.values():
        assert "    training_opts = popdist.poptorch.Options()\n" in text
        assert "\ntraining_opts.Training.gradientAccumulation(4)\n" in text


def test_a_sum_of_batches_is_no_mean_of_instances():
    blocked = [e for e in of_instances("").findings if e.verdict is Verdict.BLOCKED]
    assert "divide the loss by 4 before backward()" in blocked[0].reason
