"""``--to torch``: PopTorch programs become programs of plain PyTorch that train the same digits."""

import re
from pathlib import Path

import pytest

from abele.port import files
from abele.port.engine import port
from abele.port.finding import Verdict
from abele.port.project import Project
from abele.port.source import Source
from helpers import port_fixtures

pytestmark = pytest.mark.usefixtures("in_process")
HERE = Path(__file__).parent
FIXTURES = HERE / "rules_torch"
#: They ask wrappers for what modules do not have.
MANUAL = {"reports"}
#: Torch's optimizer keeps no rounding of updates that were written by hand; a mode that plain
#: PyTorch does not have is blocked where it accumulates, and so is one call of two training models.
ONE_WAY = {"by_hand_rounded", "modes_accumulation", "new_optimizer"}


@pytest.mark.parametrize("name", port_fixtures.names(FIXTURES))
def test_a_fixture_becomes_what_it_should(name, request):
    port_fixtures.check(FIXTURES, name, "torch", request.config.getoption("--update-golden"))


def whole():
    return port_fixtures.names(FIXTURES, whole=True)


@pytest.mark.parametrize("name", whole())
def test_porting_the_port_changes_nothing(name):
    port_fixtures.check_again(FIXTURES, name, "torch")


@pytest.mark.parametrize("name", sorted({*whole()} - MANUAL))
def test_a_port_prints_the_same_digits(name, tmp_path):
    text, _ = port_fixtures.read(FIXTURES, name)
    (tmp_path / "before.py").write_text(text)
    before = port_fixtures.printed(tmp_path / "before.py")
    assert len(before) > 1
    after = FIXTURES / f"{name}.out.py"
    assert not re.search(r"\b(poptorch|popdist)\b", after.read_text())
    assert port_fixtures.printed(after) == before


def there():
    """Ports to PopTorch, from the fixtures of the rules."""
    names = port_fixtures.names(HERE / "rules", whole=True)
    return sorted({*names} - ONE_WAY - {"optimizer_state"})


@pytest.mark.parametrize("name", there())
def test_there_and_back_prints_the_same_digits(name, tmp_path):
    text = (HERE / "rules" / f"{name}.out.py").read_text()
    result = port(Project([Source("there.py", text)]), to="torch")
    assert result.verdict is Verdict.MODIFIED, [str(each) for each in result.findings]
    back = result.after["there.py"]
    assert "poptorch" not in back
    (tmp_path / "back.py").write_text(back)
    before = port_fixtures.printed(HERE / "rules" / f"{name}.in.py")
    assert port_fixtures.printed(tmp_path / "back.py") == before


def test_the_hand_written_program_becomes_plain():
    script = HERE.parents[2] / "examples" / "pytorch_ipu.py"
    result = port(files.read(script), to="torch")
    assert result.verdict is Verdict.MODIFIED
    after = result.after["pytorch_ipu.py"]
    for line in ("optimizer.zero_grad()", "loss.backward()", "optimizer.step()"):
        assert after.count(line) == 1
    assert "poptorch." not in after
    assert "opts" not in after


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        (
            '{"deviceIterations": 4, "outputMode": "OutputMode.All"}',
            "; write opts.deviceIterations(4), opts.outputMode(poptorch.OutputMode.All)",
        ),
        ('{"Training.gradientAccumulation": [2]}', "; write opts.Training.gradientAccumulation(2)"),
        ("no JSON", "before the program runs"),
    ],
)
def test_options_that_are_given_as_text_are_blocked_with_the_calls_to_write(text, calls):
    program = f"import poptorch\n\nopts = poptorch.Options()\nopts.from_json({text!r})\n"
    result = port(Project([Source("run.py", program)]), to="torch")
    assert result.verdict is Verdict.BLOCKED
    (said,) = [each for each in result.findings if each.code == "ABP1008"]
    assert said.line == 4
    assert said.reason.endswith(calls)


_SHARED = """\
import poptorch
import torch


def scores(net, x):
    return net(x)


class WithLoss(torch.nn.Module):
    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, x):
        return poptorch.identity_loss(scores(self.net, x).sum(), reduction="none")


net = torch.nn.Linear(2, 1)
optimizer = poptorch.optim.SGD(net.parameters(), lr=0.1)
training = poptorch.trainingModel(WithLoss(net), optimizer=optimizer)
inference = poptorch.inferenceModel(net)
loss = training(torch.ones(3, 2))
out = scores(inference, torch.ones(3, 2))
"""


def test_a_function_that_training_calls_keeps_its_gradients_and_its_caller_is_named():
    result = port(Project([Source("run.py", _SHARED)]), to="torch")
    assert result.verdict is Verdict.MANUAL
    (said,) = [each for each in result.findings if each.code == "ABP1204"]
    assert said.line == 23
    assert "call it under torch.no_grad() here" in said.reason
    assert "    return net(x)\n" in result.after["run.py"]


def test_a_function_that_training_calls_may_be_called_without_gradients():
    text = _SHARED.replace("out = ", "with torch.no_grad():\n    out = ")
    result = port(Project([Source("run.py", text)]), to="torch")
    assert result.verdict is Verdict.MODIFIED
    assert "    return net(x)\n" in result.after["run.py"]
