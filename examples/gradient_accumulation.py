"""Eight rows per update, several ways, equal weights: python examples/gradient_accumulation.py.

Rows at once, one after the other (gradient accumulation), or side by side (replicas): with a
loss that is a mean, an update is the same, because gradients are averaged.
"""

import argparse

import torch

import poptorch

ROWS, UPDATES = 8, 5
WAYS = [(8, 1, 1), (2, 4, 1), (2, 1, 4), (2, 2, 2)]  # rows at once, accumulation, replicas


class Classifier(torch.nn.Module):
    """Two dense layers; the loss is computed in forward."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)
        )

    def forward(self, x, labels):
        """Return the loss of a micro-batch."""
        return torch.nn.functional.cross_entropy(self.layers(x), labels)


def train(accumulation: int, replicas: int) -> torch.Tensor:
    """Make the same updates from the same rows and return all weights as one vector."""
    torch.manual_seed(0)
    model = Classifier()
    options = poptorch.Options().replicationFactor(replicas).showCompilationProgressBar(False)
    options.Training.gradientAccumulation(accumulation)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    training = poptorch.trainingModel(model, options, optimizer)
    for _ in range(UPDATES):
        training(torch.randn(ROWS, 16), torch.randint(0, 4, (ROWS,)))
    return torch.cat([value.detach().flatten() for value in model.parameters()])


def main() -> None:
    print("rows at once | accumulation | replicas | norm of weights | distance to the first")
    first = None
    for rows, accumulation, replicas in WAYS:
        weights = train(accumulation, replicas)
        first = weights if first is None else first
        distance = (weights - first).norm() / first.norm()
        print(
            f"{rows:12} | {accumulation:12} | {replicas:8} | {weights.norm():15.6f} | "
            f"{'equal' if distance < 1e-6 else format(distance, '.1e')}"
        )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
