"""Plots of a report: event displays and training curves."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import FuncNorm, LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.patheffects import withStroke
from numpy.typing import NDArray

from abele.storage.atomic import replacing
from cosmictagger.measures import NEUTRINO, PLANES
from cosmictagger.results.tally import EventRecord, PlaneView

CLASS_NAMES = ("background", "cosmic", "neutrino")
CLASS_COLORS = ("#8c8c8c", "#0072B2", "#D55E00")
PLANE_NAMES = ("plane 0 · induction", "plane 1 · induction", "plane 2 · collection")
SCORE_MAP = LinearSegmentedColormap.from_list(
    "neutrino_score", ["#d4dbe3", "#E69F00", "#D55E00", "#4a1200"]
)
# Fixed: finding a layout that fits would take as long as the drawing.
_GRID = {"left": 0.07, "right": 0.925, "bottom": 0.1, "top": 0.93, "wspace": 0.05, "hspace": 0.12}
_NOTE = {"loc": "right", "fontsize": 9, "color": "#444444", "pad": 3}
_BARS = (0.945, 0.54, 0.012, 0.36), (0.945, 0.12, 0.012, 0.36)
_DEPTHS = LinearSegmentedColormap.from_list("depth", ["#b8b8b8", "#303030"])
_TICKS = (0, 0.2, 0.5, *(digit * 10**power for power in range(5) for digit in (1, 2, 5)))
_INSETS = (0.38, 0.31, 0.24)  # of a panel's width and height; the first that covers no track
_MARKS = (
    {"marker": "o", "ms": 11, "mfc": "none", "mec": "black", "mew": 1.6, "ls": ""},
    {"marker": "x", "ms": 8, "mec": "black", "mew": 1.8, "ls": ""},
)
_PANEL_PIXELS = 400  # across; finer images are thinned, keeping what matters most


def save_display(event: EventRecord, path: Path) -> Path:
    """Draw an event into a PNG file, written atomically.

    Args:
        event: with or without labels; without, the column of the truth shows the charge.
        path: a PNG file.
    """
    with replacing(path) as file:
        draw_display(event).savefig(file, format="png", dpi=130)
    return path


def draw_display(event: EventRecord) -> Figure:
    """Draw an event as a figure of three rows (planes) by three columns."""
    figure = Figure(figsize=(15, 10.6), facecolor="white")
    axes = figure.subplots(PLANES, 3, sharex=True, sharey=True, gridspec_kw=_GRID)
    views = [event.plane(index) for index in range(PLANES)]
    charge = np.concatenate([view.image[view.image > 0] for view in views])
    top = float(np.percentile(charge, 98)) if len(charge) else 1.0
    for index, (row, view) in enumerate(zip(axes, views, strict=True)):
        _draw_plane(row, view, event, index, top)
    first = "Truth" if event.has_label else "Charge"
    for panel, name in zip(axes[0], (first, "Prediction", "Neutrino score"), strict=True):
        panel.set_title(name, fontsize=13, fontweight="bold", loc="left")
    for panel in axes[-1]:
        panel.set_xlabel("wire [pixel]", fontsize=10)
    true, taken = event.whole.names()
    if taken:
        share = max(event.whole.scores or ())
        words = f"{true + ', ' if true else ''}taken for {taken} ({100 * share:.0f} %)"
        figure.text(0.5, 0.961, words, ha="center", va="center", fontsize=11)
    run, subrun, number = event.event_id
    title = f"Run {run}, subrun {subrun}, event {number} (entry {event.entry})"
    names = {"mIoU": "mIoU", "Cosmic_IoU": "cosmic IoU", "Neutrino_IoU": "neutrino IoU"}
    title = "     ".join([title, *_scores(event, "Average", names)])
    figure.suptitle(title, fontsize=15, fontweight="bold", y=0.993 if taken else 0.985)
    _legend(figure, event, top)
    return figure


def _draw_plane(row: Any, view: PlaneView, event: EventRecord, index: int, top: float) -> None:
    factor = 2**event.downsample
    truth = np.zeros_like(view.prediction) if view.label is None else view.label
    score = np.where((view.image != 0) | (view.prediction == NEUTRINO), view.score, np.nan)
    pictures = (
        _colour(truth, view.image, top),
        _colour(view.prediction, view.image, top),
        _colour_score(score),
    )
    box = _neutrino_box(view)
    place = _empty_place(view, box) if box is not None else None
    for panel, picture in zip(row, pictures, strict=True):
        _show(panel, _thin(picture), event.size, factor)
        drawn = [panel]
        if box is not None and place is not None:
            drawn.append(_inset(panel, picture, box, place, event.size, factor))
        for axes in drawn:
            _mark(axes, event, index, true_alone=panel is row[0])
    row[0].set_ylabel("drift time [pixel]", fontsize=10)
    style = {"rotation": 90, "ha": "center", "va": "center", "fontsize": 13, "weight": "bold"}
    row[0].text(-0.19, 0.5, PLANE_NAMES[index], transform=row[0].transAxes, **style)
    ious = _scores(event, f"plane{index}", {"Cosmic_IoU": "cosmic", "Neutrino_IoU": "neutrino"})
    row[1].set_title("IoU: " + ", ".join(ious) if ious else "", **_NOTE)
    if view.label is not None:
        count = int((view.label == NEUTRINO).sum())
        row[0].set_title(f"{count:,} neutrino pixels".replace(",", "\u202f"), **_NOTE)


def _mark(axes: Axes, event: EventRecord, index: int, *, true_alone: bool) -> None:
    """Mark the vertex of a plane where it is, and unless ``true_alone`` where it was found."""
    edge = [withStroke(linewidth=3.4, foreground="white")]
    size = np.array(event.size) * 2**event.downsample
    for places, style in zip((event.whole.true_vertex, event.whole.vertex), _MARKS, strict=True):
        place = None if places is None else places[index]
        if place is not None and not (true_alone and style is _MARKS[1]):
            row, column = np.array(place) * size
            more: dict[str, Any] = {"path_effects": edge, "zorder": 5}
            axes.plot(column, row, scalex=False, scaley=False, **style, **more)


def _scores(event: EventRecord, place: str, names: Mapping[str, str]) -> list[str]:
    keys = {f"{place}/{key}": name for key, name in names.items()}
    return [f"{n} {event.metrics[key]:.3f}" for key, n in keys.items() if key in event.metrics]


def _colour(classes: NDArray, image: NDArray, top: float) -> NDArray[np.float32]:
    """RGB and rank, float32 ``[H, W, 4]``: class as hue, charge as depth, rank 0 where empty.

    Args:
        classes: of each pixel.
        image: charge.
        top: the charge from which on depth is full.
    """
    palette = np.array([to_rgb(colour) for colour in CLASS_COLORS], np.float32)
    # Background is noise: half as deep, so that it does not compete with the classes.
    charge = np.clip(np.log1p(np.maximum(image, 0)) / np.log1p(top), 0, 1)
    depth = (0.55 + 0.45 * charge) * np.where(classes == 0, 0.6, 1.0)
    rgb = 1 - depth[..., None] * (1 - palette[classes])
    seen = (image != 0) | (classes != 0)
    rank = np.where(seen, 1 + classes.astype(np.float32), 0)
    return np.concatenate([rgb, rank[..., None]], axis=-1).astype(np.float32)


def _colour_score(score: NDArray) -> NDArray[np.float32]:
    rgb = SCORE_MAP(np.nan_to_num(score))[..., :3]
    rank = np.where(np.isnan(score), 0, 1 + np.nan_to_num(score))
    return np.concatenate([rgb, rank[..., None]], axis=-1).astype(np.float32)


def _thin(picture: NDArray) -> NDArray:
    """Downsample a picture: keep the pixel of highest rank in each cell, so no track is lost."""
    height, width, _ = picture.shape
    cell = max(1, round(width / _PANEL_PIXELS))
    height, width = height // cell, width // cell
    cells = picture[: height * cell, : width * cell].reshape(height, cell, width, cell, 4)
    cells = cells.transpose(0, 2, 1, 3, 4).reshape(height, width, cell * cell, 4)
    best = cells[..., 3].argmax(axis=2)
    return np.take_along_axis(cells, best[:, :, None, None], axis=2)[:, :, 0]


def _show(panel: Axes, picture: NDArray, size: tuple[int, int], factor: int) -> None:
    rgba = np.concatenate([picture[..., :3], (picture[..., 3:] > 0)], axis=-1)
    extent = (0, size[1] * factor, 0, size[0] * factor)
    panel.imshow(rgba, origin="lower", extent=extent, interpolation="nearest", aspect="auto")
    panel.tick_params(labelsize=9)


def _neutrino_box(view: PlaneView) -> tuple[int, int, int, int] | None:
    """Return row and column bounds around the neutrino; None without neutrino or if it fills all.

    The truth decides, where there is one: a network early in training predicts neutrinos all over
    the frame. The box is the smallest that holds most of it, not all: neutrons leave specks far
    from the vertex.
    """
    mask = view.prediction == NEUTRINO
    if view.label is not None and (view.label == NEUTRINO).any():
        mask = view.label == NEUTRINO
    total = int(mask.sum())
    if not total:
        return None
    for scale in (0.1, 0.14, 0.19):
        inside, box = _fullest_window(mask, scale)
        if inside >= 0.65 * total:
            return box
    return None


def _fullest_window(mask: NDArray, scale: float) -> tuple[int, tuple[int, int, int, int]]:
    """Return pixel count and bounds of the fullest window of ``scale`` times the frame."""
    height, width = mask.shape
    high, wide = max(1, round(scale * height)), max(1, round(scale * width))
    sums = np.pad(mask.astype(np.int32).cumsum(0).cumsum(1), ((1, 0), (1, 0)))
    window_counts = (
        sums[high:, wide:] - sums[:-high, wide:] - sums[high:, :-wide] + sums[:-high, :-wide]
    )
    # Many windows hold the same pixels; their middle leaves an even margin.
    row, column = np.median(np.argwhere(window_counts == window_counts.max()), axis=0).astype(int)
    return int(window_counts[row, column]), (row, row + high, column, column + wide)


def _empty_place(
    view: PlaneView, box: tuple[int, int, int, int]
) -> tuple[float, float, float] | None:
    """Return the inset's lower left corner and size, in fractions of the panel.

    It is the largest inset that covers no pixel of a class, and where it covers least noise; None
    if there is none.
    """
    height, width = view.image.shape
    classes = view.prediction if view.label is None else view.label
    weight = (view.image != 0) + 1e6 * (classes != 0)
    weight[box[0] : box[1], box[2] : box[3]] = 1e6

    def hidden(place: tuple[float, float, float]) -> float:
        x, y, size = place
        rows = slice(int(y * height), math.ceil((y + size) * height))
        return float(weight[rows, int(x * width) : math.ceil((x + size) * width)].sum())

    for size in _INSETS:
        steps = np.linspace(0.02, 0.98 - size, 16).tolist()
        best = min(((x, y, size) for x in steps for y in steps), key=hidden)
        if hidden(best) < 1e6:
            return best
    return None


def _inset(
    panel: Axes,
    picture: NDArray,
    box: tuple[int, int, int, int],
    place: tuple[float, float, float],
    size: tuple[int, int],
    factor: int,
) -> Axes:
    first_row, last_row, first_column, last_column = box
    inset = panel.inset_axes((*place, place[2]), zorder=3)
    _show(inset, picture, size, factor)
    inset.set_xlim(first_column * factor, last_column * factor)
    inset.set_ylim(first_row * factor, last_row * factor)
    inset.set_xticks([])
    inset.set_yticks([])
    for spine in inset.spines.values():
        spine.set_color("#333333")
    wide, high = last_column - first_column, last_row - first_row
    bounds = (first_column * factor, first_row * factor, wide * factor, high * factor)
    panel.indicate_inset(bounds, edgecolor="#333333", alpha=1, linewidth=0.9)
    white = {"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1}
    style = {"ha": "right", "va": "top", "fontsize": 8, "color": "#333333", "bbox": white}
    inset.text(0.98, 0.96, f"x {size[1] * place[2] / wide:.1f}", transform=inset.transAxes, **style)
    return inset


def _legend(figure: Figure, event: EventRecord, top: float) -> None:
    charge = ScalarMappable(FuncNorm((np.log1p, np.expm1), 0, top), _DEPTHS)
    for place, colours, name, ticks in (
        (_BARS[0], ScalarMappable(cmap=SCORE_MAP), "probability of neutrino", None),
        (_BARS[1], charge, "charge, as the network gets it", [t for t in _TICKS if t <= top]),
    ):
        bar = figure.colorbar(colours, cax=figure.add_axes(place), ticks=ticks, format="%g")
        bar.set_label(name, fontsize=10)
        bar.ax.tick_params(labelsize=9)
    names = ("background (charge without a class)", *CLASS_NAMES[1:])
    patches: list[Any] = [Patch(color=c, label=n) for n, c in zip(names, CLASS_COLORS, strict=True)]
    patches.append(Rectangle((0, 0), 1, 1, fill=False, edgecolor="#333333", label="magnified"))
    known = event.whole.true_vertex, event.whole.vertex
    for places, name, style in zip(known, ("true vertex", "vertex found"), _MARKS, strict=True):
        if places is not None and any(places):
            patches.append(Line2D([], [], label=name, **style))  # type: ignore[arg-type]
    factor = 2**event.downsample
    cell = "each drawn as it is" if factor == 1 else f"run in cells of {factor} x {factor}"
    figure.legend(
        handles=patches,
        loc="lower center",
        ncols=len(patches),
        frameon=False,
        fontsize=10,
        title=f"darker: more charge     axes: pixels of the file, {cell}",
        title_fontsize=10,
    )


Curves = Mapping[str, NDArray[np.float64]]

_LINES = {
    "loss": ("loss", "#0072B2"),
    "loss/segmentation": ("loss", "#0072B2"),
    "Average/mIoU": ("mIoU", "#000000"),
    "Average/Cosmic_IoU": ("cosmic", CLASS_COLORS[1]),
    "Average/Neutrino_IoU": ("neutrino", CLASS_COLORS[2]),
    "Average/EventLabel": ("event class", "#0072B2"),
    "Average/VertexDetection": ("box of the vertex", "#D55E00"),
    "Average/VertexResolution": ("distance", "#0072B2"),
    "learning_rate": ("", "#0072B2"),
}
# The loss of a vertex is so large at first that the total hides the pixels' part.
_PANELS = {"loss": ["loss"], "loss of the pixels": ["loss/segmentation"]}
_PANELS["intersection over union"] = [key for key in _LINES if "IoU" in key]
_PANELS["share of events that are right"] = ["Average/EventLabel", "Average/VertexDetection"]
_PANELS["distance of the vertex [units of the file]"] = ["Average/VertexResolution"]
_PANELS["learning rate"] = ["learning_rate"]
_SMOOTHING = 0.05  # of the steps: the width of the running mean


def read(path: Path) -> Curves:
    """Read columns of a metrics file by name, float64 ``[steps]`` in step order.

    A resumed run may have repeated steps after its last checkpoint: the last line of a step counts.
    """
    with path.open(newline="", encoding="utf-8") as file:
        header, *body = csv.reader(file)
    # A run that was killed leaves a line unfinished.
    lines = [line for line in body if len(line) == len(header)]
    rows = {int(line[0]): [float(cell or "nan") for cell in line] for line in lines}
    table = np.array([rows[step] for step in sorted(rows)], np.float64).reshape(-1, len(header))
    return dict(zip(header, table.T, strict=True))


def read_curves(folder: Path) -> dict[str, Curves]:
    """Read ``train_metrics.csv`` and ``test_metrics.csv`` of a run, if present and not empty."""
    by_file: dict[str, Curves] = {}
    for name in ("train", "test"):
        path = folder / f"{name}_metrics.csv"
        if path.is_file() and path.stat().st_size and len((curves := read(path))["step"]):
            by_file[name] = curves
    return by_file


def draw_curves(runs: Mapping[str, Curves]) -> Figure | None:
    """Draw loss, IoU and learning rate against the step; None without data."""
    panels = [
        (title, names)
        for title, names in _PANELS.items()
        if any(key in curves for curves in runs.values() for key in names)
    ]
    if not panels:
        return None
    wide = min(3, len(panels))
    high = math.ceil(len(panels) / wide)
    figure = Figure(figsize=(5.2 * wide, 4.0 * high), layout="constrained", facecolor="white")
    places = np.asarray(figure.subplots(high, wide, squeeze=False)).flat
    for axes in places[len(panels) :]:
        axes.set_axis_off()
    for axes, (title, names) in zip(places, panels, strict=False):
        _draw_panel(axes, title, names, runs)
    return figure


def save_curves(runs: Mapping[str, Curves], path: Path) -> Path | None:
    """Draw the training curves into a PNG file; None, and no file, without data."""
    figure = draw_curves(runs)
    if figure is None:
        return None
    with replacing(path) as file:
        figure.savefig(file, format="png", dpi=130)
    return path


def _draw_panel(axes: Axes, title: str, names: Sequence[str], runs: Mapping[str, Curves]) -> None:
    for key in names:
        label, color = _LINES[key]
        if (train := runs.get("train", {})) and key in train:
            exact = key == "learning_rate"
            width, alpha = (1.6, 1) if exact else (0.7, 0.25)
            axes.plot(train["step"], train[key], color=color, linewidth=width, alpha=alpha)
            if not exact:
                smooth = _running_mean(train[key])
                axes.plot(train["step"], smooth, color=color, linewidth=1.8, label=label)
        if (test := runs.get("test", {})) and key in test:
            shown = None if key in train else label
            axes.plot(test["step"], test[key], "o", ms=4.5, mfc="white", mec=color, label=shown)
    axes.set_title(title, loc="left", fontweight="bold")
    axes.set_xlabel("training step")
    axes.grid(color="#e6e6e6", linewidth=0.8)
    axes.spines[["top", "right"]].set_visible(False)
    if "learning_rate" in names:
        axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0))
    else:
        top = axes.dataLim.y1
        axes.set_ylim(0, 1.18 * top if 0 < top < math.inf else 1)  # room for the legend
        handles, labels = axes.get_legend_handles_labels()
        if "test" in runs:
            handles.append(Line2D([], [], marker="o", linestyle="", mfc="white", mec="#5b6670"))
            labels.append("points: validation")
        axes.legend(handles, labels, frameon=False, fontsize=9, ncols=2)


def _running_mean(values: NDArray) -> NDArray:
    """Return the mean over a centred window, narrower at the ends; NaN does not spread."""
    reach = round(len(values) * _SMOOTHING / 2)
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.where(finite, values, 0).cumsum()])
    counts = np.concatenate([[0], finite.cumsum()])
    index = np.arange(len(values))
    first, last = np.maximum(index - reach, 0), np.minimum(index + reach + 1, len(values))
    number = counts[last] - counts[first]
    return np.where(number > 0, (sums[last] - sums[first]) / np.maximum(number, 1), np.nan)
