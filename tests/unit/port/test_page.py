"""The page of a port: what is said is there, and what looks like markup is text."""

from abele.port.engine import port
from abele.port.page import page
from abele.port.project import Project
from abele.port.source import Source

TEXT = """import torch

net = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
for _ in range(3):
    optimizer.zero_grad()
    loss = net(torch.ones(4, 3)).mean()
    loss.backward()  # <script>alert("x")</script>
    optimizer.step()
"""


def test_a_page_has_old_beside_new_with_reasons():
    text = page(port(Project([Source("run<b>.py", TEXT)])), "run<b>.py")
    assert "The program is ported; nothing is left to do by hand." in text
    assert '<a href="#ABP302"' in text
    assert '<b id="ABP302">' in text
    assert "docs/port.md#abp302" in text
    assert "&lt;script&gt;" in text
    assert "<script" not in text
    assert "run&lt;b&gt;.py" in text


def test_a_program_that_stays_has_a_page_too():
    text = page(port(Project([Source("run.py", "print(1)\n")])), "run.py")
    assert "nothing of this program would run on abele" in text
    assert "Files that stay" in text
