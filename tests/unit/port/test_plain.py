# ruff: noqa: E501 (lines of programs)
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
PROGRAMS = {each.stem: each for each in sorted((HERE / "programs" / "poptorch").glob("*.py"))}
PLAIN = "plain_poptorch"


def ported(text, name="run"):
    result = port(Project([Source(f"{name}.py", text)]), to="torch")
    return result, result.after[f"{name}.py"]


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_port_prints_the_same_digits_and_is_not_changed_again(name, plain):
    result, after = ported(PROGRAMS[name].read_text())
    assert result.verdict is Verdict.MODIFIED
    assert not re.search(r"(import|from) (poptorch|popdist)\b", after)
    before = port_fixtures.printed(PROGRAMS[name])
    assert len(before) > 1
    assert plain(result.after) == before
    assert ported(after)[1] == after


def test_the_hand_written_program_becomes_plain():
    result = port(files.read(HERE.parents[2] / "examples" / "pytorch_ipu.py"), to="torch")
    assert result.verdict is Verdict.MODIFIED
    assert f"import {PLAIN} as poptorch\n" in result.after["pytorch_ipu.py"]
    assert f"+++ b/{PLAIN}.py" in files.difference(result)


PROGRAM = """\
import json
import poptorch
import torch


class Fit(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x, y):
        return torch.nn.functional.mse_loss(self.layer(x), y)


def helper(opts):
    return opts


torch.manual_seed(0)
opts = poptorch.Options()
data = torch.utils.data.TensorDataset(torch.randn(64, 4), torch.randn(64, 3))
loader = poptorch.DataLoader(opts, data, batch_size=8)
model = Fit()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
training = poptorch.trainingModel(model, opts, optimizer)
for epoch in range(3):
    for x, y in loader:
        loss = training(x, y)
    print(loss.item())
    scheduler.step()
    training.setOptimizer(optimizer)
"""
TOLD = "    scheduler.step()\n    training.setOptimizer(optimizer)\n"
#: An edit of the program, the line that is left by hand, and what is said of it.
HAND = {
    "options of a text": ("data =", 'opts.from_json("{}")\ndata =', "opts.from_json", "no from_json"),
    "options of a file": ("data =", 'opts.loadFromFile("o")\ndata =', "opts.loadFromFile", "no loadFromFile"),
    "some results": ("data =", "opts.outputMode(poptorch.OutputMode.EveryN, 2)\ndata =", "opts.outputMode", "no EveryN"),
    "instances": ("opts = poptorch.Options()", "import popdist.poptorch\nopts = popdist.poptorch.Options()", "opts =", "torch.distributed"),
    "a report": (TOLD, TOLD + "    print(training.cycleCount())\n", "print(training", "no cycleCount"),
    "a scale of the optimizer": (TOLD, '    optimizer.param_groups[0]["loss_scaling"] = 2.0\n    training.setOptimizer(optimizer)\n', "optimizer.param_groups", "no loss_scaling"),
    "an anchor": ("data =", 'opts.anchorTensor("a", "b")\ndata =', "opts.anchorTensor", "no anchorTensor"),
    "rounding": ("data =", "opts.Precision.enableStochasticRounding(True)\ndata =", "opts.Precision", "no enableStochasticRounding"),
    "popdist": ("import json", "import json, popdist\nprint(popdist.getDeviceId())", "print(popdist", "torchrun"),
    "horovod": ("import json", "import json\nimport horovod.torch as hvd\nhvd.init()", "hvd.init", "torchrun"),
    "LAMB": ("optim.SGD(model", "optim.LAMB(model", "optimizer =", "no poptorch.optim.LAMB"),
    "no correction of bias": ("optim.SGD(model.parameters(),", "optim.AdamW(model.parameters(), bias_correction=False,", "optimizer =", "no bias_correction"),
    "a block": ("data =", 'with poptorch.Block("a"):\n    pass\ndata =', "with poptorch.Block", "no poptorch.Block; nothing"),
    "an imported operator": ("data =", "from poptorch import nop\nnop(torch.ones(1))\ndata =", "nop", "no poptorch.nop; nothing"),
    "a constant value": ("data =", 'optimizer = poptorch.optim.SGD([], lr=1)\noptimizer.variable_attrs.markAsConstant("lr")\ndata =', "optimizer.variable_attrs", "no variable_attrs"),
    "a seed of dropout": ("data =", "opts.randomSeed(3)\ndrop = torch.nn.Dropout(0.5)\ndata =", "opts.randomSeed", "another stream"),
}  # fmt: skip


@pytest.mark.parametrize("name", HAND)
def test_a_line_that_is_not_carried_is_left_by_hand(name):
    old, new, line, reason = HAND[name]
    assert PROGRAM.count(old) == 1
    result, _ = ported(PROGRAM.replace(old, new))
    said = [each for each in result.findings if each.verdict is Verdict.MANUAL]
    assert any(each.text.startswith(line) and reason in each.reason for each in said), said


#: Edits of the program that the plain file refuses when it runs.
REFUSED = {
    "replicas": ("data =", "opts.replicationFactor(2)\ndata =", "one replica, not 2"),
    "a sum of gradients": ("data =", "opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.NoReduction)\ndata =", "NoReduction is not one of Mean, Sum"),
    "batches without a size": ("batch_size=8)", "batch_sampler=[range(8)])", "give batch_size"),
    "several losses": ("mse_loss(self.layer(x), y)", "mse_loss(self.layer(x), y), self.layer(x).mean()", "mark it with identity_loss"),
    "batches of an evaluation": ("    print(loss.item())", "    poptorch.inferenceModel(model, opts)(x, y)", "inference options of its own"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_the_plain_file_refuses_what_it_cannot_compute(name, plain):
    old, new, reason = REFUSED[name]
    text = PROGRAM.replace(old, new)
    if name.startswith("batches"):
        text = text.replace("data =", "opts.deviceIterations(2)\ndata =", 1)
    with pytest.raises(ValueError, match=reason):
        plain(ported(text)[0].after)


def test_values_that_the_program_does_not_tell_its_model_are_not_used(plain, tmp_path):
    texts = ported(PROGRAM.replace(TOLD, "    scheduler.step()\n"))[0].after
    (tmp_path / "before.py").write_text(PROGRAM.replace(TOLD, "    scheduler.step()\n"))
    assert (
        plain(texts)
        == port_fixtures.printed(tmp_path / "before.py")
        != plain(ported(PROGRAM)[0].after)
    )


def test_scripts_of_folders_find_the_file():
    program = Project([Source(name, PROGRAM) for name in ("run.py", "tools/run.py")])
    after = port(program, to="torch").after
    assert after[f"tools/{PLAIN}.py"] == after[f"{PLAIN}.py"]
