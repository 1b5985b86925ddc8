"""Train a little, export the model to a file, and go on in a new process without its source.

The second process has only the file. Both train on the same batches, and a table compares them.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch


class Adder(torch.nn.Module):
    """Learns to sum its inputs, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden, self.out = torch.nn.Linear(8, 32), torch.nn.Linear(32, 1)

    def forward(self, x, target):  # noqa: D102
        scores = self.out(F.dropout(torch.tanh(self.hidden(x)), 0.1))
        return scores, F.mse_loss(scores, target)


def train(model: poptorch.PoplarExecutor, steps: range) -> list[str]:
    """For each step its loss and the sum of its scores, with all digits."""
    batches = (torch.randn(16, 8, generator=torch.Generator().manual_seed(n)) for n in steps)
    results = [model(x, x.sum(1, keepdim=True)) for x in batches]
    return [f"{loss.item()!r} {scores.double().sum().item()!r}" for scores, loss in results]


def main(file: str | None) -> int:
    """Return 0 if both processes computed the same bits."""
    torch.set_num_threads(1)  # several threads may sum in another order
    if file:  # the new process
        print("\n".join(train(poptorch.load(file), range(5, 10))))
        return 0
    options, model = poptorch.Options().randomSeed(0), Adder()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.05)
    training = poptorch.trainingModel(model, options, optimizer)
    train(training, range(5))
    with tempfile.TemporaryDirectory() as folder:
        training.save(Path(folder) / "adder.poptorch")
        command = [sys.executable, __file__, f"{folder}/adder.poptorch"]
        printed = subprocess.check_output(command, text=True)
    continued, reloaded = train(training, range(5, 10)), printed.splitlines()
    print("step  loss here  loss in the new process  equal outputs")
    for step, (a, b) in enumerate(zip(continued, reloaded, strict=True), start=5):
        losses = f"{float(a.split()[0]):9.6f}  {float(b.split()[0]):23.6f}"
        print(f"{step:4}  {losses}  {'yes' if a == b else 'no'}")
    return 0 if continued == reloaded else 1


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", help="go on from this file, as the new process does")
    sys.exit(main(parser.parse_args().file))
