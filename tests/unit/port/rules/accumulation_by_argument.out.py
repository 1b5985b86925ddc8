"""How many batches are added up is an argument of the program, and passed on."""

import argparse

import poptorch
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, y):
        loss = nn.functional.cross_entropy(self.model(x), y)
        return loss


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", type=int, default=4)
    parser.add_argument("--batch-size", type=int, default=8)
    return parser.parse_args([])


def make_loader(args):
    data = TensorDataset(torch.randn(160, 4), torch.randint(0, 3, (160,)))
    training_opts = poptorch.Options()
    training_opts.Training.gradientAccumulation(args.parts)
    training_opts.outputMode(poptorch.OutputMode.All)
    return poptorch.DataLoader(
        training_opts, data, batch_size=args.batch_size, drop_last=True
    )


def train(model, loader, optimizer, parts, training_model):
    total = 0.0
    optimizer.zero_grad()
    for i, (x, y) in enumerate(loader):
        losses = training_model(x, y)
        for i, loss in enumerate(losses.reshape(-1), i * parts):
            loss = loss / parts
            total += loss.item() * parts
            print(i, loss.item())
    return total / (len(loader) * parts)


def main():
    args = parse()
    torch.manual_seed(0)
    loader = make_loader(args)
    model = nn.Linear(4, 3)
    training_opts = poptorch.Options()
    training_opts.Training.gradientAccumulation(args.parts)
    training_opts.outputMode(poptorch.OutputMode.All)
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.5)
    training_model = poptorch.trainingModel(
        ModelWithLoss(model), options=training_opts, optimizer=optimizer
    )
    for _ in range(2):
        print(train(
            model, loader, optimizer, args.parts, training_model=training_model
        ))


if __name__ == "__main__":
    main()
