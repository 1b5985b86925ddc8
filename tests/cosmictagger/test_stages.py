"""``abele stage`` of the application: divided, measured, and trained in these stages."""

import re

import pytest

from abele import __main__ as command_line
from cosmictagger import __main__ as program
from helpers.cosmic_small import column, given, record

TRAINING = (
    *("run.compute_mode=IPU", "run.iterations=1", "run.minibatch_size=1"),
    "mode.optimizer.gradient_accumulation=3",
)


@pytest.fixture
def whole(run, monkeypatch):
    """The output folder of a training whose network is one stage."""
    monkeypatch.setenv("ABELE_PIPELINE", "workers")  # also on one core
    status, folder = run(*TRAINING, name="whole")
    assert status == 0
    return folder


@pytest.mark.parametrize(
    "more",
    [
        pytest.param((), id="modelled"),
        pytest.param(("--measure",), id="measured", marks=pytest.mark.long),
    ],
)
def test_the_network_trains_as_before_in_the_stages_that_it_was_divided_into(
    whole, events_folder, capsys, more
):
    folder = whole.parent / "staged"
    base = [each for each in given(events_folder) if not each.startswith("run.compute_mode")]
    stage = ["stage", program.__file__, "--ipus", "2", "--run", *more, "--"]
    with pytest.raises(SystemExit) as ended:
        command_line.main([*stage, f"output_dir={folder}", *base, *TRAINING])
    assert ended.value.code == 0
    err = capsys.readouterr().err
    line = r'^poptorch\.BeginBlock\(model\.network\.\S+, "stage1", ipu_id=1\)$'
    assert re.search(line, err, re.MULTILINE)
    assert ("(measured)" in err) is bool(more)
    (before,), (now,) = (map(float, column(each, "loss")) for each in (whole, folder))
    assert now == pytest.approx(before, rel=1e-6)
    one, two = (record(each)["proof"] for each in (whole, folder))
    assert two["training_steps"] == 1
    assert two["executable"] != one["executable"]
