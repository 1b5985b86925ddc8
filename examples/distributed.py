"""Four replicas in one process, or spread over several instances: the weights are the same.

One process:    python examples/distributed.py
Two instances:  poprun --num-instances 2 --num-replicas 4 python examples/distributed.py

Every update sees all rows, so it does not matter which instance reads which of them. The instances
end with equal bits. One process adds in another order, so its last digits may differ.
"""

import argparse
import hashlib

import torch

import popdist
import popdist.poptorch
import poptorch

REPLICAS, ROWS, UPDATES = 4, 64, 20


class Regression(torch.nn.Linear):
    """One layer with a squared error."""

    def forward(self, x, y):  # noqa: D102
        return torch.nn.functional.mse_loss(super().forward(x), y)


def place() -> tuple[poptorch.Options, str]:
    """Return the options of this process, and which replicas it holds."""
    if not popdist.isPopdistEnvSet():
        return poptorch.Options().replicationFactor(REPLICAS), f"replicas 0 to {REPLICAS - 1}"
    popdist.init()
    first, count = popdist.getReplicaIndexOffset(), popdist.getNumLocalReplicas()
    return popdist.poptorch.Options(), f"replicas {first} to {first + count - 1}"


def main() -> None:
    torch.set_num_threads(1)
    options, replicas = place()
    options.randomSeed(42).showCompilationProgressBar(False)
    data = torch.utils.data.TensorDataset(torch.randn(ROWS, 8), torch.randn(ROWS, 1))
    loader = poptorch.DataLoader(options, data, batch_size=ROWS // REPLICAS, shuffle=True)
    model = Regression(8, 1)
    training = poptorch.trainingModel(model, options, torch.optim.SGD(model.parameters(), lr=0.1))
    seen = 0
    for _ in range(UPDATES):
        for x, y in loader:
            training(x, y)
            seen += len(x)
    bits = b"".join(value.detach().numpy().tobytes() for value in model.parameters())
    print(
        f"instance {popdist.getInstanceIndex()} of {popdist.getNumInstances()}: {replicas}, "
        f"{seen // UPDATES} of {ROWS} rows, {training.exchanges.calls} exchanges, "
        f"weights {hashlib.sha256(bits).hexdigest()[:12]} ({model.weight.sum():.5f})"
    )


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
