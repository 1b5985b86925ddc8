"""Several processes train together, each with its share of the data."""

import os
import tempfile

import popdist
import poptorch
import popdist.poptorch
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

if popdist.isPopdistEnvSet():
    opts = popdist.poptorch.Options()
    opts.randomSeed(42)
else:
    opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        loss = torch.nn.functional.mse_loss(self.model(x), y)
        return poptorch.identity_loss(loss, reduction="none")


def main(file):
    os.environ["SEED_OF_DATA"] = "1"
    if popdist.isPopdistEnvSet():
        popdist.init()
    rank = popdist.getInstanceIndex()
    torch.manual_seed(rank)
    data = TensorDataset(torch.randn(160, 4), torch.randn(160, 3))
    loader = poptorch.DataLoader(opts, data, batch_size=8, shuffle=False)
    model = torch.nn.Linear(4, 3)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    training_model = poptorch.trainingModel(
        ModelWithLoss(model), options=opts, optimizer=optimizer
    )
    for epoch in range(2):
        for x, y in loader:
            loss = training_model(x, y)
            if rank == 0:
                print(loss.item())
        print("epoch", epoch)
    torch.save(model.state_dict(), "model.pt")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        main(f"file://{folder}/store")
