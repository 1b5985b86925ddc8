"""Train and test a network through poptorch, on the device that it finds.

`pytorch_gpu.py` is the same program in plain PyTorch. What differs between the two files is what
porting takes; `docs/from_pytorch.md` explains it.
"""

import argparse
import json
from pathlib import Path

import torch
from tqdm import tqdm

import poptorch
from data import SOURCES, InMemoryImages, collate, load
from garment_model import GarmentNet


def smoothed_loss(scores: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return a mean loss that weighs the true class with 90 %, all ten with the rest."""
    true_scores = scores.gather(1, labels.unsqueeze(1)).squeeze(1)
    return -(0.9 * true_scores + 0.1 * scores.mean(dim=1)).mean()


class ModelWithLoss(torch.nn.Module):
    """Puts the loss into the forward pass of a model whose source we do not own."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor, labels: torch.Tensor | None = None):
        """Scores, [B, 10]; with labels also the loss."""
        scores = self.model(images)
        if labels is None:
            return scores
        # A loss that is not one of torch's own has to be marked as what training minimises.
        return scores, poptorch.identity_loss(smoothed_loss(scores, labels), reduction="sum")


def train(model: torch.nn.Module, dataset: InMemoryImages, opts, args) -> list[float]:
    """Train `model` in place; return the loss of every step."""
    loader = poptorch.DataLoader(
        opts,
        dataset,
        batch_size=16,
        shuffle=True,
        generator=torch.Generator().manual_seed(args.seed),
        collate_fn=collate,
    )
    model.train()
    optimizer = poptorch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9)
    training_model = poptorch.trainingModel(model, options=opts, optimizer=optimizer)
    losses = []
    for epoch in range(args.epochs):
        bar = tqdm(loader, desc=f"epoch {epoch + 1}")
        for images, labels in bar:
            if len(losses) == args.steps:
                break
            _, loss = training_model(images, labels)
            losses.append(loss.item())
            bar.set_postfix(loss=f"{losses[-1]:.3f}", refresh=False)
    training_model.detachFromDevice()
    return losses


def test(model: torch.nn.Module, dataset: InMemoryImages, opts) -> float:
    """Return the share of right answers."""
    loader = poptorch.DataLoader(
        opts,
        dataset,
        batch_size=16,
        collate_fn=collate,
    )
    model.eval()
    inference_model = poptorch.inferenceModel(model, options=opts)
    right = 0
    for images, labels in loader:
        scores = inference_model(images)
        right += int((scores.argmax(dim=1) == labels).sum())
    return right / (16 * len(loader))


def parse_arguments(argv=None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", default="datasets", type=Path, help="data directory")
    parser.add_argument("--source", default="auto", choices=SOURCES, help="which pictures")
    parser.add_argument("--epochs", default=5, type=int, help="times through the training set")
    parser.add_argument("--steps", type=int, help="stop after so many steps")
    parser.add_argument("--train-samples", type=int, help="use only so many training pictures")
    parser.add_argument("--test-samples", type=int, help="use only so many test pictures")
    parser.add_argument("--seed", default=42, type=int, help="of weights and order of the data")
    parser.add_argument("--losses", type=Path, help="write the loss of every step to a JSON file")
    return parser.parse_args(argv)


def main(argv=None) -> None:
    args = parse_arguments(argv)
    torch.manual_seed(args.seed)
    opts = poptorch.Options()
    datasets = load(args.data, args.source, args.train_samples, args.test_samples)
    model = ModelWithLoss(GarmentNet())
    losses = train(model, datasets.train, opts, args)
    print(f"Last training loss: {losses[-1]:.4f}")
    print(f"Test accuracy: {100 * test(model, datasets.test, opts):.2f} %")
    if args.losses:
        args.losses.write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
