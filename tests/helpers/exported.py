"""Models for tests of exported files, and reading such a file in a process of its own."""

import json
from collections import namedtuple
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

from helpers.warm_python import run_program

Pair = namedtuple("Pair", "loss scores")


class Everything(torch.nn.Module):
    """Dropout, batch norm, a counter, a buffer that is not saved, and a tied, a frozen weight."""

    calls: torch.Tensor
    scale: torch.Tensor

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 4)
        self.norm = torch.nn.BatchNorm1d(4)
        self.out = torch.nn.Linear(4, 4)
        self.out.weight = self.fc.weight
        self.last = torch.nn.ModuleList([torch.nn.Linear(4, 3)])
        self.last[0].bias.requires_grad_(False)
        self.register_buffer("calls", torch.zeros(()))
        self.register_buffer("scale", torch.tensor(0.5), persistent=False)

    def forward(self, x, target=None):
        self.calls.add_(1)
        x = F.dropout(self.norm(self.fc(x)), 0.3, self.training)
        scores = self.last[0](torch.tanh(self.out(x))) * self.scale
        return scores if target is None else (F.mse_loss(scores, target), scores)


def everything(seed: int = 2) -> Everything:
    """The same weights for the same seed."""
    torch.manual_seed(seed)
    return Everything()


READER = """
import json, sys, torch, poptorch
from helpers.wrapping import rows
torch.set_num_threads(1)  # as in the tests: sums of several threads round differently
wrapped = poptorch.load(sys.argv[1])
losses = [wrapped(*rows(8, seed))[0].item() for seed in (11, 12, 13)]
torch.save(wrapped.state_dict(), sys.argv[2])
print(json.dumps({"losses": losses, "known": "helpers.exported" in sys.modules}))
"""


def continued_elsewhere(file: Path, weights: Path) -> dict:
    """Three more calls of the exported model in a new process that does not know its class."""
    done = run_program("-W", "error", "-c", READER, file, weights)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])
