"""What is said of lines: rows that are left out, changed weights, and what is missing."""

import textwrap

import pytest

from abele.port.engine import port, summary
from abele.port.finding import SENTENCES, Verdict
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


def ported(rows=40, start="", end=""):
    """The port of the program with some lines more."""
    text = PROGRAM.format(rows=rows, start=start, end=end)
    return port(Project([Source("train.py", text)]))


def said(code, **more):
    """What is said with a code."""
    findings = ported(**more).findings
    return [each for each in findings if each.code == code]


def test_what_changes_with_rows_that_are_left_out_is_said_at_the_loader():
    (short,) = said("ABP207", rows=41)
    assert (short.text, short.verdict) == (
        "loader = DataLoader(data, batch_size=8)",
        Verdict.MODIFIED,
    )
    for word in ("len(loader.dataset)", "len(loader)", "an evaluation of all rows"):
        assert word in short.reason


def test_rows_that_are_left_out_are_counted_where_the_program_says_how_many_there_are():
    end = ported(rows=2001).sentence
    assert "It leaves out 1 rows of every epoch" not in end
    assert "It leaves out 1 of 2,001 rows of every epoch: train.py:7." in end
    assert ported(rows=2000).sentence == SENTENCES[Verdict.MODIFIED]
    text = PROGRAM.format(rows="len(open(__file__).read())", start="", end="")
    end = port(Project([Source("train.py", text)])).sentence
    assert "that fill no batch (--check counts them): train.py:7." in end


@pytest.mark.parametrize("name", ["accelerator", "self.fabric"])
def test_backward_of_a_library_is_not_told_to_lose_its_argument(name):
    text = PROGRAM.format(rows=40, start="", end="").replace(
        "loss.backward()", f"{name}.backward(loss)"
    )
    (found,) = port(Project([Source("train.py", text)])).unfinished
    assert found.reason.startswith(f"{name}.backward(loss) is a method of a library")
    text = text.replace(f"{name}.backward(loss)", "loss.backward(torch.ones(()))")
    (found,) = port(Project([Source("train.py", text)])).unfinished
    assert found.reason.startswith("backward() has arguments")


def test_a_condition_that_never_changes_is_told_apart_from_accumulation():
    loop = "optimizer.step()"
    text = PROGRAM.format(rows=40, start="always, count = True, 0", end="")
    for test, reason in (
        ("always", "the step depends on `always`"),
        ("total", "the update depends"),
    ):
        guarded = text.replace(loop, f"if {test}:\n        {loop}")
        (found,) = port(Project([Source("train.py", guarded)])).unfinished
        assert found.reason.startswith(reason)


def test_a_blocked_program_is_shown_the_decorator():
    text = PROGRAM.format(rows=40, start="", end="").replace("loss.backward()", "loss.backward(x)")
    said = summary(port(Project([Source("train.py", text)])))
    assert said.splitlines()[-1] == (
        "abele.compile trains this loop as it stands: decorate the step (docs/compile.md)."
    )


def test_nothing_is_said_to_run_where_only_text_names_a_wrapper():
    library = '"""Not poptorch.trainingModel(model)."""\nimport json\njson.dumps(1)\n'
    result = port(Project([Source("train.py", library)]))
    assert (result.runs, result.verdict) == (False, Verdict.MATCH)
    assert "nothing of this program would run on abele" in result.sentence


INFERENCE = """
import torch

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x):
        return self.layer(x)

model = Net()
with torch.no_grad():
    print(model(torch.randn(8, 4)).sum())
"""


def test_a_program_without_a_step_is_not_said_to_train():
    result = port(Project([Source("run.py", INFERENCE)]))
    assert result.wrappers == {"inferenceModel"}
    assert result.sentence.endswith(
        "No training step was found: only evaluation would run on abele."
    )


def test_an_update_after_an_inner_loop_is_told_the_options_of_accumulation():
    trainer = textwrap.dedent("""
        optimizer.zero_grad()
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
        optimizer.step()
    """)
    (blocked,) = said("ABP399", end=trainer)
    assert "opts.Training.gradientAccumulation(k)" in blocked.reason
    assert blocked.reason.endswith("leave out the loop over them")


def test_weights_that_the_host_changes_are_named():
    (changed,) = said("ABP707", end="with torch.no_grad():\n    model[1].weight.mul_(0.5)")
    assert (changed.text, changed.verdict) == ("model[1].weight.mul_(0.5)", Verdict.MANUAL)
    assert "call copyWeightsToDevice() of the training model after it" in changed.reason


SECOND = """
second = torch.optim.Adam(model.parameters())
for x, y in loader:
    second.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()
    second.step()
"""


def test_a_model_of_two_training_models_is_named():
    (second,) = said("ABP315", end=SECOND)
    assert (second.line, second.verdict) == (28, Verdict.MANUAL)
    assert "call training_model.destroy() before this step" in second.reason


def test_an_optimizer_of_each_turn_of_a_loop_is_named():
    loop = f"for _ in range(2):{textwrap.indent(SECOND, '    ')}"
    (again,) = said("ABP315", end=loop)
    assert (again.text, again.verdict) == ("second.step()", Verdict.MANUAL)
    assert "in each turn of a loop" in again.reason


@pytest.mark.parametrize(("start", "count"), [("", 1), (", cycle_momentum=False", 0)])
def test_a_default_that_a_scheduler_changes_is_named(start, count):
    text = PROGRAM.format(
        rows=40,
        end="",
        start=f"cycle = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9{start})",
    ).replace(", momentum=0.9", "")
    findings = port(Project([Source("train.py", text)])).findings
    assert [each.verdict for each in findings if each.code == "ABP414"] == [Verdict.MANUAL] * count


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("from no_such_module.nets import Net", "no_such_module.nets"),
        ("from .nets import Net", ".nets"),
        ("import os, no_such_module", "no_such_module"),
        ("try:\n    import no_such_module\nexcept ImportError:\n    pass", None),
        ("from train import PROGRAM", None),
    ],
)
def test_a_module_that_is_missing_is_named(line, named):
    missing = said("ABP601", start=line)
    assert [each.reason.split(" is not here")[0] for each in missing] == (
        [f"the module {named}"] if named else []
    )
    assert all(each.verdict is Verdict.MATCH for each in missing)
    assert ("is not here, and what" in summary(ported(start=line))) == bool(named)


def test_an_evaluation_asks_for_the_rows_of_a_batch():
    text = PROGRAM.format(rows=41, start="", end="")
    after = port(Project([Source("train.py", text)])).after["train.py"]
    assert "if len(x) == loader.batch_size" in after
