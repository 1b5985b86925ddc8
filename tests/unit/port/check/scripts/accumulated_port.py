"""Gradients of a constant number of batches are accumulated."""

import argparse

import torch
from torch import nn
from torch.utils.data import TensorDataset

import poptorch

training_opts = poptorch.Options()
training_opts.Training.gradientAccumulation(4)
training_opts.outputMode(poptorch.OutputMode.All)


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        loss = nn.functional.cross_entropy(self.model(x), y)
        return loss


PARTS = 4


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=8)
    return parser.parse_args()


def make_loader(args):
    data = TensorDataset(torch.randn(160, 4), torch.randint(0, 3, (160,)))
    return poptorch.DataLoader(training_opts, data, batch_size=args.batch_size, drop_last=True)


def train(model, loader, optimizer, training_model):
    total = 0.0
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        losses = training_model(x, y)
        for k, loss in enumerate(losses, i * PARTS):
            loss = loss / PARTS
            total += loss.item() * PARTS
            print(k, loss.item())
    return total


def main():
    args = parse()
    torch.manual_seed(0)
    loader = make_loader(args)
    model = nn.Linear(4, 3)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5)
    training_model = poptorch.trainingModel(
        ModelWithLoss(model), options=training_opts, optimizer=optimizer
    )
    for _ in range(2):
        print(train(model, loader, optimizer, training_model=training_model))


if __name__ == "__main__":
    main()
