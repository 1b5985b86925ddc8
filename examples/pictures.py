"""The three pictures of the introduction. Needs matplotlib and scikit-learn, not poptorch.

In: rows, predictions, a photograph. Out: PNG files.
"""

from pathlib import Path

import matplotlib
from matplotlib.figure import Figure
from PIL import Image
from sklearn.metrics import ConfusionMatrixDisplay

# A program on a server has no screen; scikit-learn would otherwise look for one.
matplotlib.use("Agg")

_COLUMNS, _ROWS = 5, 3


def save_samples(dataset, classes: tuple[str, ...], path: Path) -> None:
    """Draw the first fifteen rows of a dataset with the names of their classes."""
    figure = Figure(figsize=(10, 6.6), layout="constrained")
    for index, axes in enumerate(figure.subplots(_ROWS, _COLUMNS).flat):
        axes.set_axis_off()
        if index < len(dataset):
            picture, label = dataset[index]
            axes.imshow(picture[0] / 2 + 0.5, cmap="gray", vmin=0, vmax=1)
            axes.set_title(classes[label])
    figure.savefig(path, dpi=100)


def save_confusion(labels, predictions, classes: tuple[str, ...], path: Path) -> None:
    """Draw how often each class (row) was taken for each other (column)."""
    figure = Figure(figsize=(8.5, 7.5), layout="constrained")
    axes = figure.subplots()
    ConfusionMatrixDisplay.from_predictions(
        labels,
        predictions,
        labels=range(len(classes)),
        display_labels=classes,
        xticks_rotation="vertical",
        cmap="Blues",
        ax=axes,
    )
    axes.set_xlabel("predicted")
    axes.set_ylabel("true")
    figure.savefig(path, dpi=100)


def save_before_after(photo: Image.Image, small: Image.Image, verdict: str, path: Path) -> None:
    """Draw a photograph beside the 28 x 28 pixels that the network sees."""
    figure = Figure(figsize=(8, 5), layout="constrained")
    before, after = figure.subplots(1, 2)
    before.imshow(photo)
    before.set_title(f"Photograph, {photo.width} x {photo.height}")
    after.imshow(small, cmap="gray", vmin=0, vmax=255)
    after.set_title(f"What the network sees: {verdict}")
    for axes in (before, after):
        axes.set_axis_off()
    figure.savefig(path, dpi=100)
