"""A trainer that is given its optimizer, and whose step is a method: only its object has both."""

import poptorch
import torch
from torch import nn

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model, training_step):
        super().__init__()
        self.model = model
        self.training_step = training_step

    def forward(self, batch):
        loss, rows = self.training_step(batch)
        return rows, poptorch.identity_loss(loss, reduction="none")


class Trainer:
    def __init__(self, model, criterion, optimizer, scheduler, strength=0.1):
        self.model = model
        self.criterion = criterion
        self.optimizer = optimizer
        self.training_model = poptorch.trainingModel(
            ModelWithLoss(self.model, self.training_step), options=opts, optimizer=self.optimizer
        )
        self.scheduler = scheduler
        self.strength = strength

    def training_step(self, batch):
        x, y = (each.float() for each in batch)
        out = self.model(x)
        return self.criterion(out, y) + self.strength * out.square().mean(), x.size(0)

    def fit(self, loader, epochs, optimizer_2):
        for epoch in range(epochs):
            total = count = 0
            for batch in loader:
                rows, loss = self.training_model(batch)
                self.scheduler.step()
                self.training_model.setOptimizer(optimizer_2)
                total += loss.item() * rows
                count += rows
            print(epoch, total / count)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.SiLU(), nn.Linear(8, 1))
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    trainer = Trainer(model, nn.MSELoss(), optimizer, scheduler)
    rows = torch.utils.data.TensorDataset(torch.randn(32, 4), torch.randn(32, 1))
    trainer.fit(poptorch.DataLoader(opts, rows, batch_size=8), 3, optimizer_2=optimizer)


main()
