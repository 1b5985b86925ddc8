"""Cards, reports, recordings and errors of compiled functions, for those who look at them."""

import random
import traceback

import pytest
import torch

import abele
from abele.__main__ import main
from abele.errors import CaptureError, ReportError
from abele.report import read_journal, read_run


def training(**options):
    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    @abele.compile(cache=False, **options)
    def train_step(x):
        optimizer.zero_grad()
        error = model(x).square()
        loss = error.mean()
        loss.backward()
        optimizer.step()
        return error.detach(), loss.detach()

    return train_step


@pytest.fixture(autouse=True)
def on_reference(monkeypatch):
    monkeypatch.setenv("ABELE_TARGET", "reference")


def test_a_card_says_what_runs():
    step = training()
    assert "plain PyTorch until the second call" in step._repr_html_()
    losses = [float(step(torch.ones(4, 8))[1]) for _ in range(5)]
    shown = step._repr_html_()
    assert ">reference<" in shown
    assert "programs are interpreted" in shown
    assert f">loss {losses[1]:.4g} to {losses[-1]:.4g}, call 1 to 4<" in shown
    for _ in range(3):
        step(torch.ones(2, 8))
    shown = step._repr_html_()
    assert ">program 2<" in shown
    assert ": 3 calls<" in shown
    assert ": 4 calls<" in shown
    assert ">7<" in shown


def test_a_card_gives_the_reason_of_plain_pytorch():
    @abele.compile
    def step(x):
        return x * random.random()

    with pytest.warns(abele.EagerWarning):
        [step(torch.ones(2)) for _ in range(2)]
    assert step.eager is not None
    assert f"plain PyTorch, because {step.eager[:20]}" in step._repr_html_()
    with pytest.raises(ReportError, match=r"no program to report\. It runs as plain PyTorch: \w+"):
        step.report("report.html")


def test_a_report_needs_a_program_and_returns_its_page(tmp_path):
    step = training()
    step(torch.ones(4, 8))
    with pytest.raises(ReportError, match="Its second call makes one"):
        step.report(tmp_path / "page.html")
    for _ in range(3):
        step(torch.ones(4, 8))
    written = step.report(tmp_path / "page.html")
    assert written.path == tmp_path / "page.html"
    assert "test_shown.py" in written.path.read_text()
    assert "<iframe" in written._repr_html_()
    step.report(tmp_path / "run")
    assert main(["report", str(tmp_path / "run"), "--json"]) == 0
    assert read_journal(tmp_path / "run").calls == 0  # nothing was recorded


def test_a_recording_has_all_calls_of_all_programs(tmp_path, capsys):
    step, other = training(report=tmp_path / "run"), training(report=tmp_path / "run")
    for rows in (4, 4, 4, 2, 2, 4):
        loss = step(torch.ones(rows, 8))[1]
    for _ in range(2):
        other(torch.ones(4, 8))
    step.report(tmp_path / "copy")
    for folder in ("run", "copy"):
        run, journal = read_run(tmp_path / folder), read_journal(tmp_path / folder)
        assert run.name.endswith("train_step")
        assert run.training
        assert [each.name for each in run.programs] == ["step", "step 2"]
        assert [each.given["input"] for each in run.programs] == [4 * 8 * 4, 2 * 8 * 4]
        assert journal.calls == 5  # the first one of all was plain PyTorch
        assert journal.windows[-1].loss == pytest.approx(float(loss))
    assert read_journal(tmp_path / "run_2").calls == 1
    assert main(["report", str(tmp_path / "run"), "--text"]) == 0
    assert "a program for other calls: 2 now" in capsys.readouterr().out
    assert main(["diff", str(tmp_path / "run"), str(tmp_path / "run_2")]) == 1


def test_an_error_has_the_users_frames():
    def condition(x):
        return bool(x.sum() > 0)

    model = torch.nn.Linear(2, 1)

    @abele.compile(strict=True)
    def step(x):
        loss = model(x).sum()
        (loss * 2 if condition(loss) else loss).backward()

    step(torch.ones(2))
    with pytest.raises(CaptureError, match="reads the value of a tensor") as caught:
        step(torch.ones(2))
    frames = [each.name for each in traceback.extract_tb(caught.value.__traceback__)]
    assert frames[0] == "test_an_error_has_the_users_frames"
    assert len(frames) <= 4
    causes, cause = [], caught.value.__cause__
    while cause is not None:
        causes += [each.name for each in traceback.extract_tb(cause.__traceback__)]
        cause = cause.__cause__
    assert causes[:2] == ["step", "condition"]
    assert len(causes) <= 3
