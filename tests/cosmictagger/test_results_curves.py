"""Training curves come from the CSV files as training leaves them."""

import numpy as np
import pytest

from cosmictagger.results import plots

HEADER = "step,loss,Average/Cosmic_IoU,Average/Neutrino_IoU,Average/mIoU"


@pytest.fixture
def folder(tmp_path):
    lines = [f"{step},{3 - step / 50:.5f},0.5,0.1,{step / 200:.5f},3e-4" for step in range(100)]
    (tmp_path / "train_metrics.csv").write_text(
        "\n".join([HEADER + ",learning_rate", *lines]) + "\n"
    )
    (tmp_path / "test_metrics.csv").write_text(f"{HEADER}\n10,2.9,0.4,0.1,0.25\n")
    return tmp_path


def test_columns_by_name(folder):
    runs = plots.read_curves(folder)
    assert set(runs) == {"train", "test"}
    np.testing.assert_allclose(runs["train"]["Average/mIoU"], np.arange(100) / 200)
    assert runs["test"]["step"].tolist() == [10]


def test_a_resumed_run_overrides_the_steps_it_repeats(tmp_path):
    path = tmp_path / "train_metrics.csv"
    path.write_text("step,loss\n0,5\n1,4\n2,3\n1,4.5\n2,3.5\n")
    result = plots.read(path)
    assert result["step"].tolist() == [0, 1, 2]
    assert result["loss"].tolist() == [5, 4.5, 3.5]


def test_a_line_that_a_killed_run_left_unfinished_is_left_out(tmp_path):
    path = tmp_path / "train_metrics.csv"
    path.write_text("step,loss,Average/mIoU\n0,5,0.1\n1,4\n1,4,0.2\n2,3.")
    assert plots.read(path)["step"].tolist() == [0, 1]


def test_one_panel_for_each_kind_of_number(folder):
    figure = plots.draw_curves(plots.read_curves(folder))
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "loss",
        "intersection over union",
        "learning rate",
    ]
    assert len(figure.axes[1].get_lines()) == 3 * 2 + 3  # thin, smooth; test


def test_with_heads_the_loss_of_the_pixels_has_a_panel_of_its_own(tmp_path):
    (tmp_path / "train_metrics.csv").write_text("step,loss,loss/segmentation\n0,300,3\n1,200,2\n")
    total, pixels = plots.draw_curves(plots.read_curves(tmp_path)).axes[:2]
    assert total.get_title(loc="left") == "loss"
    assert pixels.get_title(loc="left") == "loss of the pixels"
    assert pixels.get_lines()[0].get_ydata().tolist() == [3, 2]


def test_nothing_to_draw_makes_no_file(tmp_path):
    assert plots.save_curves(plots.read_curves(tmp_path), tmp_path / "curves.png") is None
    assert not list(tmp_path.iterdir())


def test_the_running_mean_neither_shifts_nor_spreads_what_is_missing():
    values = np.arange(100, dtype=float)
    np.testing.assert_allclose(plots._running_mean(values)[5:-5], values[5:-5])
    values[50] = np.nan
    assert np.isfinite(plots._running_mean(values)).all()
