"""Kill a training, start the same command again, and get the weights of an undisturbed run.

poprun starts it again by itself: `poprun --max-restarts 3 python examples/resume.py FOLDER`.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention
from torch.utils.data import TensorDataset

import popdist.poptorch
import poptorch
from popdist.checkpoint import Checkpointer


class Regression(torch.nn.Sequential):
    """Two layers, with dropout between them."""

    def forward(self, x, y):  # noqa: D102
        return F.mse_loss(super().forward(x), y)


def train(folder: Path) -> torch.Tensor:
    """Ten epochs of twenty steps, or what is left of them; returns the last weights."""
    torch.manual_seed(0)
    x = torch.randn(160, 8)
    options = popdist.poptorch.Options().randomSeed(1).showCompilationProgressBar(False)
    loader = poptorch.DataLoader(options, TensorDataset(x, x.sum(1, True)), 8, shuffle=True)
    model = Regression(torch.nn.Linear(8, 16), torch.nn.Dropout(0.1), torch.nn.Linear(16, 1))
    optimizer = poptorch.optim.Adam(model.parameters(), lr=0.01)
    training = poptorch.trainingModel(model, options, optimizer)
    run = Checkpointer(folder, model=training, optimizer=optimizer, loader=loader, every=5)
    for _ in run.epochs(10):
        for batch in run.batches():
            training(*batch)
    return torch.cat([value.flatten() for value in model.state_dict().values()])


if __name__ == "__main__":
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="train with checkpoints in here")
    if chosen := parser.parse_args().folder:
        train(chosen)
        sys.exit()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        killed = subprocess.Popen([sys.executable, __file__, folder / "killed"])
        while not list(folder.glob("killed/*.ckpt")) and killed.poll() is None:
            time.sleep(0.01)
        time.sleep(random.uniform(0, 0.3))
        killed.kill()
        print("killed; it had saved", *sorted(p.stem for p in folder.glob("killed/*.ckpt")))
        again, undisturbed = train(folder / "killed"), train(folder / "undisturbed")
        print("equal weights:", "yes" if torch.equal(again, undisturbed) else "no")
