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
FIXTURES = HERE / "rules_torch"
NAMES = port_fixtures.names(FIXTURES)
#: Ports to PopTorch with several instances, that are left by hand.
ONE_WAY = {"distributed"}
NOT_HERE = {"optimizer_state"}  # prints what only plain PyTorch has
#: The port limits gradients in the order of the model, and the original in that of its groups. In
#: float64, what both print has nine equal digits, more than float32 has.
OTHER_ORDER = {"clipped_groups"}


def ported(text, name="run"):
    result = port(Project([Source(f"{name}.py", text)]), to="torch")
    return result, result.after[f"{name}.py"]


@pytest.mark.parametrize("name", NAMES)
def test_lines_of_a_fixture_are_named(name):
    text, said = port_fixtures.read(FIXTURES, name)
    result, after = ported(text, name)
    given = {(each.line, f"{each.code} {each.verdict.value}") for each in result.findings}
    assert said <= given
    left = {each for each in given if not each[1].endswith((" modified", " match"))}
    assert left <= said
    assert result.verdict is Verdict.MODIFIED
    assert not re.search(r"\b(poptorch|popdist)\b", after)


@pytest.mark.parametrize("name", NAMES)
def test_a_port_prints_the_same_digits_and_is_not_changed_again(name, tmp_path):
    text, _ = port_fixtures.read(FIXTURES, name)
    after = ported(text)[1]
    programs = tmp_path / "before.py", tmp_path / "after.py"
    for path, program in zip(programs, (text, after), strict=True):
        path.write_text(program)
    before, printed = map(port_fixtures.printed, programs)
    assert len(before) > 1
    assert printed == before
    assert ported(after)[1] == after


@pytest.mark.parametrize(
    "name", sorted({*port_fixtures.names(HERE / "rules", whole=True)} - ONE_WAY - NOT_HERE)
)
def test_there_and_back_prints_the_same_digits(name, tmp_path):
    result, back = ported((HERE / "rules" / f"{name}.out.py").read_text())
    assert result.verdict is Verdict.MODIFIED, [str(each) for each in result.findings]
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


@pytest.mark.parametrize("name", sorted(ONE_WAY))
def test_what_is_not_carried_is_left_by_hand(name):
    result, _ = ported((HERE / "rules" / f"{name}.out.py").read_text())
    assert result.verdict is Verdict.MANUAL


def test_the_hand_written_program_becomes_plain():
    script = HERE.parents[2] / "examples" / "pytorch_ipu.py"
    result = port(files.read(script), to="torch")
    assert result.verdict is Verdict.MODIFIED
    after = result.after["pytorch_ipu.py"]
    for line in ("self.optimizer.zero_grad()", "].backward()", "self.optimizer.step()"):
        assert after.count(line) == 1
    assert "poptorch." not in after


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
    "options of a text": ("data =", 'opts.from_json("{}")\ndata =', "opts.from_json", "write by hand what"),
    "options of a file": ("data =", 'opts.loadFromFile("o")\ndata =', "opts.loadFromFile", "write by hand what"),
    "an option of a name": ("data =", "getattr(opts, input())(4)\ndata =", "getattr(opts", "functions of"),
    "options in a dict": ("data =", 'known = {"options": opts}\ndata =', "known =", "functions of"),
    "options of a library": ("data =", "json.dumps(opts)\ndata =", "json.dumps", "functions of"),
    "an option that is read": ("data =", "print(opts.deviceIterations)\ndata =", "print(opts", "functions of"),
    "a number that changes": ("opts = poptorch.Options()", "n = 2\nopts = poptorch.Options().deviceIterations(n)\nn = 4", "loader =", "a constant"),
    "a condition": ("data =", "if input():\n    opts.deviceIterations(2)\ndata =", "training =", "a condition decides deviceIterations"),
    "two numbers": ("data =", "opts.deviceIterations(2)\nopts.deviceIterations(4)\ndata =", "training =", "set twice"),
    "replicas": ("data =", "opts.replicationFactor(2)\ndata =", "opts.replicationFactor", "write by hand what"),
    "a sum of gradients": ("data =", "opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Sum)\ndata =", "training =", "not carried"),
    "some results": ("data =", "opts.outputMode(poptorch.OutputMode.EveryN, 2)\ndata =", "training =", "selects results"),
    "instances": ("opts = poptorch.Options()", "import popdist.poptorch\nopts = popdist.poptorch.Options()", "loader =", "torch.distributed"),
    "batches without a size": ("batch_size=8)", "batch_sampler=[range(8)])\nopts.deviceIterations(2)", "loader =", "give it batch_size"),
    "a scheduler is not told": (TOLD, "    scheduler.step()\n", "scheduler.step", "no setOptimizer() follows"),
    "a rate is not told": (TOLD, '    optimizer.param_groups[0]["lr"] = 0.01\n', "optimizer.param_groups", "no setOptimizer() follows"),
    "rates are not told": (TOLD, '    for group in optimizer.param_groups:\n        group["lr"] *= 0.5\n', "for group", "no setOptimizer() follows"),
    "told of another optimizer": ("setOptimizer(optimizer)", "setOptimizer(poptorch.optim.SGD(model.parameters(), lr=0.01))", "training.setOptimizer", "into the param_groups"),
    "a wrapper that is not followed": (TOLD, TOLD + "    [training][0].copyWeightsToHost()\n", "[training]", "not followed"),
    "a report": (TOLD, TOLD + "    print(training.cycleCount())\n", "print(training", "has no cycleCount"),
    "a scale of the optimizer": (TOLD, '    optimizer.param_groups[0]["loss_scaling"] = 2.0\n    training.setOptimizer(optimizer)\n', "optimizer.param_groups", "PopTorch's optimizers alone"),
    "a multiple of a loss": ("return torch.nn", "return 2 * torch.nn", "training =", "which result of forward"),
    "a loss and more": ("        return torch.nn.functional.mse_loss(self.layer(x), y)", "        loss = torch.nn.functional.mse_loss(self.layer(x), y)\n        loss += 0.1\n        return loss", "training =", "which result of forward"),
    "a mark in the middle": ("        return torch.nn.functional.mse_loss(self.layer(x), y)", "        loss = poptorch.identity_loss(self.layer(x), 'sum')\n        loss = 2 * loss\n        return loss", "training =", "which result of forward"),
    "a class": ("model = Fit()", "make = poptorch.trainingModel\nmodel = Fit()", "make =", "no poptorch.trainingModel"),
    "an anchor": ("data =", 'opts.anchorTensor("a", "b")\ndata =', "opts.anchorTensor", "write by hand what"),
    "made-up data": ("data =", "opts.enableSyntheticData(True)\ndata =", "opts.enableSynth", "write by hand what"),
    "rounding": ("data =", "opts.Precision.enableStochasticRounding(True)\ndata =", "opts.Precision", "write by hand what"),
    "processes": ("data =", "opts.Distributed.configureProcessId(0, 2)\ndata =", "opts.Distributed", "write by hand what"),
    "popdist": ("import json", "import json, popdist\nprint(popdist.getDeviceId())", "print(popdist", "torchrun"),
    "horovod": ("import json", "import json\nimport horovod.torch as hvd\nhvd.init()", "hvd.init", "torchrun"),
    "a loss that is no call": ("return torch.nn.functional.mse_loss(self.layer(x), y)", "return x, (x[:, :3] - y).square().mean()", "training =", "which result of forward"),
    "several losses": ("mse_loss(self.layer(x), y)", "mse_loss(x, y), torch.nn.functional.l1_loss(x, y)", "training =", "which result of forward"),
    "a model from elsewhere": ("model = Fit()", "from elsewhere import Fit as F\nmodel = F()", "training =", "the forward of elsewhere.Fit"),
    "options from elsewhere": ("opts = poptorch.Options()", "from elsewhere import opts", "training =", "which options"),
    "LAMB": ("optim.SGD(model", "optim.LAMB(model", "optimizer =", "has no LAMB"),
    "no correction of bias": ("optim.SGD(model.parameters(),", "optim.AdamW(model.parameters(), bias_correction=False,", "optimizer =", "has no bias_correction"),
    "a variant": ("optim.SGD(model.parameters(),", "optim.RMSprop(model.parameters(), use_tf_variant=True,", "optimizer =", "has no use_tf_variant"),
    "a constant rate": ("lr=0.1)", "lr=(0.1, False))", "optimizer =", "the rate alone"),
    "several batches of an evaluation": ("training =", "opts.deviceIterations(2)\ntest = poptorch.inferenceModel(model, opts)\ntraining =", "test =", "2 batches at once"),
    "a wrong mark": ("data =", "poptorch.identity_loss()\ndata =", "poptorch.identity_loss", "no poptorch.identity_loss; nothing"),
    "a block": ("data =", 'with poptorch.Block("a"):\n    pass\ndata =', "with poptorch.Block", "no poptorch.Block; nothing"),
    "an operator": ("data =", "poptorch.nop(torch.ones(1))\ndata =", "poptorch.nop", "no poptorch.nop; nothing"),
    "a question about the device": ("data =", "if poptorch.isRunningOnIpu():\n    pass\ndata =", "if poptorch", "no poptorch.isRunningOnIpu; nothing"),
    "an argument for half": ("lr=0.1)", "lr=0.1, loss_scaling=2.0)", "optimizer =", "has no loss_scaling"),
    "a constant value": ("data =", 'optimizer = poptorch.optim.SGD([], lr=1)\noptimizer.variable_attrs.markAsConstant("lr")\ndata =', "optimizer.variable_attrs", "variable_attrs is a name of PopTorch"),
}  # fmt: skip


@pytest.mark.parametrize("name", HAND)
def test_a_line_that_is_not_seen_simply_is_left_by_hand(name):
    old, new, line, reason = HAND[name]
    assert PROGRAM.count(old) == 1
    result, _ = ported(PROGRAM.replace(old, new))
    said = [each for each in result.findings if each.verdict is Verdict.MANUAL]
    assert any(each.text.startswith(line) and reason in each.reason for each in said), said


def test_the_program_itself_is_ported_whole():
    result, after = ported(PROGRAM)
    assert result.verdict is Verdict.MODIFIED
    assert "opts = " not in after.replace("opts = None", "")
    assert "training = TrainingModel(model, optimizer)" in after


def test_an_import_of_the_standard_library_stands_apart_from_torch():
    alone = ported(PROGRAM.replace("import json\n", "", 1))[1]
    assert alone.startswith("import copy\n\nimport torch\n")
    assert ported(PROGRAM)[1].startswith("import copy\nimport json\n")


#: Edits of ports: each changes what is printed.
MISTAKES = {
    "another seed": ("training", "manual_seed(3)", "manual_seed(4)"),
    "fewer iterations": ("batches", "iterations=2, parts=ACCUMULATION", "parts=2 * ACCUMULATION"),
    "no accumulation": ("batches", "iterations=2, parts=ACCUMULATION", "iterations=2 * ACCUMULATION"),
    "a sum for a mean": ("batches", "(results[1] / self.parts).backward()", "results[1].backward()"),
    "the last results alone": ("batches", "zip(*kept, strict=True)", "zip(*kept[-1:], strict=True)"),
    "other rows": ("batches", "each.split(rows)", "each.flip(0).split(rows)"),
    "smaller batches": ("batches", "4 * 2 * ACCUMULATION", "4 * ACCUMULATION"),
    "a short batch": ("training", "shuffle=True, drop_last=True", "shuffle=True"),
    "a short batch of an evaluation": ("training", "batch_size=8, drop_last=True)\n    inference", "batch_size=8)\n    inference"),
    "another rate": ("optimizers", "    lr=0.1,\n", "    lr=0.11,\n"),
    "another class": ("optimizers", "torch.optim.AdamW(", "torch.optim.Adam("),
    "no limit": ("optimizers", "), 0.1)", "), None)"),
    "another limit": ("optimizers", "), 0.1)", "), 0.2)"),
    "the limit of all": ("optimizers", "if each in updated", "if each is not None"),
    "the mean for the sum": ("operators", "loss = loss.sum()", "loss = loss.mean()"),
    "the default rate": ("operators", "lr=0.01", "lr=0.02"),
    "gradients are kept": ("training", "        self.optimizer.zero_grad()\n", ""),
    "no update": ("training", "        self.optimizer.step()\n", ""),
    "two updates": ("training", "        self.optimizer.step()\n", "        self.optimizer.step()\n        self.optimizer.step()\n"),
    "another result": ("switch", "results[2].backward()", "results[0].sum().backward()"),
    "modes of each call": ("modes", "each.training = mode\n            return", "pass\n            return"),
    "modes that stay": ("modes", "for each, mode in present.items()", "for each, mode in ()"),
    "attributes of each call": ("late", "copy.copy(model)", "model"),
    "a copy of the model": ("wrappers", "TrainingModel(fit,", "TrainingModel(__import__('copy').deepcopy(fit),"),
    "the rate goes with the line that tells of it": ("wrappers", '["lr"] = 0.05', '["lr"]'),
    "the branch of what is not compiled": ("wrappers", "    if True:\n", "    if False:\n"),
}  # fmt: skip


@pytest.fixture(scope="module")
def prints():
    """What each right port prints, with its text."""
    return {}


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[pytest.mark.long] * (i % 3 > 0)) for i, n in enumerate(MISTAKES)],
)
def test_a_mistake_in_a_port_is_seen(name, prints, tmp_path):
    fixture, right, wrong = MISTAKES[name]
    path = tmp_path / "port.py"
    if fixture not in prints:
        text = ported(port_fixtures.read(FIXTURES, fixture)[0])[1]
        path.write_text(text)
        prints[fixture] = text, port_fixtures.printed(path)
    text, printed = prints[fixture]
    assert right in text
    path.write_text(text.replace(right, wrong))
    try:
        broken = port_fixtures.printed(path)
    except Exception:  # noqa: BLE001 - a port that does not run is taken for right by nobody
        return
    assert broken != printed
