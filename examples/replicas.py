"""Four replicas that share inputs but not weights: python examples/replicas.py.

Groups of replicas can receive the same rows (inputReplicaGrouping), and a parameter can have one
value per group (replicaGrouping). Here one program trains four models side by side that differ only
in their first weights. Each ends as if it had been trained alone.
"""

import argparse

import torch

import poptorch

MODELS, ROWS, UPDATES = 4, 16, 50


class Line(torch.nn.Module):
    """Least squares; outside of forward the weight of an ensemble has a leading dimension."""

    def __init__(self, weight: torch.Tensor, share: int = 1):
        super().__init__()
        self.weight, self.share = torch.nn.Parameter(weight.clone()), share

    def forward(self, x, y):
        """Return the loss, marked for training."""
        loss = torch.nn.functional.mse_loss(x @ self.weight, y)
        # The mean divides by all replicas, also where one of them is a group of its own.
        return loss, poptorch.identity_loss(loss * self.share, reduction="sum")


def train(model: Line, replicas: int, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Train by one program; the last loss of each replica."""
    options = poptorch.Options().replicationFactor(replicas).showCompilationProgressBar(False)
    options.inputReplicaGrouping(replicas, poptorch.CommGroupType.Consecutive)
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    if replicas > 1:
        training.weight.replicaGrouping(
            poptorch.CommGroupType.NoGrouping, 1, poptorch.VariableRetrievalMode.OnePerGroup
        )
    return [training(x, y)[0] for _ in range(UPDATES)][-1].reshape(-1)


def main() -> None:
    torch.manual_seed(0)
    x, start = torch.randn(ROWS, 3), torch.randn(MODELS, 3, 1)
    y = x @ torch.tensor([[1.0], [-2.0], [0.5]])
    joined = Line(start, share=MODELS)
    losses = train(joined, MODELS, x, y)
    print("replica | start norm | loss    | trained alone")
    for replica, loss in enumerate(losses):
        train(alone := Line(start[replica]), 1, x, y)
        same = torch.allclose(alone.weight, joined.weight[replica], rtol=1e-5)
        comparison = "equal" if same else "differs"
        print(f"{replica:7} | {start[replica].norm():10.3f} | {loss:.5f} | {comparison}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
