"""A function trains a model, shows what it answers meanwhile, and returns it under its old name."""

import torch


def train(model, optimizer, x, y):
    for _ in range(3):
        optimizer.zero_grad()
        loss = torch.nn.functional.mse_loss(model(x), y)  # ABP303 modified
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            print(model(x).mean().item())
    return model


x, y = torch.randn(8, 4), torch.randn(8, 1)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model = train(model, optimizer, x, y)
