"""A function trains where it is given an optimizer, and evaluates where it is given none."""

import torch
from torch.utils.data import DataLoader, TensorDataset

x = torch.randn(90, 4)
y = x.sum(1, keepdim=True)
train_loader = DataLoader(TensorDataset(x[:64], y[:64]), batch_size=8)  # ABP201 modified
val_loader = DataLoader(TensorDataset(x[64:], y[64:]), batch_size=16)  # ABP202 match


def run(model, loader, optimizer=None):
    training = optimizer is not None
    model.train(training)
    total = 0.0
    with torch.set_grad_enabled(training):
        for inputs, targets in loader:
            loss = torch.nn.functional.mse_loss(model(inputs), targets)  # ABP303 modified
            if training:
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            total += loss.item() * len(inputs)
    return total


model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    print(run(model, train_loader, optimizer), run(model, val_loader))
