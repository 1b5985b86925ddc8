"""In which mode, training or not, a model may be where it is called."""

import pytest
from libcst import matchers as m

from abele.port.analysis.kinds import Kind
from abele.port.analysis.models import mode_at
from abele.port.analysis.things import Things
from abele.port.engine import port
from abele.port.project import Project
from abele.port.source import Source, findall

HEAD = "import torch\nmodel = torch.nn.Linear(2, 2)\nother = torch.nn.ReLU()\n"
EVALUATING = """
@contextlib.contextmanager
def evaluating(model):
    model.eval()
    yield
    model.train()
"""
RESTORED = """
def validate(net):
    was = net.training
    net.eval()
    {back}

validate(model)
"""
EVALUATOR = """
class Evaluator:
    def __init__(self, model):
        self.model = model

    def __enter__(self):
        self.model.eval()
"""
STEP = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for epoch in range(2):
{before}    for x, y in [(torch.ones(2, 2), torch.ones(2, 2))]:
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
{after}"""


def mode(text, head=HEAD, name="torch.nn.Linear"):
    """The mode at the call ``model(here)``, True for training; None where the text is not plain."""
    source = Source("run.py", head + text)
    project = Project([source])
    things = Things(project)
    (model,) = (each for each in things.all(Kind.MODEL) if each.name == name)
    calls = findall(source.module, m.Call())
    (call,) = (each for each in calls if source.code(each) == "model(here)")
    return mode_at(project, things, model, source, call)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model(here)", [True]),
        ("import copy\nshadow = copy.deepcopy(model).eval()\nmodel(here)", [True]),
        ("import copy\nmodel.eval()\nshadow = copy.deepcopy(model).train()\nmodel(here)", [False]),
        # modes that are put back
        (RESTORED.format(back="net.train(was)") + "model(here)", [True]),
        ("model.eval()\n" + RESTORED.format(back="net.train(was)") + "model(here)", [False]),
        (RESTORED.format(back="if was:\n        net.train()") + "model(here)", [True]),
        (
            RESTORED.format(back="try:\n        net(1)\n    finally:\n        net.train(was)")
            + "model(here)",
            [True],
        ),
        (RESTORED.format(back="was = 3\n    net.train(was)") + "model(here)", [False, True]),
        (RESTORED.format(back="other.train(was)") + "model(here)", [False]),
        (
            RESTORED.format(back="if len(net):\n        return\n    net.train(was)")
            + "model(here)",
            [False, True],
        ),
        (RESTORED.format(back="if was:\n        other.train()") + "model(here)", [False]),
        ("was = model.training\nmodel.eval()\nmodel.train(was)\nmodel(here)", [True]),
        ("was = model.training\nmodel.eval()\nmodel(here)\nmodel.train(was)\n", [False]),
        ("model.eval()\nmodel(here)", [False]),
        ("model.eval().train()\nmodel(here)", [True]),
        ("model.eval(); model.train()\nmodel(here)", [True]),
        ("model.train(False)\nmodel(here)", [False]),
        ("model.train(mode)\nmodel(here)", [False, True]),
        ("other.eval()\nmodel(here)", [True]),
        ("unknown.eval()\nmodel(here)", [False, True]),
        ("frame.eval('x')\nmodel(here)", [False, True]),
        ("frame.train(x, y)\nmodel(here)", [True]),
        ("if a:\n    model.eval()\nmodel(here)", [False, True]),
        ("if a:\n    model.eval()\nelse:\n    model.train(False)\nmodel(here)", [False]),
        ("if a:\n    model.eval()\n    model.train()\nmodel(here)", [True]),
        ("if a: model.eval()\nelif b: pass\nmodel(here)", [False, True]),
        ("try:\n    model.eval()\nexcept E:\n    pass\nmodel(here)", [False, True]),
        ("with torch.no_grad():\n    model.eval()\nmodel(here)", [False]),
        ("for i in a:\n    model(here)\n    model.eval()", [False, True]),
        ("for i in a:\n    model.train()\n    model(here)\n    model.eval()", [True]),
        ("for i in a:\n    model(here)\n    for j in b:\n        model.eval()", [False, True]),
        ("def f():\n    model.eval()\nmodel(here)", [True]),
        ("def f():\n    model.eval()\nf()\nmodel(here)", [False]),
        ("def f(m):\n    m.eval()\nf(model)\nmodel(here)", [False]),
        ("def f():\n    if a:\n        return\n    model.eval()\nf()\nmodel(here)", [False, True]),
        ("def f():\n    model.eval()\n    f()\nf()\nmodel(here)", [False]),
        ("def f():\n    model(here)\nf()\nmodel.eval()", [True]),
        ("def f():\n    model(here)\nmodel.eval()\nf()", [False]),
        ("def f():\n    model(here)\nf()\nmodel.eval()\nf()", [False, True]),
        ("def f():\n    model(here)\nspawn(f)", [True]),
        ("def f():\n    model(here)\nmodel.eval()\nspawn(f)", [False, True]),
        ("f = lambda: model.eval()\nmodel(here)", [True]),
        ("model.train() if a else model.eval()\nmodel(here)", [False, True]),
        ("model.eval()\na and model.train()\nmodel(here)", [False, True]),
        ("model.eval()\n[model.train() for i in a]\nmodel(here)", [False, True]),
        ("model.eval(); model(here)", [False]),
        ("if a: model.eval(); model(here)", [False]),
        (f"{EVALUATING}with evaluating(model):\n    model(here)", [False, True]),
        (f"{EVALUATING}with evaluating(model):\n    pass\nmodel(here)", [False, True]),
        (f"{EVALUATOR}with Evaluator(model):\n    model(here)", [False, True]),
        # Other ways to say the same.
        ("model.training = False\nmodel(here)", [False, True]),
        ("model.eval()\nmodel.training = True\nmodel(here)", [False, True]),
        ("setattr(model, 'training', False)\nmodel(here)", [False, True]),
        ("for layer in model.modules():\n    layer.training = False\nmodel(here)", [False, True]),
        ("args.training = b\nmodel(here)", [True]),
        ("model.apply(lambda each: each.eval())\nmodel(here)", [False]),
        (
            "model.apply(lambda each: each.eval() if each.frozen else each)\nmodel(here)",
            [False, True],
        ),
        (
            "def f(each):\n    if each.frozen:\n        each.eval()\nmodel.apply(f)\nmodel(here)",
            [False, True],
        ),
        ("model.apply(torch.nn.Module.eval)\nmodel(here)", [False]),
        ("def f(each):\n    each.requires_grad_(False)\nmodel.apply(f)\nmodel(here)", [True]),
        ("torch.nn.Module.eval(model)\nmodel(here)", [False]),
        ("torch.nn.Module.train(model, False)\nmodel(here)", [False]),
        ("getattr(model, 'eval')()\nmodel(here)", [False]),
        ("getattr(model, 'train' if a else 'eval')()\nmodel(here)", [False, True]),
        ("for phase in a:\n    getattr(model, phase)()\n    model(here)", [False, True]),
        ("getattr(model, 'weight')\nmodel(here)", [True]),
        ("f = model.eval\nf()\nmodel(here)", [False, True]),
        ("f = getattr(model, 'eval')\nf()\nmodel(here)", [False, True]),
        ("f = model.train if a else model.eval\nf()\nmodel(here)", [False, True]),
        ("f = other.eval\nf()\nmodel(here)", [True]),
        ("f = args.eval\nmodel(here)", [True]),
        # A function that is called here and given away.
        ("def f():\n    model(here)\nf()\nmodel.eval()\nspawn(f)", [False, True]),
    ],
)
def test_the_mode_that_was_set_last_counts(text, expected):
    assert mode(text) is None or [mode(text)] == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("model.eval()\nmodel(here)", False),
        ("model.train()\nmodel(here)", True),
        ("model.train(False)\nfor i in a:\n    model(here)", False),
        ("model.eval()\nwith torch.no_grad():\n    model(here)", False),
        ("def f(net):\n    net.eval()\n    for i in a:\n        model(here)\nf(model)", False),
        ("model(here)", None),
        ("if a:\n    model.eval()\nmodel(here)", None),
        ("model.eval()\nfor i in a:\n    model(here)\n    model.train()", None),
    ],
)
def test_a_plain_statement_in_the_same_function_is_read(text, expected):
    assert mode(text) is expected


OWN = """
import torch
class Net(torch.nn.Linear):
    def train(self, mode=True):
        super().train(mode)
        return self
model = Net(2, 2)
model.eval()
"""


@pytest.mark.parametrize(("text", "expected"), [("", [False]), ("model.train()\n", [True])])
def test_a_models_own_train_sets_the_mode(text, expected):
    assert mode(f"{text}model(here)", OWN, "Net") in (None, *expected)


WRAPPED = """
import torch
class Inner(torch.nn.Module):
    pass
class Outer(torch.nn.Module):
    def __init__(self{parameter}):
        super().__init__()
        self.inner = {inner}
"""
MADE_INSIDE = (
    WRAPPED.format(parameter="", inner="Inner()") + "whole = Outer()\nmodel = whole.inner\n"
)
MADE_WITH = WRAPPED.format(parameter=", inner", inner="inner")
MADE_WITH += "model = Inner()\nwhole = Outer(model)\n"


@pytest.mark.parametrize("head", [MADE_INSIDE, MADE_WITH])
def test_the_mode_of_a_model_is_that_of_the_one_around_it(head):
    assert mode("whole.eval()\nmodel(here)", head, "Inner") in (None, False)


def said(text):
    """Codes and verdicts of what somebody has to look at."""
    result = port(Project([Source("run.py", text)]))
    return [each.code for each in result.findings if each.verdict.value == "manual"]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        ("", "", []),
        ("    model.train()\n", "    model.eval()\n", []),
        ("", "    model.eval()\n", ["ABP313"]),
        ("", "    was = model.training\n    model.eval()\n    model.train(was)\n", ["ABP313"]),
        ("", "model.eval()\n", []),
    ],
)
def test_a_step_in_either_mode_is_named(before, after, expected):
    head = HEAD.replace("torch.nn.Linear(2, 2)", "torch.nn.Sequential(torch.nn.Dropout())")
    assert said(head + STEP.format(before=before, after=after)) == expected


@pytest.mark.parametrize(
    ("made", "mode", "expected"),
    [
        ("torch.nn.BatchNorm1d(2)", "", ["ABP504"]),
        ("torch.nn.BatchNorm1d(2)", "model.eval()\n", []),
        ("torch.nn.Dropout(0.5)", "", ["ABP504"]),
        ("torchvision.models.resnet18()", "", ["ABP504"]),
        ("torch.nn.Tanh()", "", []),
    ],
)
def test_a_call_in_training_mode_outside_of_training_is_named(made, mode, expected):
    text = STEP.format(before="    model.train()\n", after="")
    evaluated = f"{mode}with torch.no_grad():\n    print(model(torch.ones(2, 2)))\n"
    head = f"import torch\nmodel = torch.nn.Sequential({made}, torch.nn.Linear(2, 2))\n"
    assert said(head + text + evaluated) == expected
