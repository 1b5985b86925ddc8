"""A SambaFlow starter, a convolutional network whose loss is computed on the host.

python examples/samba_cnn.py compile -b 16 --pef-name cnn
python examples/samba_cnn.py test -b 16 --pef out/cnn/cnn.pef
python examples/samba_cnn.py run -b 16 --pef out/cnn/cnn.pef
python examples/samba_cnn.py measure-sections -b 16 --pef out/cnn/cnn.pef
"""

import argparse
import math

import torch
from torch import nn

import sambaflow.samba.utils as utils
from data import collate, load
from sambaflow import samba
from sambaflow.samba.utils.argparser import parse_app_args
from sambaflow.samba.utils.common import common_app_driver


def network() -> nn.Sequential:
    """Return scores [B, 10] of images [B, 1, 28, 28]."""
    return nn.Sequential(
        *(nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(8, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(16 * 7 * 7, 10)),
    )


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--samples", type=int, default=3200, help="pictures to train on")


def train(args: argparse.Namespace, model: nn.Module, optimizer, traced: tuple) -> None:
    datasets = load("datasets", "built-in", args.samples, args.samples // 8)
    options = {"batch_size": args.batch_size, "drop_last": True, "collate_fn": collate}
    loader = torch.utils.data.DataLoader(datasets.train, shuffle=True, **options)
    for step, (pictures, labels) in enumerate(loader):
        image = samba.from_torch_tensor(pictures, name="image", batch_dim=0)
        (output,) = samba.session.run((image,), traced, section_types=["fwd"])
        scores = samba.to_torch(output).requires_grad_()
        loss = nn.functional.cross_entropy(scores, labels)
        loss.backward()
        # A schedule is a learning rate that each run brings along.
        lr = args.lr * 0.5 * (1 + math.cos(math.pi * step / len(loader)))
        samba.session.run(
            (image,),
            traced,
            grad_of_outputs=[samba.from_torch_tensor(scores.grad)],
            section_types=["bckwd", "opt"],
            hyperparam_dict={"lr": lr},
        )
        if step % 50 == 0:
            print(f"Step [{step}/{len(loader)}], loss {loss:.4f}, lr {lr:.5f}")
    samba.session.to_cpu(model, optimizer)
    with torch.no_grad():
        hits = [model.eval()(x).argmax(1).eq(y)
                for x, y in torch.utils.data.DataLoader(datasets.test, **options)]  # fmt: skip
    print(f"Test accuracy {100 * torch.cat(hits).float().mean():.2f} %")


def main(argv=None) -> None:
    args = parse_app_args(argv, common_parser_fn=add_options)
    utils.set_seed(1)
    model = samba.from_torch_model_(network())
    inputs = (samba.randn(args.batch_size, 1, 28, 28, name="image", batch_dim=0),)
    optimizer = samba.optim.AdamW(model.parameters(), lr=0.0, betas=(0.9, 0.997), weight_decay=0)
    if args.command == "run":
        train(args, model, optimizer, utils.trace_graph(model, inputs, optimizer, pef=args.pef))
    else:
        common_app_driver(args, model, inputs, optimizer, name="cnn")


if __name__ == "__main__":
    main()
