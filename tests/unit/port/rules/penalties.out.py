"""Terms of parameters, by a function, by a loop, of a layer; a weight that grows; a k of the file."""
import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model, criterion):
        super().__init__()
        self.model = model
        self.criterion = criterion

    def forward(self, x, y, strength, reg):
        loss = self.criterion(self.model(x), y)
        loss = loss + strength * penalty(self.model)
        for name, p in self.model.named_parameters():
            if "weight" in name:
                reg = reg + p.pow(2).sum()
        loss = loss + 1e-2 * reg + 0.1 * self.model[2].bias.pow(2).sum()
        return poptorch.identity_loss(loss, reduction="none")


strength = 1e-3


def penalty(model):
    return sum(p.abs().sum() for p in model.parameters())


def train(model, loader, optimizer, criterion):
    model.train()
    for x, y in loader:
        reg = 0.0
        loss = training_model(x, y, torch.as_tensor(strength), reg)
        print(loss.item())


torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,)))
loader = poptorch.DataLoader(opts, data, batch_size=8)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))
training_model = poptorch.trainingModel(
    ModelWithLoss(model, criterion), options=opts, optimizer=optimizer
)
for epoch in range(3):
    train(model, loader, optimizer, criterion)
    strength *= 2
