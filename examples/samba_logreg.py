"""A SambaFlow starter, logistic regression: the loss in forward, one call per step.

python examples/samba_logreg.py compile --pef-name logreg
python examples/samba_logreg.py test --pef out/logreg/logreg.pef
python examples/samba_logreg.py run --pef out/logreg/logreg.pef
python examples/samba_logreg.py measure-performance --pef out/logreg/logreg.pef --json speed.json
"""

import argparse

import torch

import sambaflow.samba.utils as utils
from data import collate, load
from sambaflow import samba
from sambaflow.samba.utils.argparser import parse_app_args
from sambaflow.samba.utils.common import common_app_driver


class LogReg(torch.nn.Module):
    """One dense layer; returns the loss and the scores of ten classes."""

    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(28 * 28, 10)
        self.criterion = torch.nn.CrossEntropyLoss()

    def forward(self, images, labels):
        """Return the mean loss, and scores [B, 10] of images [B, 784]."""
        scores = self.layer(images)
        return self.criterion(scores, labels), scores


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("-e", "--num-epochs", type=int, default=2)
    parser.add_argument("--samples", type=int, default=3200, help="pictures to train on")


def train(args: argparse.Namespace, model: LogReg, traced: tuple) -> None:
    datasets = load("datasets", "built-in", args.samples, args.samples // 8)
    options = {"batch_size": args.batch_size, "drop_last": True, "collate_fn": collate}
    loader = samba.SambaLoader(
        torch.utils.data.DataLoader(datasets.train, shuffle=True, **options),
        ["images", "labels"],
        function_hook=lambda batch: [batch[0].flatten(1), batch[1]],
    )
    hyperparameters = {"lr": args.lr, "momentum": args.momentum}
    for epoch in range(args.num_epochs):
        losses = []
        for batch in loader:
            # Forward, backward and update on the device.
            loss, _ = samba.session.run(batch, traced, hyperparam_dict=hyperparameters)
            losses.append(samba.to_torch(loss))
        samba.session.to_cpu(model)
        hits = [model.layer(x.flatten(1)).argmax(1).eq(y)
                for x, y in torch.utils.data.DataLoader(datasets.test, **options)]  # fmt: skip
        print(f"Epoch [{epoch + 1}/{args.num_epochs}], loss {torch.stack(losses).mean():.4f}, "
              f"test accuracy {100 * torch.cat(hits).float().mean():.2f} %")  # fmt: skip


def main(argv=None) -> None:
    args = parse_app_args(argv, common_parser_fn=add_options)
    utils.set_seed(1)
    model = LogReg()
    samba.from_torch_model_(model)
    images = samba.randn(args.batch_size, 28 * 28, name="images", batch_dim=0)
    labels = samba.randint(10, (args.batch_size,), name="labels", batch_dim=0)
    optimizer = samba.optim.SGD(model.parameters(), lr=args.lr, momentum=args.momentum)
    if args.command == "run":
        train(args, model, utils.trace_graph(model, (images, labels), optimizer, pef=args.pef))
    else:
        common_app_driver(args, model, (images, labels), optimizer, name="logreg")


if __name__ == "__main__":
    main()
