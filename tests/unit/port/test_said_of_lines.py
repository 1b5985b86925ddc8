"""What is said of rows that are left out, and of the state of an optimizer that is loaded."""

import pytest

from abele.port.engine import port
from abele.port.finding import Verdict
from abele.port.project import Project
from abele.port.source import Source

PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn({rows}, 4), torch.randint(0, 3, ({rows},)))
loader = DataLoader(data, batch_size=8)
model = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
{start}
total = 0.0
for x, y in loader:
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
    total += loss.item() * len(x)
print(total / len(loader.dataset))
model.eval()
with torch.no_grad():
    for x, y in loader:
        print(model(x).sum())
{end}
"""
LOAD = 'optimizer.load_state_dict(torch.load("last.pt"))'
SAVE = 'torch.save(optimizer.state_dict(), "last.pt")'


def said(code, rows=40, start="", end=""):
    """What is said with a code."""
    text = PROGRAM.format(rows=rows, start=start, end=end)
    findings = port(Project([Source("train.py", text)])).findings
    return [each for each in findings if each.code == code]


def test_an_average_over_rows_that_are_left_out_is_another():
    counted, evaluated = said("ABP203", rows=41)
    assert counted.text == "print(total / len(loader.dataset))"
    assert evaluated.text == "for x, y in loader:"
    assert {counted.verdict, evaluated.verdict} == {Verdict.MODIFIED}
    assert "an average over them is smaller than it was" in counted.reason
    assert "an average over the others may be another" in evaluated.reason


def test_an_evaluation_asks_for_the_rows_of_a_batch():
    text = PROGRAM.format(rows=41, start="", end="")
    after = port(Project([Source("train.py", text)])).after["train.py"]
    assert "if len(x) == loader.batch_size" in after


@pytest.mark.parametrize(
    ("end", "verdict", "own"),
    [
        (SAVE, Verdict.MATCH, "what the port saves is loaded"),
        ("", Verdict.MANUAL, "this program saves none itself"),
    ],
)
def test_an_optimizer_refuses_the_state_of_torchs(end, verdict, own):
    (only,) = said("ABP708", start=LOAD, end=end)
    assert (only.verdict, only.text) == (verdict, LOAD)
    assert own in only.reason
    assert "load its weights alone, or keep torch.optim.SGD" in only.reason


def test_an_optimizer_that_stays_torchs_loads_any_state():
    text = PROGRAM.format(rows=40, start=LOAD, end="")
    text = text.replace(
        "SGD(model.parameters(), lr=0.5, momentum=0.9)", "Adagrad(model.parameters())"
    )
    findings = port(Project([Source("train.py", text)])).findings
    assert not [each for each in findings if each.code == "ABP708"]
