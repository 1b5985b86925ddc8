"""Run as a program: trains a deep model and says how far its memory grew; also that model."""

import argparse
import ctypes
import gc
import hashlib
import json
from pathlib import Path

import torch

from abele.ops.checkpoint import checkpoint

WIDTH, BLOCKS, LAYERS = 128, 4, 5
# Parameters of the C library, by their numbers there.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3


class DeepNetwork(torch.nn.Module):
    """Blocks of dense layers whose activations are large next to the weights."""

    def __init__(self, checkpoints: bool):
        super().__init__()
        self.checkpoints = checkpoints
        torch.manual_seed(0)
        self.blocks = torch.nn.ModuleList(
            torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
            for _ in range(BLOCKS)
        )

    def forward(self, x, target):
        for block in self.blocks:
            for layer in block:
                x = torch.tanh(torch.nn.functional.gelu(layer(x)))
            if self.checkpoints:
                x = checkpoint(x)
        return torch.nn.functional.mse_loss(x, target)


def batch(rows: int) -> list[torch.Tensor]:
    """Inputs and targets."""
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(rows, WIDTH, generator=generator) for _ in range(2)]


def _resident_bytes(kind: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith(kind))


def main() -> None:
    from helpers.runs import rule_for, run, started

    parser = argparse.ArgumentParser()
    parser.add_argument("--checkpoints", action="store_true")
    parser.add_argument("--target", required=True)
    parser.add_argument("--rows", type=int, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    # Blocks that go back to the system when they are freed: else the peak is the allocator's.
    for parameter in (TRIM_THRESHOLD, MMAP_THRESHOLD):
        assert ctypes.CDLL(None).mallopt(parameter, 65536) == 1
    model, data = DeepNetwork(arguments.checkpoints), batch(arguments.rows)
    session, _ = started(model, data, rule_for(model), target=arguments.target)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts at what is resident now
    before = _resident_bytes("VmRSS")
    trained = run(session, [data] * 2)
    digest = hashlib.sha256()
    for _, value in sorted(trained.tensors().items()):
        digest.update(value.numpy().tobytes())
    grown = _resident_bytes("VmHWM") - before
    print(json.dumps({"grown": grown, "activation": data[0].nbytes, "bits": digest.hexdigest()}))


if __name__ == "__main__":
    main()
