"""A trainer that is given its optimizer, and whose step is a method: only its object has both."""

import torch
from torch import nn


class Trainer:
    def __init__(self, model, criterion, optimizer, scheduler, strength=0.1):
        self.model = model
        self.criterion = criterion
        self.optimizer = optimizer
        self.scheduler = scheduler
        self.strength = strength

    def training_step(self, batch):
        x, y = (each.float() for each in batch)
        out = self.model(x)
        return self.criterion(out, y) + self.strength * out.square().mean(), x.size(0)

    def fit(self, loader, epochs):
        for epoch in range(epochs):
            total = count = 0
            for batch in loader:
                self.optimizer.zero_grad()
                loss, rows = self.training_step(batch)
                loss.backward()
                self.optimizer.step()
                self.scheduler.step()
                total += loss.item() * rows
                count += rows
            print(epoch, total / count)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  # ABP401 modified
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    trainer = Trainer(model, nn.MSELoss(), optimizer, scheduler)
    rows = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    trainer.fit(torch.utils.data.DataLoader(rows, batch_size=8), 3)


main()
