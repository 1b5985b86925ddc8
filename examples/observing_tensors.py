"""Watch the gradients of a small network while it trains: a table, and histograms in a PNG file."""

import argparse
from pathlib import Path

import torch
from matplotlib.figure import Figure

import poptorch

STEPS, EVERY, LAYERS = 60, 10, ("fc1", "fc2")


class Classifier(torch.nn.Module):
    """Two dense layers for four classes."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(16, 64)
        self.fc2 = torch.nn.Linear(64, 4)

    def forward(self, x, labels):
        """Cross entropy of the scores, [B, 4]."""
        return torch.nn.functional.cross_entropy(self.fc2(self.fc1(x).relu()), labels)


def train() -> dict[str, list[torch.Tensor]]:
    """Return gradients of each layer's weight, of every tenth step."""
    torch.manual_seed(0)
    opts = poptorch.Options()
    for layer in LAYERS:
        opts.anchorTensor(layer, f"Gradient___{layer}.weight")
    model = Classifier()
    training = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.2))
    x, seen = torch.randn(256, 16), {layer: [] for layer in LAYERS}
    print("step   loss   " + "   ".join(f"|gradient of {layer}|" for layer in LAYERS))
    for step in range(STEPS):
        loss = training(x, x[:, :4].argmax(dim=1))
        if step % EVERY == 0:
            for layer, gradients in seen.items():
                gradients.append(training.getAnchoredTensor(layer))
            print(f"{step:4}  {loss:.3f}", *(f"{each[-1].norm():19.4f}" for each in seen.values()))
    return seen


def draw(seen: dict[str, list[torch.Tensor]], path: str) -> None:
    Path(path).parent.mkdir(exist_ok=True)
    figure = Figure(figsize=(11, 4), layout="constrained")
    for axes, (layer, gradients) in zip(figure.subplots(1, 2), seen.items(), strict=True):
        reach = 1.05 * gradients[0].abs().max().item()
        style = {"bins": 40, "range": (-reach, reach), "alpha": 0.6}
        for name, values in (("first step", gradients[0]), ("last", gradients[-1])):
            axes.hist(values.flatten().tolist(), label=name, **style)
        axes.set(title=f"Gradient of {layer}.weight", xlabel="value", ylabel="how many")
        axes.legend()
    figure.savefig(path)


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    draw(train(), "out/observing_tensors.png")
