"""Trains one network in float32, in half, and in half with stochastic rounding.

An update far smaller than the distance between two half numbers is lost if it is rounded to
nearest, but not on average if it is rounded at random.
"""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from torch import nn

import poptorch

HALF = torch.float16
RUNS = {"float32": (torch.float32, False), "nearest": (HALF, False), "stochastic": (HALF, True)}


class Digits(nn.Sequential):
    """Dense layers in the type of their weights."""

    def forward(self, pictures: torch.Tensor, labels: torch.Tensor):
        """Loss and correctness of each row, float32."""
        scores = super().forward(pictures).float()
        return nn.functional.cross_entropy(scores, labels), (scores.argmax(1) == labels).float()


def train(kind: torch.dtype, stochastic: bool, epochs: int) -> list[list[float]]:
    """Return the mean loss and accuracy, one of each per epoch."""
    torch.manual_seed(1)
    model = Digits(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10)).to(kind)
    pictures, labels = map(torch.from_numpy, load_digits(return_X_y=True))
    options = poptorch.Options().randomSeed(1).deviceIterations(112)
    options.outputMode(poptorch.OutputMode.All).showCompilationProgressBar(False)
    options.Precision.enableStochasticRounding(stochastic)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.001, loss_scaling=256.0)
    wrapped = poptorch.trainingModel(model, options, optimizer)
    batch = (pictures[:1792] / 16).to(kind), labels[:1792]  # 112 batches of 16 rows
    return [[value.mean().item() for value in wrapped(*batch)] for _ in range(epochs)]


def main(argv=None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=30)
    epochs = parser.parse_args(argv).epochs
    axes = (figure := Figure(figsize=(7, 4.5))).subplots()
    for style, (name, run) in zip(("-", "-", "--"), RUNS.items(), strict=True):
        curve = train(*run, epochs)
        print(f"{name:11} loss {curve[-1][0]:.4f}  accuracy {100 * curve[-1][1]:.1f} %")
        axes.plot(range(1, epochs + 1), [loss for loss, _ in curve], style, label=name)
    axes.set(xlabel="epoch", ylabel="mean training loss")
    axes.legend()
    Path("out").mkdir(exist_ok=True)
    figure.savefig("out/half_precision.png", dpi=100)


if __name__ == "__main__":
    main()
