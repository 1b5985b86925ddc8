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
#: Torch's optimizer keeps no rounding of updates that were written by hand, and one call of two
#: training models is blocked.
ONE_WAY = {"by_hand_rounded", "new_optimizer"}
#: The norm of all gradients is summed by groups, not in the order of the model, so some processors
#: round it otherwise. In float64, what both print has nine equal digits, more than float32 has.
OTHER_ORDER = {"clipped_groups"}


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
    programs = HERE / "rules" / f"{name}.in.py", tmp_path / "back.py"
    if name in OTHER_ORDER:
        with port_fixtures.in_float64():
            before, after = (list(map(float, port_fixtures.printed(each))) for each in programs)
        assert after == pytest.approx(before, rel=1e-9, abs=0)
    else:
        before, after = map(port_fixtures.printed, programs)
        assert after == before


def test_the_hand_written_program_becomes_plain():
    script = HERE.parents[2] / "examples" / "pytorch_ipu.py"
    result = port(files.read(script), to="torch")
    assert result.verdict is Verdict.MODIFIED
    after = result.after["pytorch_ipu.py"]
    for line in ("optimizer.zero_grad()", "loss.backward()", "optimizer.step()"):
        assert after.count(line) == 1
    assert "poptorch." not in after
    assert "opts" not in after


_TEXT = """\
import argparse, json, yaml
import poptorch
import torch

args = argparse.ArgumentParser().parse_args()
opts = poptorch.Options()
{line}
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 3))
loader = poptorch.DataLoader(opts, data, batch_size=2)
"""


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('opts.from_json("{}")', "call each option by its name"),
        ('opts.loadFromFile("options.txt")', "write its lines here, as calls of these options"),
        ("getattr(opts, args.option)(args.value)", "which option args.option names is not known"),
        ("set_option = getattr(opts, args.option)", "which option args.option names is not known"),
        ("getattr(opts, 'deviceIterations')(4)", "call the option by its name"),
    ],
)
def test_options_that_are_not_known_before_the_program_runs_are_blocked(line, reason):
    result = port(Project([Source("run.py", _TEXT.format(line=line))]), to="torch")
    assert result.verdict is Verdict.BLOCKED
    (said,) = [each for each in result.findings if each.code == "ABP1008"]
    assert said.line == 7
    assert reason in said.reason


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


_BRANCHES = """\
import popdist
import popdist.poptorch
import poptorch
import torch


class Fit(torch.nn.Linear):
    def forward(self, x, y):
        return torch.nn.functional.mse_loss(super().forward(x), y)


if popdist.isPopdistEnvSet():
    opts = popdist.poptorch.Options()
else:
    opts = poptorch.Options()
    opts.replicationFactor({alone})
opts.Training.gradientAccumulation(2 * popdist.getNumLocalReplicas())
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 3))
loader = poptorch.DataLoader(opts, data, batch_size=2)
model = Fit(4, 3)
training = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.1))
for x, y in loader:
    loss = training(x, y)
"""


@pytest.mark.parametrize(("alone", "factor"), [("4", "4"), ("popdist.getNumLocalReplicas()", "")])
def test_replicas_of_one_process_are_those_of_its_branch(alone, factor):
    result = port(Project([Source("run.py", _BRANCHES.format(alone=alone))]), to="torch")
    assert result.verdict is Verdict.MODIFIED, [str(each) for each in result.findings]
    after = result.after["run.py"]
    assert "popdist" not in after
    replicas = "(1 if torch.distributed.is_torchelastic_launched() else 4)"
    parts = f"2 * 1 * {replicas}" if factor else "2 * 1"
    assert f"parts={parts}" in after.replace("\n", "")
