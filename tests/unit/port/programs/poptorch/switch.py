"""A trainer that also trains without PopTorch."""

try:
    import poptorch
except ImportError:
    pass

import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, x, loss_calculator=None, labels=None):
        x = self.layer(x)
        if loss_calculator is not None:
            loss = loss_calculator(labels, x)
            loss = poptorch.identity_loss(loss, reduction="mean")
            return x, labels, loss
        return x


class Trainer:
    def __init__(self, wrapped):
        self.wrapped = wrapped
        self.net = Net()
        self.optimizer = torch.optim.Adam(self.net.parameters(), 0.1)
        if self.wrapped:
            self.net = poptorch.trainingModel(
                self.net, poptorch.Options(), optimizer=self.optimizer
            )

    def loss_calculator(self, labels, scores):
        return (scores - labels).square().mean()

    def step(self, x, y):
        if self.wrapped:
            scores, y, loss = self.net(x, self.loss_calculator, y)
        else:
            self.optimizer.zero_grad()
            scores = self.net(x)
            loss = self.loss_calculator(y, scores)
            loss.backward()
            self.optimizer.step()
        return loss.item(), scores.sum().item(), y.sum().item()


torch.manual_seed(0)
for trainer in (Trainer(True), Trainer(False)):
    for step in range(4):
        print(trainer.step(torch.ones(8, 4), torch.ones(8, 3)))
