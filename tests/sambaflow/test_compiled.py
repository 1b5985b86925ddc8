"""What compile writes runs in another process, by the code that is in the file."""

import os
import subprocess
from pathlib import Path

import pytest
import torch

from helpers.samba_models import Dense, named, rows
from helpers.warm_python import python
from sambaflow import samba

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = """
import sys, torch
from helpers.samba_models import Dense, named, rows
from sambaflow import samba

torch.manual_seed(0)
model = samba.from_torch_model_(Dense())
optimizer = samba.optim.AdamW(model.parameters(), lr=0.0)
traced = samba.utils.trace_graph(model, named(rows(0)), optimizer, pef=sys.argv[1])
report = samba.session.report
assert (report.target, report.origin) == ("cpu", "file"), report
for step in range(5):
    samba.session.run(named(rows(step)), traced, hyperparam_dict={"lr": 0.01 * (step + 1)})
samba.session.to_cpu(model)
torch.save(model.state_dict(), sys.argv[2])
"""


@pytest.mark.compiler
def test_a_pef_runs_in_another_process(monkeypatch, tmp_path):
    monkeypatch.setenv("ABELE_TARGET", "cpu")
    model = samba.from_torch_model_(Dense())
    optimizer = samba.optim.AdamW(model.parameters(), lr=0.0)
    pef = samba.session.compile(model, named(rows(0)), optimizer)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")]),
        "CXX": "/no/compiler/there",
        "OMP_NUM_THREADS": "1",
    }
    command = [python(), "-W", "error", "-c", PROGRAM, pef, "weights.pt"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "runs on target 'cpu', device cpu, the file's own code" in done.stdout

    torch.manual_seed(0)
    plain = Dense()
    other = torch.optim.AdamW(plain.parameters(), lr=0.0)
    for step in range(5):
        other.param_groups[0]["lr"] = 0.01 * (step + 1)
        other.zero_grad()
        plain(*rows(step))[0].backward()
        other.step()
    loaded = torch.load("weights.pt", weights_only=True)
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(loaded[name], value, rtol=1e-5, atol=1e-5)
