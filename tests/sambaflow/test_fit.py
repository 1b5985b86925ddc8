"""``abele fit`` of SambaFlow programs, and why ``abele stage`` divides none."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from abele import __main__ as command_line
from abele.errors import LimitError
from helpers.samba_models import Net, NetWithLoss, batch, named
from helpers.warm_python import python
from sambaflow.samba._calls import arguments
from sambaflow.samba._compile import fitting
from sambaflow.samba._compile.compiling import rule_of, traced_with

TESTS = Path(__file__).resolve().parents[1]
SCRIPT = f"""
import sys
sys.path.insert(0, {str(TESTS)!r})
import torch
from helpers.samba_models import NetWithLoss, batch, named
from sambaflow import samba

model = NetWithLoss()
optimizer = samba.optim.SGD(model.parameters(), lr=0.1)
samba.session.compile(model, named(batch(0)), optimizer)
print("not reached")
"""


def report_of(model, tensors, *, training, limit="1TiB"):
    inputs, keywords = arguments.named_inputs(named(tensors))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1) if training else None
    rule = rule_of(model, optimizer, inference=not training)
    traced = traced_with(model, inputs, keywords, rule, None, fused_only=False)
    return fitting.report(traced, model, inputs, limit), traced.captured.programs


@pytest.fixture
def script(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(SCRIPT)
    return path


@pytest.mark.parametrize(("limit", "status"), [("1TiB", 0), ("1KiB", 3)])
def test_the_command_answers_instead_of_compiling(script, capsys, limit, status):
    assert command_line.main(["fit", str(script), "--limit", limit]) == status
    out, err = capsys.readouterr()
    assert out.startswith("It fits into 1TiB" if status == 0 else "It does not fit into 1KiB")
    assert "samba_models.py:22 in forward" in out
    assert "not reached" not in err
    assert not list(script.parent.glob("**/*.pef"))


def test_a_program_that_another_one_starts_answers(script, tmp_path, capfd, monkeypatch):
    monkeypatch.setattr(sys, "executable", python())
    parent = tmp_path / "parent.py"
    parent.write_text("import subprocess, sys; subprocess.run([sys.executable, sys.argv[1]])")
    arguments = ["fit", str(parent), "--limit", "1TiB", "--json", "--", str(script)]
    assert command_line.main(arguments) == 0
    facts = json.loads(capfd.readouterr().out)
    assert facts["in_sections"] is False
    assert facts["process"]["arguments"] == [str(script)]


def test_the_whole_step_runs_where_forward_returns_a_loss():
    report, _ = report_of(NetWithLoss(), batch(0), training=True)
    assert set(report.data()["estimate"]["lowerings"]) == {"step"}
    assert "run one by one" not in str(report)


def test_sections_find_what_earlier_ones_have_left():
    report, programs = report_of(Net(), batch(0)[:1], training=True)
    assert "Forward, backward and update run one by one" in str(report)
    moments = {each.name: each for each in report.answer.estimate.moments}
    left = {
        name: sum(
            part.size.high for part in moment.parts if part.role == "left by earlier sections"
        )
        for name, moment in moments.items()
    }
    _, backward, update = programs
    values = [slot for slot in backward.inputs if slot.name.startswith("value.")]
    assert values
    assert left["backward"] == sum(torch.empty(s.shape, dtype=s.dtype).nbytes for s in values)
    gradients = [slot for slot in update.inputs if slot.name.startswith("gradient.")]
    assert left["update"] == sum(torch.empty(s.shape, dtype=s.dtype).nbytes for s in gradients)
    assert left["forward"] == 0


def test_inference_is_forward_alone():
    report, _ = report_of(Net().eval(), batch(0)[:1], training=False)
    assert set(report.data()["estimate"]["lowerings"]) == {"forward"}
    assert report.data()["in_sections"] is False


def test_the_memory_of_ipus_is_none_of_these_programs():
    with pytest.raises(
        LimitError, match="--limit mk2x4 is the memory of IPUs, on which no SambaFlow program runs"
    ):
        report_of(Net(), batch(0)[:1], training=True, limit="mk2x4")


def test_the_memory_of_ipus_is_refused_in_a_line(script, capsys):
    assert command_line.main(["fit", str(script), "--limit", "mk2"]) == 1
    err = capsys.readouterr().err
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("abele fit: --limit mk2 is the memory of IPUs")


def test_it_is_refused_in_a_line_where_another_process_was_to_answer(
    script, tmp_path, capfd, monkeypatch
):
    monkeypatch.setattr(sys, "executable", python())
    parent = tmp_path / "parent.py"
    parent.write_text(
        f"import subprocess, sys\nsubprocess.run([sys.executable, {str(script)!r}])\n"
    )
    assert command_line.main(["fit", str(parent), "--limit", "mk2"]) == 1
    err = capfd.readouterr().err
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("abele fit: --limit mk2 is the memory of IPUs")


def test_stages_are_refused_in_a_line(script, capsys):
    assert command_line.main(["stage", str(script), "--ipus", "2"]) == 1
    *_, line = capsys.readouterr().err.splitlines()
    assert line.startswith(
        "abele stage: Stages are those of a PopTorch program. A SambaFlow program has"
    )


def test_a_program_that_nobody_asks_compiles(script):
    done = subprocess.run([python(), str(script)], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("not reached\n")
