"""What is said of batches at the end of an epoch that are too few for an update."""

import pytest

from abele.port.engine import port
from abele.port.finding import Verdict
from abele.port.project import Project
from abele.port.source import Source

HEAD = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Subset, TensorDataset, random_split


class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 96

    def __getitem__(self, index):
        return torch.randn(4), 1


def read():
    return Data()


data = TensorDataset(torch.randn(96, 4), torch.randint(0, 3, (96,)))
first, rest = random_split(data, [64, 32])
loader = DataLoader({loader})
model, K = nn.Linear(4, 3), 4
rows = 8
rows = most = 16
alike = same = 8
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
"""
LOOP = """
for epoch in range(2):
    {before}
    for i, (x, y) in enumerate(loader):
        loss = nn.functional.cross_entropy(model(x), y) / K
        loss.backward()
        if (i + 1) % K == 0{also}:
            optimizer.step()
            optimizer.zero_grad()
"""
FORGET = "optimizer.zero_grad()"
LAST = " or i + 1 == len(loader)"


def said(loader, before="", also=""):
    """What is said of the gradients of several batches, with the worst verdict first."""
    text = HEAD.format(loader=loader) + LOOP.format(before=before or "pass", also=also)
    findings = port(Project([Source("train.py", text)])).findings
    own = [each for each in findings if each.code == "ABP311"]
    return sorted(own, key=lambda each: list(Verdict).index(each.verdict), reverse=True)


@pytest.mark.parametrize(
    "loader",
    [
        "data, batch_size=8",
        "data, batch_size=2 * K",
        "data, batch_size=alike",
        "data, batch_size=23, drop_last=True",
        "first, 4, True",
        "rest, 8",
        "Subset(data, range(0, 64)), 8",
        "TensorDataset(torch.arange(32).unsqueeze(1)), 8",
        "Data(), 8",
    ],
)
@pytest.mark.parametrize("also", ["", LAST])
def test_nothing_is_left_over_where_the_text_says_so(loader, also):
    worst, *_ = said(loader, also=also)
    assert worst.verdict is Verdict.MODIFIED
    assert worst.reason.endswith("updates of 4 batches, and nothing is left over")


@pytest.mark.parametrize(
    ("loader", "left"),
    [
        ("data, batch_size=16", "96 rows are 6 batches of 16, of which 2 are left over"),
        ("data, batch_size=30", "96 rows are 4 batches of 30, of which 4 are left over"),
        ("data, batch_size=19, drop_last=True", "96 rows are 5 batches of 19, of which 1 is left"),
        ("data, batch_size=rows", "where 4 does not divide the number of whole batches, some"),
        ("read(), batch_size=8", "where 4 does not divide the number of whole batches, some are"),
        ("data, 8, sampler=range(40)", "where 4 does not divide the number of whole batches, some"),
        ("Subset(data, [1, 2]), 8", "where 4 does not divide the number of whole batches, some"),
        ("data, batch_size=8, drop_last=K > 3", "where 4 does not divide the number of whole"),
    ],
)
def test_somebody_has_to_look_at_what_is_left_over(loader, left):
    kept, *_ = said(loader)
    assert (kept.verdict, kept.text) == (Verdict.MANUAL, "if (i + 1) % K == 0:")
    assert kept.reason.startswith(left)
    assert "go into the first update of the next" in kept.reason
    last, *_ = said(loader, FORGET, LAST)
    assert last.verdict is Verdict.MANUAL
    assert last.reason.startswith(left)
    assert "the update with them is not made" in last.reason


def test_gradients_that_are_forgotten_change_nothing():
    (only,) = said("read(), batch_size=8", FORGET)
    assert only.verdict is Verdict.MODIFIED
    assert "forgotten before the next epoch here, too" in only.reason


def test_an_edit_that_is_named_mends_it():
    before, *_ = said("data, batch_size=16", also=LAST)
    assert "update where (i + 1) % 4 == 0 alone, and call zero_grad() before" in before.reason
    assert [each.verdict for each in said("data, batch_size=16", FORGET)] == [Verdict.MODIFIED]
