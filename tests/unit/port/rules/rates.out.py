"""Learning rates that are written by hand, and checkpoints of weights."""

import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        loss = nn.functional.mse_loss(self.model(x), y)
        return poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
loader = poptorch.DataLoader(opts, TensorDataset(torch.randn(80, 4), torch.randn(80, 3)), batch_size=8)
model = nn.Linear(4, 3)
torch.save(model.state_dict(), "start.pt")
model.load_state_dict(torch.load("start.pt"))
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)


def slow_down(optimizer, epoch):
    for group in optimizer.param_groups:
        group["lr"] = 0.5 * 0.1**epoch
    training_model.setOptimizer(optimizer)


for epoch in range(3):
    slow_down(optimizer, epoch)
    for x, y in loader:
        loss = training_model(x, y)
        print(loss.item(), optimizer.param_groups[0]["lr"])
    optimizer.param_groups[0]["lr"] *= 2
    training_model.setOptimizer(optimizer)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "end.pt")
    model.load_state_dict(torch.load("end.pt")["model"])
    if training_model.isCompiled():
        training_model.copyWeightsToDevice()
