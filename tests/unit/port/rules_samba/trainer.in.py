"""A class whose method is a step, with weights that it begins with."""

import torch
from torch import nn


def build(size):
    net = nn.Linear(4, size)
    return net, torch.optim.RMSprop(net.parameters(), lr=0.05)  # ABP2402 match


class Trainer:
    def __init__(self, penalty):
        self.penalty = penalty
        self.net, self.optimizer = build(3)  # ABP2301 modified

    def step(self, x, y):
        self.optimizer.zero_grad()
        out = self.net(x)
        error = (out - y).abs()
        loss = error.mean() + self.penalty * out.square().mean()
        loss.backward()
        self.optimizer.step()  # ABP2302 modified
        return loss.item(), error.sum().item()


torch.manual_seed(0)
trainer = Trainer(0.1)
trainer.net.load_state_dict({"weight": torch.ones(3, 4), "bias": torch.zeros(3)})  # ABP2503 match
for step in range(6):
    if step == 3:
        trainer.optimizer.param_groups[0]["lr"] = 0.001  # ABP2304 match
    print(trainer.step(torch.randn(8, 4), torch.randn(8, 3)))
    if step == 20:
        torch.save(trainer.net, "whole.pt")  # ABP2504 manual
        trainer.net.load_state_dict(torch.load("other.pt"))  # ABP2503 manual
    print(trainer.net.weight.sum().item())
