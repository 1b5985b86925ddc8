"""The model asks for its mode itself: dropout of a function, in training alone."""

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


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 3)

    def forward(self, x):
        return F.dropout(self.inner(x), 0.0, training=self.training) * (1 + self.training)


torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 3))
loader = poptorch.DataLoader(opts, data, batch_size=8)
model = Net()
inference_model = poptorch.inferenceModel(torch.nn.Sequential(model), options=opts)
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)

for epoch in range(2):
    model.train()
    for x, y in loader:
        loss = training_model(x, y)
        print(loss.item())
    model.eval()
    with torch.no_grad():
        for x, y in loader:
            print(F.mse_loss((inference_model if len(x) == loader.batch_size else model)(x), y).item())
