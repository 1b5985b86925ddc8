"""Logistic regression with options, in functions."""

import argparse

from sambaflow import samba
import torch
from torch.utils.data import DataLoader, TensorDataset


class ModelWithLoss(torch.nn.Module):
    """Computes the loss together with the model: a program contains both."""

    def __init__(self, model, criterion):
        super().__init__()
        self.model = model
        self.criterion = criterion

    def forward(self, images, labels):
        scores = self.model(images)
        loss = self.criterion(scores, labels)
        return scores, loss


def traced(model, inputs, optimizer):
    """The outputs of the program of a model, which its first batch compiles and loads."""
    if getattr(model, "output_tensors", None) is None:
        pef = samba.session.compile(model, inputs, optimizer, name="logreg", loss_indices=[1])
        samba.utils.trace_graph(model, inputs, optimizer, pef=pef, loss_indices=[1])
    return model.output_tensors


class LogReg(torch.nn.Module):
    """One dense layer."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(16, 4)

    def forward(self, images):
        return self.layer(images.flatten(1))


def parse_arguments(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--epochs", type=int, default=3)
    return parser.parse_args(argv)


def test(model, loader):
    hits = [model(x).argmax(1).eq(y) for x, y in loader]
    return torch.cat(hits).float().mean().item()


def main():
    args = parse_arguments([])
    torch.manual_seed(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    x = torch.randn(64, 4, 4)
    data = TensorDataset(x, x.flatten(1)[:, :4].argmax(1))
    loader = DataLoader(data, batch_size=8, shuffle=True)
    model = LogReg()
    criterion = torch.nn.CrossEntropyLoss()
    training_model = samba.from_torch_model_(ModelWithLoss(model, criterion))
    optimizer = samba.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    for epoch in range(args.epochs):
        for images, labels in loader:
            inputs = (
                samba.from_torch_tensor(images, name="images", batch_dim=0),
                samba.from_torch_tensor(labels, name="labels", batch_dim=0),
            )
            scores, loss = map(
                samba.to_torch,
                samba.session.run(
                    inputs,
                    traced(training_model, inputs, optimizer),
                    section_types=["fwd", "bckwd", "opt"],
                ),
            )
            print(loss.item(), scores.argmax(1).tolist())
        samba.session.to_cpu(training_model)
        print(epoch, test(model, DataLoader(data, batch_size=16)))


if __name__ == "__main__":
    main()
