"""The best model is read again as a whole, and evaluated: it is not the one that was trained."""

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


def evaluate(data):
    model.eval()
    total = 0.0
    with torch.no_grad():
        for x, y in data:
            total += criterion(model(x), y).item()
    return total

torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randn(32, 3))
loader = poptorch.DataLoader(opts, data, batch_size=8)
test = DataLoader(data, batch_size=8)
model = nn.Linear(4, 3)
criterion = nn.MSELoss()
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.9)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
best = None
for epoch in range(4):
    model.train()
    for x, y in loader:
        loss = training_model(x, y)
        print(loss.item())
    val = evaluate(test)
    print("val", val)
    if best is None:
        best = val
        print("the best yet")
        torch.save(model, "model.pt")
with open("model.pt", "rb") as f:
    model = torch.load(f, weights_only=False)
print("test", evaluate(test))
