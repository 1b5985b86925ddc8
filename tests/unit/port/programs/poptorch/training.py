"""Functions are given options; the loss is in the model."""

import poptorch
import torch
from torch import nn
from torch.utils.data import TensorDataset


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
        self.loss = nn.CrossEntropyLoss()

    def forward(self, x, labels=None):
        x = self.layers(x)
        if self.training:
            return x, self.loss(x, labels)
        return x


def train(model, opts, data):
    loader = poptorch.DataLoader(opts, data, batch_size=8, shuffle=True)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    training_model = poptorch.trainingModel(model, opts, optimizer)
    training_model.compile(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long))
    for epoch in range(3):
        total = 0.0
        for x, y in loader:
            scores, loss = training_model(x, y)
            total += loss
        print(epoch, total / len(loader), scores.argmax(1).tolist())
        scheduler.step()
        training_model.setOptimizer(optimizer)
    training_model.detachFromDevice()


def test(model, opts, data):
    loader = poptorch.DataLoader(opts, data, batch_size=8)
    inference_model = poptorch.inferenceModel(model.eval(), opts)
    for x, y in loader:
        print(inference_model(x).argmax(1).eq(y).sum().item())


def main():
    opts = poptorch.Options()
    opts.modelName("net")
    opts.randomSeed(3)
    data = TensorDataset(torch.randn(44, 4), torch.randint(0, 3, (44,)))
    model = Net()
    train(model, opts, data)
    test(model, opts=opts, data=data)


if __name__ == "__main__":
    main()
