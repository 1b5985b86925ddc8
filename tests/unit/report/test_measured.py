"""``abele report RUN --measure`` times operators of a run that is over, or says why not."""

import dataclasses

import pytest
import torch

from abele.__main__ import main
from abele.errors import ReportError
from abele.report import executable_file, read_run
from abele.report.command import measured
from abele.report.executable_file import FILE
from abele.targets import candidates, get_target
from helpers.models import MODELS
from helpers.reported import recorded
from helpers.runs import rule_for, started


def run_in(folder, target="reference", name="dense"):
    """A run that is over: its record and its executable."""
    model = MODELS[name]
    module = model.fresh()
    session, record = started(module, model.batch(), rule_for(module), target=get_target(target))
    run = recorded(session, record)
    process = dataclasses.replace(run.process, machine="elsewhere")
    run = dataclasses.replace(run, process=process)
    run.write(folder)
    executable_file.write(folder, session.executable)
    return run, session


def test_the_page_gets_times_and_says_that_the_state_was_made_up(tmp_path, capsys):
    before, _ = run_in(tmp_path)
    assert main(["report", str(tmp_path), "--measure"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
    text = (tmp_path / "report.html").read_text()
    assert "between them, " in text
    assert "its state was made up" in text
    after = read_run(tmp_path)
    (program,) = after.programs
    assert program.timing.made_up
    (untimed,) = before.programs
    assert dataclasses.replace(program, timing=None) == untimed
    assert after.build == before.build


def test_a_run_that_has_times_keeps_them(tmp_path):
    run, _ = run_in(tmp_path)
    timed = measured(tmp_path, run, alive=False, budget_s=0)
    (tmp_path / FILE).unlink()
    assert measured(tmp_path, timed, alive=True) is timed


def test_times_are_taken_again_if_that_is_wanted(tmp_path):
    run, _ = run_in(tmp_path)
    timed = measured(tmp_path, run, alive=False, budget_s=0)
    again = measured(tmp_path, timed, alive=False, again=True, budget_s=0)
    assert again.programs[0].timing.clocked != timed.programs[0].timing.clocked


def test_the_number_of_threads_is_that_of_the_run(tmp_path):
    run, _ = run_in(tmp_path)
    threads = torch.get_num_threads()
    machine = dataclasses.replace(run.machine, threads=threads + 1)
    timed = measured(tmp_path, dataclasses.replace(run, machine=machine), alive=False, budget_s=0)
    assert timed.limits.threads == threads + 1
    assert torch.get_num_threads() == threads


@pytest.mark.compiler
@pytest.mark.parametrize("way", ["emitted", "op_by_op"])
def test_what_is_read_is_what_ran_and_computes_the_same_bits(way, tmp_path, monkeypatch):
    reason = get_target("cpu").cannot_compile()
    if reason is not None:
        pytest.skip(reason)
    monkeypatch.setenv(candidates.ENVIRONMENT, way)
    _, session = run_in(tmp_path, "cpu", "introduction")
    (program,) = session.executable.programs
    read = executable_file.read(tmp_path)
    assert read.lowering(program.name).name == way
    (again,) = read.programs
    assert again.fingerprint() == program.fingerprint()
    results = []
    for each in (session.executable, read):
        generator = torch.Generator().manual_seed(1)
        inputs = [
            torch.rand(slot.shape, generator=generator).to(slot.dtype) for slot in program.inputs
        ]
        results.append([*each.compiled[program.name].run(list(inputs)), *inputs])
    assert all(map(torch.equal, *results))


def test_an_executable_that_is_gone_is_said(tmp_path, capsys):
    run_in(tmp_path)
    (tmp_path / FILE).unlink()
    assert main(["report", str(tmp_path), "--measure"]) == 1
    assert "The executable of the run in" in (said := capsys.readouterr().err)
    assert "is gone, or was never kept" in said


def test_a_damaged_executable_is_said(tmp_path):
    run, _ = run_in(tmp_path)
    (tmp_path / FILE).write_bytes(b"nothing")
    with pytest.raises(ReportError, match=r"cannot be used here: .* Run the program again"):
        measured(tmp_path, run, alive=False)


def test_an_executable_of_another_machine_is_refused(tmp_path, monkeypatch):
    run, _ = run_in(tmp_path)
    target = get_target("reference")
    monkeypatch.setattr(type(target), "describe", lambda self: {"target": "x", "torch": "1"})
    with pytest.raises(
        ReportError, match=r"made for another machine or version: .*torch: .* 1 here"
    ):
        measured(tmp_path, run, alive=False)


def test_a_run_of_another_processor_is_refused(tmp_path):
    run, _ = run_in(tmp_path)
    machine = dataclasses.replace(run.machine, processor="Z80")
    with pytest.raises(ReportError, match=r"was on Z80, this machine has .* Time it there"):
        measured(tmp_path, dataclasses.replace(run, machine=machine), alive=False)


def test_a_run_that_goes_on_is_left_alone(tmp_path):
    run, _ = run_in(tmp_path)
    with pytest.raises(ReportError, match="still goes on, and timing would disturb it"):
        measured(tmp_path, run, alive=True)
