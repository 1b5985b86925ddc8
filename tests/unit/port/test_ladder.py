"""The steps of a port: each says what it saw, and nothing comes after the first that fails."""

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
x = torch.randn(8, 4)
for _ in range(int(sys.argv[1])):
    optimizer.zero_grad()
    loss = net(x).square().mean()
    loss.backward()
    optimizer.step()
    print(loss.item())
"""


@pytest.fixture
def climbed(tmp_path):
    def climb(text=PROGRAM, arguments=("9",), limit="1GiB"):
        script = tmp_path / "train.py"
        script.write_text(text)
        result = port(files.read(script))
        files.write(result, script, tmp_path / "ported")
        rungs = ladder.climb(
            result, script, tmp_path / "ported" / "train.py", arguments, limit, python=python()
        )
        return list(rungs)

    return climb


def test_a_program_that_is_right_takes_all_steps(climbed):
    rungs = climbed()
    assert [rung.passed for rung in rungs] == [True] * 4
    text = "\n".join(map(str, rungs))
    assert "passed  the program trains on this processor: its first loss is 0." in text
    assert "losses and weights of 5 updates are equal" in text
    assert "it fits into 1GiB" in text


def test_what_does_not_fit_is_the_last_step(climbed):
    *others, last = climbed(limit="100B")
    assert all(rung.passed for rung in others)
    assert str(last).startswith("FAILED  it fits into 100B: ")
    assert "does not fit" in last.says


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
