"""The model is called in training mode and in the other: dropout is on in one of them."""

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
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, x):
        return self.drop(self.inner(x))


def score(model, data):
    with torch.no_grad():
        return F.mse_loss(model(data[:][0]), data[:][1]).item()


torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 3))
loader = poptorch.DataLoader(opts, data, batch_size=8)
model = Net()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)

for epoch in range(2):
    model.train()
    for x, y in loader:
        loss = training_model(x, y)
        print(loss.item())
    torch.manual_seed(epoch)
    print("with dropout", score(model, data), score(model, data))
    model.eval()
    print("without", score(model, data), score(model, data))
