"""The mode is set by other means than a statement of its own, and is not the same at each call."""

import poptorch
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        loss = F.mse_loss(self.model(x), y)
        return poptorch.identity_loss(loss, reduction="none")


def freeze(layer):
    if isinstance(layer, torch.nn.BatchNorm1d):
        layer.eval()


def score(model, data):
    with torch.no_grad():
        return F.mse_loss(model(data[:8][0]), data[:8][1]).item()


torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 3))
loader = poptorch.DataLoader(opts, data, batch_size=8)
layers = [torch.nn.Linear(4, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(), torch.nn.Linear(6, 3)]
model = torch.nn.Sequential(*layers)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)

for epoch in range(2):
    getattr(model, "train")()
    for x, y in loader:
        loss = training_model(x, y)
        print(loss.item())
    model.apply(freeze)
    torch.manual_seed(epoch)
    print("averages of training", score(model, data))
    for rows in range(1, 3 if model.eval() else 2):
        torch.manual_seed(epoch)
        print("in evaluation", rows, score(model, data))
