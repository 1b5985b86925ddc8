"""An object gets its optimizer before its loss, and a function returns numbers among tensors."""

import poptorch
import torch

opts = poptorch.Options()


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, network, loss):
        super().__init__()
        self.network = network
        self.loss = loss

    def forward(self, mixture, share, first, second):
        out = self.network(mixture)
        loss = share * self.loss(out, first) + (1 - share) * self.loss(out, second)
        return poptorch.identity_loss(loss, reduction="none")


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
        self.training_model = poptorch.trainingModel(
            ModelWithLoss(self.network, self.loss), options=opts, optimizer=self.optimizer
        )

    def fit(self, x, y, epochs):
        for _ in range(epochs):
            mixture, first, second, share = mixed(x, y)
            loss = self.training_model(mixture, torch.as_tensor(share), first, second)
            print(loss.item(), share)


network = torch.nn.Linear(4, 3)
learner = Learner(network)
learner.compile(poptorch.optim.SGD(network.parameters(), lr=0.1), torch.nn.CrossEntropyLoss())
learner.fit(torch.randn(8, 4), torch.randint(0, 3, (8,)), 3)
