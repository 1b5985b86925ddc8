"""A class that has everything as attributes and a method for one step."""

import torch
from torch import nn


class Trainer:
    def __init__(self, config):
        self.config = config
        self.device = torch.device("cpu")
        self.net = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 4))
        self.net.to(self.device)
        self.criterion = nn.CrossEntropyLoss()
        self.opt = torch.optim.AdamW(self.net.parameters(), lr=config["lr"], weight_decay=0.1)

    def step(self, batch):
        x = batch["x"].to(self.device)
        y = batch["y"].to(self.device)
        self.opt.zero_grad()
        logits = self.net(x)
        loss = self.criterion(logits, y) + self.config["penalty"] * logits.pow(2).mean()
        loss.backward()
        self.opt.step()
        metrics = {"loss": loss.item(), "right": (logits.argmax(1) == y).sum().item()}
        return metrics

    def evaluate(self, batch):
        self.net.eval()
        with torch.no_grad():
            logits = self.net(batch["x"])
        self.net.train()
        return (logits.argmax(1) == batch["y"]).float().mean().item()


def main():
    torch.manual_seed(0)
    trainer = Trainer({"lr": 0.01, "penalty": 0.001})
    weights = torch.randn(6, 4)
    for number in range(20):
        x = torch.randn(16, 6)
        batch = {"x": x, "y": (x @ weights).argmax(1)}
        print(number, trainer.step(batch), trainer.evaluate(batch))


main()
