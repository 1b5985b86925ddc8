"""Runs with heads: tables, predictions, pages and pictures, in one process and in two."""

import csv

import numpy as np
import pytest

from cosmictagger import cli
from cosmictagger.data.loader import EventLoader
from cosmictagger.data.truth import EVENT_LABEL, VERTICES
from cosmictagger.measures import COSMIC_ONLY, EVENT_CLASSES
from cosmictagger.results.predictions import open_predictions, read_event_scores, read_vertices
from helpers.cosmic_small import TINY
from helpers.instances import results, started

KEYS = ("Average/EventLabel", "Average/VertexDetection", "plane2/VertexResolution")
PARTS = ("loss/segmentation", "loss/event_label", "loss/vertex/detection")
CLASS = ("active=True", "n_filters=4", "n_layers=1")
HEADS = [f"network.classification.{each}" for each in CLASS]
HEADS += [f"network.vertex.{each}" for each in (*CLASS, "depth=0")]
DATA = ["data=generated", "data.rows=64", "data.columns=128", "data.downsample=1"]
DATA += ["data.events=6", "data.aux_events=5", "data.cosmic_only=0.4", "data.generator_seed=4"]
COMMON = [*TINY, "run.id=x", "run.saver=False", "data.seed=7", "framework.seed=11"]
COMMON += ["run.compute_mode=CPU", "run.iterations=3", "run.aux_iterations=2"]


@pytest.fixture(scope="module")
def events(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def launched(events, tmp_path, monkeypatch):
    """Runs a command line on generated events; gives (exit status, output folder)."""
    monkeypatch.chdir(tmp_path)

    def launch(*more, heads=HEADS, name="out"):
        given = [*DATA, f"data.folder={events}", *COMMON, *heads, f"output_dir={tmp_path / name}"]
        changed = {each.split("=")[0] for each in more}
        kept = [each for each in given if each.split("=")[0] not in changed]
        return cli.main([*kept, *more]), tmp_path / name

    return launch


def rows_of(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def truth_of(events):
    (path,) = events.glob("events-v2-64x128-seed1000004-5-cosmic0.4.h5")
    with EventLoader(path, truth=(EVENT_LABEL, VERTICES), downsample=1, batch_size=5) as loader:
        return next(iter(loader)), loader.frame


def test_training_records_heads_where_they_are_active(launched):
    status, folder = launched()
    assert status == 0
    for table, steps in (("train", 3), ("test", 1)):
        rows = rows_of(folder / f"{table}_metrics.csv")
        assert len(rows) == steps
        for row in rows:
            parts = [float(row[key]) for key in (*PARTS, "loss/vertex/localization")]
            assert float(row["loss"]) == pytest.approx(sum(parts), abs=1e-4)
            assert 0 <= float(row["Average/EventLabel"]) <= 1
            assert set(KEYS) <= set(row)
    log = (folder / "process.log").read_text()
    assert log.count("Average/VertexResolution: ") == 4
    page = (folder / "training.html").read_text()
    for words in ("Loss: vertex/detection", "Events of the right class", "in units of the file"):
        assert words in page
    status, plain = launched(heads=[], name="plain")
    assert status == 0
    heading = (plain / "train_metrics.csv").read_text().splitlines()[0]
    assert "Vertex" not in heading
    assert "EventLabel" not in heading
    assert "loss/" not in heading


def test_one_head_has_its_columns_alone(launched):
    status, folder = launched("run.iterations=1", "run.aux_iterations=0", heads=HEADS[:3])
    assert status == 0
    heading = (folder / "train_metrics.csv").read_text().splitlines()[0].split(",")
    assert {"Average/EventLabel", "loss/event_label"} <= set(heading)
    assert not [key for key in heading if "ertex" in key]


def test_synthetic_events_train_heads(tmp_path):
    more = ["data=synthetic", "data.downsample=5", f"output_dir={tmp_path / 'out'}"]
    assert cli.main([*COMMON, *HEADS, *more]) == 0
    rows = rows_of(tmp_path / "out" / "train_metrics.csv")
    assert len(rows) == 3
    assert all(float(row[key]) >= 0 for row in rows for key in (*KEYS, *PARTS))


def test_inference_writes_what_heads_say(launched, events, quick_pictures):
    assert launched()[0] == 0
    status, folder = launched("mode=inference", "run.iterations=null", "run.minibatch_size=2")
    assert status == 0
    batch, frame = truth_of(events)
    rows = rows_of(folder / "event_metrics.csv")
    assert len(rows) == 5
    with open_predictions(folder / "predictions.h5") as file:
        for number, row in enumerate(rows):
            scores, found = read_event_scores(file, number), read_vertices(file, number)
            kind = int(batch.event_label[number])
            assert scores.sum() == pytest.approx(1, abs=1e-5)
            assert row["event_class"] == EVENT_CLASSES[kind]
            assert row["taken_for"] == EVENT_CLASSES[int(scores.argmax())]
            assert float(row["Average/EventLabel"]) == (int(scores.argmax()) == kind)
            away = np.hypot(*(found - frame.place(batch.vertex[number].numpy())).T)
            for plane in range(3):
                value = float(row[f"plane{plane}/VertexResolution"])
                if kind == COSMIC_ONLY:
                    assert np.isnan(value)
                else:
                    assert value == pytest.approx(away[plane], rel=1e-4, abs=1e-3)
    kinds = batch.event_label.tolist()
    assert COSMIC_ONLY in kinds
    page = (folder / "report.html").read_text()
    for words in ("Whole events", "Events taken for what", "How far vertices are off"):
        assert page.count(f">{words}<") == 1
    assert f"% of {kinds.count(COSMIC_ONLY)}<" in page
    assert "<th>distance</th>" in page  # a longer name makes the table wider than the page
    log = (folder / "process.log").read_text()
    assert "Average/VertexDetection: " in log
    assert "loss/vertex/localization: " in log
    assert set(KEYS) <= set(rows_of(folder / "ana_metrics.csv")[0])


def test_predictions_of_networks_without_heads(launched, quick_pictures):
    status, folder = launched("mode=inference", "mode.weights_location=random", heads=[])
    assert status == 0
    with open_predictions(folder / "predictions.h5") as file:
        assert read_event_scores(file, 0) is None
        assert read_vertices(file, 0) is None
    assert "event_class" not in (folder / "event_metrics.csv").read_text()
    assert "Whole events" not in (folder / "report.html").read_text()


def test_a_file_without_vertices_is_refused_before_training(events_folder, run, capsys):
    status, folder = run(*HEADS)
    assert status == 2
    said = capsys.readouterr().err
    assert "Data/particle_sbndneutrino_group is missing" in said
    assert not (folder / "train_metrics.csv").exists()
    status, _ = run(*HEADS[3:])
    assert status == 2
    assert "Data/bbox2d_bbox_neutrino_group is missing" in capsys.readouterr().err


def test_inference_without_labels_says_what_heads_say(launched, events, tmp_path, quick_pictures):
    status, trained = launched()
    assert status == 0
    batch, frame = truth_of(events)
    (path,) = events.glob("events-v2-64x128-seed1000004-5-cosmic0.4.h5")
    given = ["mode=inference", "data=real", "data.downsample=1", "data.img_transform=True"]
    given += [f"data.data_directory={path.parent}", f"data.file={path.name}", "data.label="]
    given += [f"mode.weights_location={trained / 'checkpoints'}", f"output_dir={tmp_path / 'bare'}"]
    common = [each for each in COMMON if not each.startswith("run.iterations")]
    assert cli.main([*common, *HEADS, *given]) == 0
    rows = rows_of(tmp_path / "bare" / "event_metrics.csv")
    assert {row["event_class"] for row in rows} == {""}
    assert all(row["taken_for"] in EVENT_CLASSES for row in rows)
    with open_predictions(tmp_path / "bare" / "predictions.h5") as file:
        places = np.stack([read_vertices(file, number) for number in range(len(batch))])
    assert (places >= frame.origin).all()
    assert (places <= frame.origin + frame.size).all()


@pytest.mark.long
def test_two_processes_measure_as_one(launched, events, tmp_path):
    """Of five events to validate on, in batches of two for each, one process once has none."""
    more = ["run.minibatch_size=4", "run.iterations=4", "run.aux_iterations=1"]
    more += ["network.normalization=none"]
    assert launched(*more, "mode.optimizer.gradient_accumulation=1", name="one")[0] == 0
    given = [*DATA, f"data.folder={events}", *COMMON, *HEADS, f"output_dir={tmp_path / 'two'}"]
    changed = {each.split("=")[0] for each in more}
    kept = [each for each in given if each.split("=")[0] not in changed]
    with started(cli.__file__, [*kept, *more, "run.distributed=True"], 2) as running:
        ended = results(running, 300)
    assert [each.status for each in ended] == [0, 0], ended[0].err
    for table in ("train", "test"):
        files = (tmp_path / name / f"{table}_metrics.csv" for name in ("one", "two"))
        for one, two in zip(*map(rows_of, files), strict=True):
            for key in (*KEYS, "Average/VertexResolution"):
                assert float(two[key]) == pytest.approx(float(one[key]), abs=0.02, nan_ok=True)


@pytest.mark.long
def test_two_processes_label_as_one(launched, events, tmp_path, quick_pictures):
    assert launched()[0] == 0
    common = [each for each in COMMON if not each.startswith("run.iterations")]
    given = [*DATA, f"data.folder={events}", *common, *HEADS, "mode=inference"]
    given.append(f"mode.weights_location={tmp_path / 'out' / 'checkpoints'}")
    assert cli.main([*given, f"output_dir={tmp_path / 'one'}"]) == 0
    more = [f"output_dir={tmp_path / 'two'}", "run.distributed=True"]
    with started(cli.__file__, [*given, *more], 2) as running:
        ended = results(running, 300)
    assert [each.status for each in ended] == [0, 0], ended[0].err
    one, two = (rows_of(tmp_path / name / "event_metrics.csv") for name in ("one", "two"))
    assert [row["taken_for"] for row in one] == [row["taken_for"] for row in two]
    assert len(list((tmp_path / "two" / "displays").iterdir())) == 5
    files = [open_predictions(tmp_path / name / "predictions.h5") for name in ("one", "two")]
    with files[0] as left, files[1] as right:
        for number in range(5):
            scores = (read_event_scores(file, number) for file in (left, right))
            np.testing.assert_allclose(*scores, rtol=1e-4)
            places = (read_vertices(file, number) for file in (left, right))
            np.testing.assert_allclose(*places, rtol=1e-4)
