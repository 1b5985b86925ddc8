"""CosmicTagger's numbers once more, in numpy and independent of the application.

Reading and densifying events, the losses with their gradients, and the metrics, each written out
pixel by pixel from the published definition; and the weights that the published test vectors use.
"""

import functools
import math
import os
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from cosmictagger import models
from cosmictagger.config.network import named

REPOSITORY = Path(__file__).parents[2]
SHARED = Path(os.environ.get("ABELE_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
SAMPLE = SHARED / "cosmic_tagging_light.h5"
needs_sample = pytest.mark.skipif(
    not SAMPLE.is_file(),
    reason="cosmic_tagging_light.h5 not found: name its folder in ABELE_SHARED_DATA",
)
ROWS, COLUMNS = 1280, 2048


def event(number, downsample):
    """Image and label of an event, float64 and int64 [3, H, W]."""
    factor = 2**downsample
    shape = (3, ROWS // factor, COLUMNS // factor)
    image, label = np.zeros(shape), np.zeros(shape, np.int64)
    with h5py.File(SAMPLE) as file:
        for producer, add in (("sbndwire", np.add.at), ("sbnd_cosmicseg", np.maximum.at)):
            group = file[f"Data/sparse2d_{producer}_group"]
            first, count = (int(value) for value in group["extents"][number])
            for extent in group["voxel_extents"][first : first + count]:
                start, stop = int(extent["first"]), int(extent["first"]) + int(extent["N"])
                voxels = group["voxels"][start:stop]
                wire, time = np.divmod(voxels["id"].astype(np.int64), ROWS)
                where = (int(extent["ID"]), time // factor, wire // factor)
                values = voxels["value"]
                if producer == "sbndwire":
                    add(image, where, values.astype(np.float64))
                else:
                    add(label, where, values.astype(np.int64))
    return image / factor**2, label


def fill(network):
    """Gives every parameter the values that the test vectors have, by its name."""
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            phase = zlib.crc32(name.encode()) % 1000
            wave = torch.sin(0.7 * torch.arange(parameter.numel(), dtype=torch.float64) + phase)
            wave = wave.reshape(parameter.shape)
            if parameter.ndim > 1:
                wave = wave * math.sqrt(6 / parameter[0].numel())
            elif name.endswith("norm.weight"):
                wave = 1 + 0.1 * wave
            else:
                wave = 0.1 * wave
            parameter.copy_(wave)
    return network


@functools.cache
def labels():
    """Labels of events 0 and 1 at downsample 2, int64 [2, 3, 320, 512]."""
    return np.stack([event(number, 2)[1] for number in (0, 1)])


@functools.cache
def published_logits():
    """The scores of the test vectors for losses and metrics, [plane, B, class, H, W]."""
    plane, image, kind, row, column = np.ogrid[:3, :2, :3, :320, :512]
    wave = 0.37 * (kind + 1) + 0.011 * row + 0.007 * column * (kind + 1)
    wave = 2 * np.sin(wave + 0.5 * plane + 0.9 * image)
    hot = labels().transpose(1, 0, 2, 3)[:, :, None] == kind
    return (wave + 1.5 * hot).astype(np.float32)


@functools.cache
def network_logits():
    """Scores of a small network with fixed weights on events 0 and 1, in training mode."""
    shape = {"n_initial_filters": 4, "depth": 3, "bottleneck_deepest": 8, "blocks_deepest_layer": 1}
    network = fill(models.build(named("a21", **shape), (320, 512)))
    images = np.log1p(np.stack([event(number, 2)[0] for number in (0, 1)]))
    with torch.no_grad():
        return np.stack([x.numpy() for x in network(torch.from_numpy(images).float())])


def loss(scheme, logits, label):
    """Loss, and its gradient for each plane.

    The weights are constants to the gradient, so it is w / sum(w) * (softmax - one-hot).
    """
    total, gradients = 0.0, []
    for plane, scores in enumerate(logits):
        scores, truth = np.asarray(scores, np.float64), label[:, plane]
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        softmax = e / e.sum(axis=1, keepdims=True)
        hot = np.stack([truth == kind for kind in range(3)], axis=1).astype(np.float64)
        right = (softmax * hot).sum(axis=1)
        weights = _weights(scheme, right, truth)
        total += (weights * -np.log(right)).sum() / weights.sum()
        gradients.append((weights / weights.sum())[:, None] * (softmax - hot))
    return total, gradients


def _weights(scheme, right, truth):
    if scheme == "light":
        return np.array([1.0, 1.5, 10.0])[truth]
    if scheme == "even":
        return np.array([0.3333 / ((truth == kind).sum() + 1) for kind in range(3)])[truth]
    if scheme == "focal":
        return (1 - right) ** 2 / 3
    return np.ones_like(right)


def metrics(predicted, label):
    """Metrics of a batch as a dictionary, image by image with masks."""
    values = {}
    for plane in range(3):
        rows = [
            _of_image(predicted[image, plane], label[image, plane]) for image in range(len(label))
        ]
        for name in rows[0]:
            there = [row[name] for row in rows if not math.isnan(row[name])]
            values[f"plane{plane}/{name}"] = sum(there) / len(there) if there else math.nan
    return values


def _of_image(predicted, label):
    def union(kind):
        either = ((predicted == kind) | (label == kind)).sum()
        return ((predicted == kind) & (label == kind)).sum() / either if either else 1.0

    labelled = label != 0
    return {
        "Total_Accuracy": (predicted == label).mean(),
        "Cosmic_IoU": union(1),
        "Neutrino_IoU": union(2),
        "Non_Bkg_Accuracy": (predicted == label)[labelled].mean() if labelled.any() else math.nan,
        "mIoU": (union(1) + union(2)) / 2,
    }
