"""An object gets its optimizer before its loss, and a function returns numbers among tensors."""

import torch


def mixed(x, y):
    share = int(torch.randint(1, 4, (1,))) / 4
    other = x.flip(0)
    return share * x + (1 - share) * other, y, y.flip(0), share


class Learner:
    def __init__(self, network):
        self.network = network

    def compile(self, optimizer, loss):
        self.optimizer = optimizer
        self.loss = loss

    def fit(self, x, y, epochs):
        for _ in range(epochs):
            mixture, first, second, share = mixed(x, y)
            out = self.network(mixture)
            loss = share * self.loss(out, first) + (1 - share) * self.loss(out, second)  # ABP314 modified
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            print(loss.item(), share)


network = torch.nn.Linear(4, 3)
learner = Learner(network)
learner.compile(torch.optim.SGD(network.parameters(), lr=0.1), torch.nn.CrossEntropyLoss())
learner.fit(torch.randn(8, 4), torch.randint(0, 3, (8,)), 3)
