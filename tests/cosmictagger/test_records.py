"""Lines, tables and files in the form that analysis scripts of the original read."""

import io
import json
import re
import time

import numpy as np
import pytest
import torch
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from cosmictagger.recording import (
    PARTS,
    Bar,
    RunRecord,
    Summaries,
    Table,
    Timings,
    closing_lines,
    log_step,
    logger,
    logging_to,
    progress,
    split_line,
    step_line,
    throughput,
)


def test_a_log_line_has_its_words_where_the_analysis_looks(tmp_path):
    values = {
        "loss": 3.8249,
        "Average/mIoU": 0.0021534,
        "Average/Non_Bkg_Accuracy": 0.1663,
        "plane0/mIoU": 0.5,
        "images_per_second": 0.1458,
        "io_fetch_time": 0.0153,
        "step_time": 8.64,
    }
    with logging_to(tmp_path):
        log_step("train", 17, values)
    (line,) = (tmp_path / "process.log").read_text().splitlines()
    words = line.split()
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} - INFO - train", " ".join(words[:6]))
    assert (words[7], words[-2], words[-5]) == ("17", "8.64", "0.0153")
    assert "loss: 3.82, Average/Non_Bkg_Accuracy: 0.166, Average/mIoU: 0.00215 (0.146 Img/s" in line


def test_lines_of_validation_have_no_speeds():
    assert step_line("test", 3, {"Average/mIoU": 0.5}) == "test Step 3 metrics: Average/mIoU: 0.5"


def test_where_a_bar_is_step_lines_go_to_the_file_only(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with logging_to(tmp_path):
        log_step("train", 1, {})
        logger.info("seen")
    assert "train Step" not in capsys.readouterr().out
    assert "train Step 1" in (tmp_path / "process.log").read_text()


def test_tables_go_on_where_they_were(tmp_path):
    path = tmp_path / "train_metrics.csv"
    Table(path).add(0, {"loss": 1.0, "Average/mIoU": 0.25})
    Table(path).add(1, {"loss": 0.5, "Average/mIoU": 0.123456789})
    with open(path, "a") as file:
        file.write("2,0.4")  # killed in the middle of a row
    Table(path).add(2, {"Average/mIoU": 0.5, "loss": 0.25})
    assert path.read_text() == (
        "step,loss,Average/mIoU\n0,1.00000,0.25000\n1,0.50000,0.12346\n2,0.4\n2,0.25000,0.50000\n"
    )


def test_the_record_is_whole_at_any_time(tmp_path):
    record = RunRecord(tmp_path, {"id": "x"})
    assert json.loads((tmp_path / "run.json").read_text())["ended"] is None
    record.update({"weights_hash": "abc"})
    record.end("finished")
    text = json.loads((tmp_path / "run.json").read_text())
    assert (text["id"], text["weights_hash"], text["ended"]) == ("x", "abc", "finished")


def test_profile_files_need_no_pickle(tmp_path):
    timings = Timings()
    for index in range(3):
        with timings.iteration(index), timings.part("io"):
            time.sleep(0.002)
    rows = np.load(timings.save(tmp_path), allow_pickle=False)
    assert rows.dtype.names == ("i", "start", "iteration", *PARTS)
    assert rows["i"].tolist() == [0, 1, 2]
    assert rows.dtype["start"] == np.dtype("datetime64[us]")
    assert (rows["io"] >= np.timedelta64(2, "ms")).all()
    assert (rows["iteration"] >= rows["io"]).all()


def test_throughput_leaves_out_the_first_iterations():
    times = [10.0, 5.0, *[0.5] * 41]
    rates = throughput(times, images=2)
    assert rates["except_first_two"] == rates["last_40"] == pytest.approx(4.0)
    lines = closing_lines(times, images=2)
    assert lines[0] == "Total time to batch_process: 35.5000"
    assert lines[2] == (
        "Total time to batch process except first two iterations: 20.5000, throughput: 4.0000"
    )
    assert lines[3].startswith("Total time to batch process last 40 iterations: 20.0000")
    assert len(closing_lines(times[:2], 2)) == 2


def test_steps_that_scatter_on_busy_cores_are_explained(monkeypatch):
    times = [30.0, 30.0, *[0.01] * 20, 1.5]
    for load, threads, said in ((100.0, 2, True), (0.5, 2, False), (100.0, 1, False)):
        monkeypatch.setattr("os.getloadavg", lambda load=load: (load, 0.0, 0.0))
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        last = closing_lines(times, 1)[-1]
        assert last.startswith("Steps took 0.01 to 1.5 s: their threads wait") is said
    assert "OMP_NUM_THREADS" not in closing_lines(times[:-1], 1)[-1]


def test_the_split_of_an_iteration_leaves_out_the_first():
    timings = Timings()
    assert timings.split() == {}
    for index, seconds in enumerate((9.0, 0.25, 0.75)):
        with timings.iteration(index):
            timings.add("io", seconds / 4)
            timings.add("train", seconds)
            timings.add("backward", seconds / 2)
            timings.add("log", seconds / 8)
    split = timings.split()
    assert list(split) == ["iteration", "train", "io", "backward", "log"]
    del split["iteration"]
    assert split == pytest.approx({"train": 0.5, "io": 0.125, "backward": 0.25, "log": 0.0625})
    assert split_line({"iteration": 0.75, **split}) == (
        "Mean seconds of an iteration: 0.75: io 0.125, train 0.5 (backward 0.25), log 0.0625"
    )
    del split["train"], split["backward"]
    assert split_line({"iteration": 0.75, "forward": 0.5, **split}).endswith(
        "0.75: io 0.125, forward 0.5, log 0.0625"
    )


def test_what_takes_long_says_how_far_it_is(tmp_path, monkeypatch, capsys):
    """In the log of a run, elsewhere to standard error; nothing where it is quick."""
    assert list(progress([3, 4], "Joining")) == [3, 4]
    monkeypatch.setattr("cosmictagger.recording._SILENCE", -1)
    assert list(progress([3, 4], "Joining")) == [3, 4]
    assert capsys.readouterr().err == "Joining: 0 of 2\nJoining: 1 of 2\n"
    with logging_to(tmp_path):
        list(progress(range(2), "Drawing"))
    assert "Drawing: 1 of 2" in (tmp_path / "process.log").read_text()
    assert "Drawing" not in capsys.readouterr().err


def test_on_a_terminal_a_bar_takes_the_place_of_lines(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("cosmictagger.recording._SILENCE", -1)
    list(progress(range(2), "Drawing"))
    said = capsys.readouterr().err
    assert "Drawing: 100%" in said
    assert "1 of 2" not in said


def test_tensorboard_scalars_and_pictures(tmp_path):
    summaries = Summaries(tmp_path, 0)
    summaries.scalars(25, {"loss": 1.5, "plane0/mIoU": 0.25})
    scores = torch.zeros(1, 3, 4, 5)
    scores[:, 2, 0] = 1  # the first row is a neutrino
    scores[:, 1, 1] = 1  # the second one cosmic
    summaries.images(25, (scores,) * 3, torch.zeros(1, 3, 4, 5, dtype=torch.int64))
    summaries.close()
    result = EventAccumulator(str(tmp_path)).Reload()
    assert result.Scalars("loss")[0].value == 1.5
    tags = result.Tags()
    assert set(tags["scalars"]) == {"loss", "plane0/mIoU"}
    assert set(tags["images"]) == {
        f"{what}/plane_{plane}" for what in ("prediction", "label") for plane in range(3)
    }
    picture = result.Images("prediction/plane_1")[0]
    assert (picture.width, picture.height) == (5, 4)


def test_no_saver_writes_nothing(tmp_path):
    summaries = Summaries(tmp_path / "train", 0, on=False)
    summaries.scalars(0, {"loss": 1.0})
    summaries.close()
    assert not (tmp_path / "train").exists()


def test_the_bar_shows_loss_miou_and_speed():
    drawn = io.StringIO()
    with Bar(2, "train", file=drawn) as bar:
        bar.step({"loss": 1.25, "Average/mIoU": 0.5, "images_per_second": 3.0})
        bar.step({})
    text = drawn.getvalue()
    assert "train:" in text
    assert "loss=1.250, mIoU=0.500, images/s=3.00" in text
