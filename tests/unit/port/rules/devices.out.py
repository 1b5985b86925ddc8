"""Tensors are made on a device and moved there, some of them with another type."""

import poptorch
import torch
from torch import nn

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, noise, y):
        error = shares * (self.model(x) + noise - y) * steps
        loss = error.square().mean().float()
        return poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
shares = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
steps = torch.linspace(0.1, 0.8, 8).unsqueeze(1)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.2)
training_model = poptorch.trainingModel(
    ModelWithLoss(model), options=opts, optimizer=optimizer
)
for step in range(12):
    x = torch.randint(0, 5, (8, 4)).flip(1).to(torch.float32)
    y = torch.randn(8, 3).to(dtype=torch.float16)
    noise = 0.1 * torch.randn(8, 3)
    loss = training_model(x, noise, y)
    print(loss.item(), model[2].bias.detach().tolist())
torch.save(model.state_dict(), "devices.pt")
weights = torch.load("devices.pt", map_location="cpu", weights_only=True)
print(weights["0.bias"].sum().item())
