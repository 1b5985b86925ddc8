"""Backward of a convolution by Winograd's way in a process of its own; prints what memory it took.

``python winograd_memory.py CHANNELS PIXELS THREADS`` prints bytes: measured, and as planned.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import torch

from abele.kernels.convolutions import WINOGRAD, Convolution
from helpers.kernel_library import conv_backward, kernels

LAST = torch.channels_last


def main() -> None:
    """Measure after a call for one channel, so that threads and results are there."""
    channels, pixels, threads = map(int, sys.argv[1:])
    torch.set_num_threads(threads)
    library, images = kernels(), (32, channels, pixels, pixels)
    grad, x = (torch.randn(images).contiguous(memory_format=LAST) for _ in range(2))
    weight = torch.randn(channels, channels, 3, 3)
    wanted = True, True, False

    def run(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor) -> None:
        how = {"layout": LAST, "threads": threads, "function": "winograd"}
        conv_backward(library, grad, x, weight, (1, 1), (1, 1), wanted, **how)

    run(
        grad[:, :1].contiguous(memory_format=LAST),
        x[:, :1].contiguous(memory_format=LAST),
        weight[:1, :1].contiguous(),
    )
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts at what is resident now
    before = _resident_bytes("VmRSS")
    run(grad, x, weight)
    results = x.nbytes + weight.nbytes
    described = Convolution(
        image=x,
        weight=weight,
        stride=(1, 1),
        padding=(1, 1),
        dilation=(1, 1),
        transposed=False,
        output_padding=(0, 0),
        groups=1,
        slope=1.0,
        backward=True,
    )
    print(_resident_bytes("VmHWM") - before - results, WINOGRAD.scratch(described))


def _resident_bytes(name: str) -> int:
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.findall(rf"{name}:\s*(\d+) kB", status)[0])


if __name__ == "__main__":
    main()
