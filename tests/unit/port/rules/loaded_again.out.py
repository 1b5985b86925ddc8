"""Weights are loaded again in one branch of several."""

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


data = TensorDataset(torch.randn(32, 4), torch.randn(32, 3))
loader = poptorch.DataLoader(opts, data, batch_size=8)
model = nn.Linear(4, 3)
criterion = nn.MSELoss()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
best = None
for epoch in range(4):
    for x, y in loader:
        loss = training_model(x, y)
    print(loss.item())
    if best is None:
        best = {name: value.clone() for name, value in model.state_dict().items()}
    elif epoch == 2:
        model.load_state_dict(best)
        if training_model.isCompiled():
            training_model.copyWeightsToDevice()
