"""``abele fit``, ``stage`` and ``diff`` of scripts that compile plain PyTorch."""

import json

import pytest

from abele.__main__ import main
from abele.fit import function

SCRIPT = """
import torch, abele

model = torch.nn.Linear(64, 64)
optimizer = torch.optim.Adam(model.parameters())

@abele.compile
def train_step(x):
    optimizer.zero_grad()
    loss = (model(x) * 1e6).square().mean()
    loss.backward()
    optimizer.step()
    return loss.item()

for number in range(3):
    print("call", number, train_step(torch.ones(8, 64)))
"""
GRAPHS = """
import torch
model = torch.compile(torch.nn.Linear(64, 64), backend="abele")
model(torch.ones(8, 64))
"""


@pytest.fixture(autouse=True)
def on_reference(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "train.py"
    path.write_text(SCRIPT)
    return str(path)


def test_a_function_is_answered_at_its_second_call(script, capsys):
    assert main(["fit", script, "--limit", "1TiB", "--json"]) == 0
    out, err = capsys.readouterr()
    assert "call 0" in err
    assert "call 1" not in err
    data = json.loads(out)
    (peak,) = [m for m in data["estimate"]["moments"] if m["name"] == data["estimate"]["peak"]]
    sizes = {part["role"]: part["size"]["expected"] for part in peak["parts"]}
    weights = 4 * (64 * 64 + 64)
    # The program uses the user's own tensors: there is no second copy on the host.
    assert sizes["parameters"] == weights
    assert 2 * weights <= sizes["optimizer state"] <= 2 * weights + 16
    assert not any("own weights" in role for role in sizes)


def test_lines_are_those_of_the_function(script, monkeypatch, capsys):
    monkeypatch.setattr(function, "growth", lambda device: 0)  # other tests' is this process's, too
    assert main(["fit", script, "--limit", "1KiB"]) == 3
    out = capsys.readouterr().out
    assert "train.py:12 in train_step" in out
    assert out.endswith("\nChanges that make it fit are tried for wrapped models only.\n")


def test_what_the_plain_first_call_used_counts(script, monkeypatch, capsys):
    monkeypatch.setattr(function, "growth", lambda device: 2 * 2**40)
    assert main(["fit", script, "--limit", "1TiB"]) == 3
    assert "Most is in use in the first call: plain PyTorch runs it." in capsys.readouterr().out


def test_stages_and_graphs_are_refused(script, tmp_path, capsys):
    assert main(["stage", script, "--ipus", "2"]) == 1
    assert "abele stage: Stages begin at modules of a wrapped model." in capsys.readouterr().err
    graphs = tmp_path / "graphs.py"
    graphs.write_text(GRAPHS)
    assert main(["fit", str(graphs)]) == 1
    assert "abele fit: Graphs of torch.compile are parts of a step" in capsys.readouterr().err


def test_settings_of_a_function_are_compared(script, capsys):
    assert main(["diff", script, "reference", "half"]) == 1
    assert "train.py:10 in train_step" in capsys.readouterr().out.splitlines()[0]
    assert main(["diff", script, "reference", "float64"]) == 0
