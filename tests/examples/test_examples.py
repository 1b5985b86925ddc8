"""The example programs run as a user runs them, on the target that needs no compiler."""

import importlib
import json
import re
import subprocess
from pathlib import Path

import pytest

import pytorch_gpu
import pytorch_ipu
from abele import get_target
from helpers.warm_python import run_program

REPOSITORY = Path(__file__).resolve().parents[2]
SMALL = ("--source", "built-in", "--train-samples", "320", "--test-samples", "100")


@pytest.fixture(scope="module", autouse=True)
def introduction():
    """The program as a module: imported when a test runs, since the extra takes a second."""
    for package in ("PIL", "matplotlib", "sklearn"):
        pytest.importorskip(package, reason="optional extra: pip install abele[demo]")
    return importlib.import_module("introduction")


@pytest.fixture(autouse=True)
def on_reference(monkeypatch, tmp_path):
    monkeypatch.setenv("ABELE_TARGET", "reference")
    monkeypatch.chdir(tmp_path)


def run(program: str, *arguments: str) -> subprocess.CompletedProcess:
    path = str(REPOSITORY / "src")
    return run_program(REPOSITORY / "examples" / program, *arguments, PYTHONPATH=path)


def test_introduction_from_start_to_end(tmp_path):
    result = run("introduction.py", *SMALL, "--epochs", "1", "--device-iterations", "2")
    # So few steps may name the photograph wrongly; that device and PyTorch agree is the point.
    assert result.returncode == 0, result.stderr
    assert "epoch 1: mean loss" in result.stdout
    assert "Test accuracy: " in result.stdout
    assert "Both agree" in result.stdout
    assert "target reference, executable " in result.stdout
    assert "\r" not in result.stderr  # into a pipe, bars would write several lines a second
    written = {path.name for path in (tmp_path / "out" / "introduction").iterdir()}
    assert written == {
        "sample_images.png",
        "confusion_matrix.png",
        "photo_before_after.png",
        "trousers.png",
        "classifier.pth",
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--epochs", "0"), "--epochs must be at least 1; found 0"),
        (("--num-workers", "-1"), "--num-workers must be 0 or more; found -1"),
        (("--photo", "none.jpg"), "photograph none.jpg does not exist"),
        (("--photo", __file__), "is not an image"),
        (("--weights", "none.pth"), "weights file none.pth does not exist"),
        (("--batch-size", "7"), "7 x 1 = 7 rows: 5 left over. .* --train-samples 315"),
        (("--batch-size", "400"), "400 x 1 = 400 rows: 320 left over. .* --train-samples 400"),
    ],
    ids=["epochs", "workers", "no photo", "no image", "no weights", "left over", "too large"],
)
def test_wrong_input_is_one_sentence_and_status_2(introduction, arguments, message, capsys):
    assert introduction.main([*SMALL, *arguments]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert re.search(message, error), error


def test_a_missing_extra_is_named():
    program = "import sys; sys.modules['matplotlib'] = None; import introduction"
    result = run_program("-c", program)
    assert result.returncode == 2
    assert result.stderr == "matplotlib is missing here: pip install abele[demo]\n"


@pytest.mark.thorough
@pytest.mark.parametrize("target", ["reference", pytest.param("cpu", marks=pytest.mark.compiler)])
def test_the_porting_pair_agrees(target, tmp_path, capsys, monkeypatch):
    if get_target(target).cannot_compile():
        pytest.skip(get_target(target).cannot_compile())
    monkeypatch.setenv("ABELE_TARGET", target)
    # With seed 1 no activation comes so near a kink that the last bit decides; see the page.
    common = ("--source", "built-in", "--train-samples", "1600", "--test-samples", "112")
    common += ("--seed", "1")
    losses, printed = [], []
    for program in (pytorch_gpu, pytorch_ipu):
        path = tmp_path / f"{program.__name__}.json"
        program.main([*common, "--epochs", "1", "--steps", "100", "--losses", str(path)])
        losses.append(json.loads(path.read_text()))
        printed.append([line.split(":")[0] for line in capsys.readouterr().out.splitlines()])
    assert len(losses[0]) == 100
    assert losses[1] == pytest.approx(losses[0], abs=1e-5)
    assert losses[0][-1] < losses[0][0]
    assert printed[0] == printed[1] == ["Data", "Last training loss", "Test accuracy"]


def test_half_precision_needs_stochastic_rounding(tmp_path):
    result = run("half_precision.py", "--epochs", "3")
    assert result.returncode == 0, result.stderr
    losses = [float(each) for each in re.findall(r"loss ([0-9.]+)", result.stdout)]
    plain, nearest, stochastic = losses
    assert stochastic == pytest.approx(plain, abs=2e-3)
    assert nearest - plain > 2 * abs(stochastic - plain)
    assert (tmp_path / "out" / "half_precision.png").stat().st_size > 10_000
