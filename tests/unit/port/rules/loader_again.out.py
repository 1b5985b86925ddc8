"""The name of a loader is given another one, of another size, after training."""

import poptorch
import torch
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, inputs, targets):
        loss = torch.nn.functional.mse_loss(self.model(inputs), targets)
        return loss


x = torch.randn(40, 4)
y = x.sum(1, keepdim=True)
loader = poptorch.DataLoader(opts, TensorDataset(x, y), batch_size=8)
model = torch.nn.Linear(4, 1)
inference_model = poptorch.inferenceModel(model, options=opts)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.01)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
for epoch in range(2):
    for inputs, targets in loader:
        loss = training_model(inputs, targets)
    print(loss.item())
loader = DataLoader(TensorDataset(x, y), batch_size=16)
with torch.no_grad():
    for inputs, targets in loader:
        print(torch.nn.functional.mse_loss((inference_model if len(inputs) == loader.batch_size else model)(inputs), targets).item())
