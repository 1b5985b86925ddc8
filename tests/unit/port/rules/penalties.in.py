"""Terms of parameters, by a function, by a loop, of a layer; a weight that grows; a k of the file."""
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

strength = 1e-3


def penalty(model):
    return sum(p.abs().sum() for p in model.parameters())


def train(model, loader, optimizer, criterion):
    model.train()
    for x, y in loader:
        optimizer.zero_grad()
        loss = criterion(model(x), y)
        loss = loss + strength * penalty(model)
        reg = 0.0
        for name, p in model.named_parameters():
            if "weight" in name:
                reg = reg + p.pow(2).sum()
        loss = loss + 1e-2 * reg + 0.1 * model[2].bias.pow(2).sum()
        loss.backward()
        optimizer.step()
        print(loss.item())


torch.manual_seed(0)
data = TensorDataset(torch.randn(32, 4), torch.randint(0, 3, (32,)))
loader = DataLoader(data, batch_size=8)
model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
criterion = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 0.5]))
for epoch in range(3):
    train(model, loader, optimizer, criterion)
    strength *= 2
