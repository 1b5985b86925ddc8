"""A short training finds neutrinos in events it has not seen: the record, and how to repeat it.

``benchmarks/cosmictagger_training.py`` makes the record; here its numbers have to belong together.
"""

import json
import runpy
import statistics
from pathlib import Path

import pytest
from PIL import Image

from cosmictagger.config.composing import composed
from cosmictagger.config.keys import DataKind

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"
RECORDS = sorted((BENCHMARKS / "records").glob("cosmictagger_training_*.json"))


@pytest.fixture(params=RECORDS, ids=lambda path: path.stem)
def record(request):
    return json.loads(request.param.read_text())


@pytest.fixture
def benchmark(monkeypatch):
    """The names in the script."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    return runpy.run_path(str(BENCHMARKS / "cosmictagger_training.py"))


def test_there_is_a_record():
    assert RECORDS


def test_the_record_is_of_the_settings_that_the_benchmark_has(record, benchmark):
    seeds = [setting for setting in record["settings"] if ".seed=" in setting]
    assert record["settings"] == [*benchmark["RECIPE"], *benchmark["TRAINING"], *seeds]
    assert [setting.split("=")[0] for setting in seeds] == ["data.seed", "framework.seed"]
    assert record["steps"] == benchmark["STEPS"]
    settling = benchmark["STEPS"] - benchmark["SETTLING"]
    first, last = benchmark["STAGES"]
    assert record["stages"] == {"from 0": first, f"from {settling}": last}


def test_it_was_what_was_asked_for(record):
    config = composed("config", ["run.id=proof", *record["settings"]])
    assert config.data.name is DataKind.generated
    assert (config.data.events, config.data.downsample) == (200, 3)
    assert config.network.depth <= 5
    assert (config.data.rows, config.data.columns) == (1280, 2048)
    proof = record["proof"]
    assert 0 < proof["training_steps"] <= record["steps"]  # of the last launch
    assert (proof["executable"] is None) == (proof["mode"] == "CPU")


def test_it_reaches_what_was_asked_for(record):
    assert record["held_out"]["mIoU"] > 0.5
    # Not because planes without a neutrino count as 1.
    assert record["held_out"]["Neutrino_IoU_with_neutrino"] > 0.2


def test_it_finds_neutrinos_in_events_it_has_not_seen(record):
    output, untrained = record["held_out"], record["untrained"]
    assert output["events"] == untrained["events"] >= 40
    assert untrained["mIoU"] < 0.05
    assert output["mIoU"] == pytest.approx(
        (output["Cosmic_IoU"] + output["Neutrino_IoU"]) / 2, abs=1e-3
    )


def test_the_curve_is_that_of_all_steps(record):
    train, test = record["curve"]["train"], record["curve"]["test"]
    assert train["step"] == list(range(record["steps"]))
    assert len(test["step"]) > 10
    for curve in (train, test):
        assert len({len(values) for values in curve.values()}) == 1
        # Not the loss: focal weights turn to what is still hard, and its mean falls little.
        result = curve["Average/mIoU"]
        tenth = len(result) // 10
        assert statistics.mean(result[-tenth:]) > 2 * statistics.mean(result[:tenth])
    last = statistics.mean(test["Average/mIoU"][-5:])
    assert last == pytest.approx(record["held_out"]["mIoU"], abs=0.15)


@pytest.mark.parametrize("kind", ["curve", "event"])
@pytest.mark.parametrize("path", RECORDS, ids=lambda path: path.stem)
def test_its_pictures_are_kept(path, kind):
    with Image.open(path.with_suffix(f".{kind}.png")) as picture:
        picture.verify()
        assert min(picture.size) > 300


@pytest.mark.long
def test_it_can_be_repeated(tmp_path, benchmark):
    result = benchmark["measure"](tmp_path / "out", seed=2, steps=100, mode="CPU")
    assert result["held_out"]["mIoU"] > result["untrained"]["mIoU"] + 0.1
    assert result["curve"]["train"]["step"] == list(range(100))
