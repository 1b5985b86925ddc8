"""Training goes on from a checkpoint: weights, averages of batch norm and state of the optimizer."""

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
        loss = criterion(self.model(x), y)
        return poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
data = TensorDataset(torch.randn(40, 4), torch.randn(40, 3))
loader = poptorch.DataLoader(opts, data, batch_size=8)
model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3))
inference_model = poptorch.inferenceModel(model, options=opts)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
criterion = nn.MSELoss()


def train():
    model.train()
    for x, y in loader:
        loss = training_model(x, y)
        print(loss.item())


def evaluate():
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            print(criterion((inference_model if len(x) == loader.batch_size else model)(x), y).item())


train()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
train()
evaluate()
state = torch.load("last.pt")
model.load_state_dict(state["model"])
if training_model.isCompiled():
    training_model.copyWeightsToDevice()
optimizer.load_state_dict(state["optimizer"])
evaluate()
train()
evaluate()
