"""A trainer whose backward() and step() are in methods of their own."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Trainer:
    def __init__(self, model, loader, grad_clip):
        self.model, self.loader, self.grad_clip = model, loader, grad_clip
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.steps = 0

    def compute_loss(self, x, y):
        return nn.functional.cross_entropy(self.model(x), y)

    def backward(self, loss):
        loss.backward()  # ABP302 modified

    def update(self):
        if self.grad_clip:  # ABP431 modified
            nn.utils.clip_grad_norm_(self.model.parameters(), self.grad_clip)
        self.optimizer.step()  # ABP302 modified
        self.scheduler.step()
        self.optimizer.zero_grad()

    def training_step(self, x, y):
        loss = self.compute_loss(x, y)
        self.backward(loss)
        self.update()
        self.steps += 1
        return loss

    def fit(self):
        self.model.train()
        for x, y in self.loader:
            print(self.training_step(x, y).item())


def main():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(48, 4), torch.randint(0, 3, (48,)))
    model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Linear(8, 3))
    Trainer(model, DataLoader(data, batch_size=8), 0.1).fit()


main()
