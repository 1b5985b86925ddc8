"""What is said of rows that are left out, and of weights that the host changes."""

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


def said(code, rows=40, start="", end=""):
    """What is said with a code."""
    text = PROGRAM.format(rows=rows, start=start, end=end)
    findings = port(Project([Source("train.py", text)])).findings
    return [each for each in findings if each.code == code]


def test_what_changes_with_rows_that_are_left_out_is_said_at_the_loader():
    (short,) = said("ABP207", rows=41)
    assert (short.text, short.verdict) == (
        "loader = DataLoader(data, batch_size=8)",
        Verdict.MODIFIED,
    )
    for word in ("len(loader.dataset)", "len(loader)", "an evaluation of all rows"):
        assert word in short.reason


def test_weights_that_the_host_changes_are_named():
    (changed,) = said("ABP707", end="with torch.no_grad():\n    model[1].weight.mul_(0.5)")
    assert (changed.text, changed.verdict) == ("model[1].weight.mul_(0.5)", Verdict.MANUAL)
    assert "call copyWeightsToDevice() of the training model after it" in changed.reason


def test_an_evaluation_asks_for_the_rows_of_a_batch():
    text = PROGRAM.format(rows=41, start="", end="")
    after = port(Project([Source("train.py", text)])).after["train.py"]
    assert "if len(x) == loader.batch_size" in after
