"""Training curves from the CSV files that a training run appends to."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from abele.storage.atomic import replacing
from cosmictagger.errors import DataError

Curves = Mapping[str, NDArray[np.float64]]

_PANELS = (
    ("loss", {"loss": "loss"}),
    (
        "intersection over union",
        {
            "Average/mIoU": "mIoU",
            "Average/Cosmic_IoU": "cosmic",
            "Average/Neutrino_IoU": "neutrino",
        },
    ),
    ("learning rate", {"learning_rate": "learning rate"}),
)
_COLORS = {
    "Average/mIoU": "#000000",
    "Average/Cosmic_IoU": "#0072B2",
    "Average/Neutrino_IoU": "#D55E00",
}
_SMOOTHING = 0.05  # of the steps: the width of the running mean


def read(path: Path) -> Curves:
    """Return columns of a metrics file by name, float64 ``[steps]`` in the order of their steps.

    A resumed run may have repeated steps after its last checkpoint: the last line of a step counts.
    """
    with path.open(newline="", encoding="utf-8") as file:
        lines = list(csv.reader(file))
    if not lines or not lines[0] or lines[0][0] != "step":
        raise DataError(f"{path}: not a metrics file; its first line must start with 'step'.")
    header, *body = lines
    rows: dict[float, list[float]] = {}
    for number, line in enumerate(body, start=2):
        if len(line) < len(header):
            continue
        try:
            values = [float(cell) if cell else np.nan for cell in line]
        except ValueError as error:
            raise DataError(f"{path}, line {number}: {error}.") from None
        if len(values) != len(header):
            raise DataError(
                f"{path}, line {number}: {len(values)} cells, but the header has {len(header)}."
            )
        rows[values[0]] = values
    table = np.array([rows[step] for step in sorted(rows)], np.float64).reshape(-1, len(header))
    return dict(zip(header, table.T, strict=True))


def read_folder(folder: Path) -> dict[str, Curves]:
    """``train_metrics.csv`` and ``test_metrics.csv`` of a run, if there and not empty."""
    by_file: dict[str, Curves] = {}
    for name in ("train", "test"):
        path = folder / f"{name}_metrics.csv"
        if path.is_file() and len((curves := read(path))["step"]):
            by_file[name] = curves
    return by_file


def draw(runs: Mapping[str, Curves]) -> Figure | None:
    """Loss, IoU and learning rate against the step; None if no run has any of them."""
    panels = [
        (title, names)
        for title, names in _PANELS
        if any(key in curves for curves in runs.values() for key in names)
    ]
    if not panels:
        return None
    figure = Figure(figsize=(5.2 * len(panels), 4.0), layout="constrained", facecolor="white")
    for axes, (title, names) in zip(
        np.atleast_1d(np.asarray(figure.subplots(1, len(panels)))), panels, strict=True
    ):
        _draw_panel(axes, title, names, runs)
    return figure


def save(runs: Mapping[str, Curves], path: Path) -> Path | None:
    """Draw the curves into a PNG file; None, and no file, if there is nothing to draw."""
    figure = draw(runs)
    if figure is None:
        return None
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=130)
    return path


def _draw_panel(
    axes: Axes, title: str, names: Mapping[str, str], runs: Mapping[str, Curves]
) -> None:
    for key, label in names.items():
        color = _COLORS.get(key, "#0072B2")
        if (train := runs.get("train", {})) and key in train:
            _draw_train(axes, train["step"], train[key], color, label, key == "learning_rate")
        if (test := runs.get("test", {})) and key in test:
            axes.plot(
                test["step"],
                test[key],
                "o",
                markersize=4.5,
                markerfacecolor="white",
                markeredgecolor=color,
                label=None if key in train else label,
            )
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel("training step")
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    if "learning_rate" in names:
        axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    else:
        axes.margins(y=0.18)
        axes.set_ylim(bottom=0)
        handles, labels = axes.get_legend_handles_labels()
        if "test" in runs:
            handles.append(Line2D([], [], marker="o", linestyle="", mfc="white", mec="#5b6670"))
            labels.append("points: test")
        axes.legend(handles, labels, frameon=False, fontsize=9, ncols=2)


def _draw_train(
    axes: Axes,
    steps: Sequence[float] | NDArray,
    values: NDArray,
    color: str,
    label: str,
    exact: bool,
) -> None:
    if exact:
        axes.plot(steps, values, color=color, linewidth=1.6)
        return
    axes.plot(steps, values, color=color, linewidth=0.7, alpha=0.25)
    axes.plot(steps, _running_mean(values), color=color, linewidth=1.8, label=label)


def _running_mean(values: NDArray) -> NDArray:
    """Return the mean over a centred window that gets narrower at the ends; NaN does not spread."""
    reach = round(len(values) * _SMOOTHING / 2)
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.where(finite, values, 0).cumsum()])
    counts = np.concatenate([[0], finite.cumsum()])
    index = np.arange(len(values))
    first, last = np.maximum(index - reach, 0), np.minimum(index + reach + 1, len(values))
    number = counts[last] - counts[first]
    return np.where(number > 0, (sums[last] - sums[first]) / np.maximum(number, 1), np.nan)
