"""The memory of one model in one setting, estimated and then measured; a child of ``fit.py``.

Measured is what the process takes of the machine while steps run, less what it takes without the
model: memory that no file backs, after three steps and after everything free has been given back,
minus the tensors that exist at that moment.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT), str(ROOT / "examples")]

from benchmarks.models import dense, encoder, gpt, pictures, recurrent, residual, unet  # noqa: E402

import poptorch  # noqa: E402 - after the path above, so that a checkout needs no installation
from abele import fit  # noqa: E402
from abele.arena import running  # noqa: E402
from abele.compile import build  # noqa: E402
from abele.program import Program  # noqa: E402
from abele.targets import get_target  # noqa: E402
from abele.targets.base import Target  # noqa: E402
from abele.targets.cpu.op_by_op.lowering import OpByOp  # noqa: E402

Made = tuple[nn.Module, Callable[[int], tuple[torch.Tensor, ...]]]
WAYS = ("interpreted", "op by op", "compiled")
_WARM, _STEPS = 2, 3
_TIMED_S, _MOST_STEPS = 1.5, 30


def _garments() -> Made:
    from garment_model import ClassificationModel

    return ClassificationModel().train(), pictures.batch


def _a21() -> Made:
    from benchmarks.models import cosmic

    return cosmic.a21(poptorch_loss), cosmic.batch


def poptorch_loss(loss: torch.Tensor) -> torch.Tensor:
    """Marks the loss of a network that has several of its kind."""
    return poptorch.identity_loss(loss, reduction="none")


def _large_pictures(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(size, 3, 96, 96), torch.randint(0, 10, (size,))


#: By name: the network with what makes its batches, and the rows of a micro-batch.
MODELS: dict[str, tuple[Callable[[], Made], int]] = {
    "introduction": (_garments, 2048),
    "resnet18-32": (lambda: (residual.ResNet18(), residual.batch), 64),
    "resnet18-96": (lambda: (residual.ResNet18(), _large_pictures), 12),
    "encoder-128": (lambda: (encoder.Transformer(128), encoder.batch), 48),
    "encoder-256": (lambda: (encoder.Transformer(256), encoder.batch), 16),
    "encoder-512": (lambda: (encoder.Transformer(512), encoder.batch), 6),
    "gpt": (lambda: (gpt.GPT(), gpt.batch), 96),
    "lstm": (lambda: (recurrent.Recurrent(), recurrent.batch), 256),
    "unet-16": (lambda: (unet.UNet(16), unet.batch), 3),
    "unet-32": (lambda: (unet.UNet(32), unet.batch), 2),
    "mlp": (lambda: (dense.Dense(), dense.batch), 8192),
    "a21": (_a21, 1),
}


class _Forced(OpByOp):
    def why(self, program: Program) -> str | None:
        """Take every program."""
        del program
        return "the benchmark asks for it"


def target_of(way: str) -> Target:
    """What runs programs in one of ``WAYS``."""
    if way == "interpreted":
        return get_target("reference")
    target = get_target("cpu")
    if way == "op by op":
        target.lowerings = (_Forced(),)
    return target


def main() -> int:
    """Print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", choices=MODELS)
    parser.add_argument("way", choices=WAYS)
    parser.add_argument("optimizer", choices=("sgd", "adam"), help="adam accumulates two batches")
    parser.add_argument("--threads", type=int, default=1)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(json.dumps(measured(options.model, options.way, options.optimizer)))
    return 0


def measured(name: str, way: str, optimizer: str) -> dict[str, Any]:
    """The estimate and the measurement of one model."""
    target = target_of(way)
    setattr(build, "choose_target", lambda: (target, True))  # noqa: B010 - a front-end asks it
    torch.manual_seed(0)
    make, rows = MODELS[name]
    module, batch = make()
    settings = poptorch.Options().startMode("wait").showCompilationProgressBar(False)
    count = 2 if optimizer == "adam" else 1
    settings.Training.gradientAccumulation(count)
    rule = _optimizer(module, optimizer)
    model = poptorch.trainingModel(module, settings, rule)
    inputs = batch(rows * count)
    started = time.perf_counter()
    answer = model.fit(*inputs, limit="1TiB").answer
    fit_s = time.perf_counter() - started
    model.compile(*inputs)
    for _ in range(_WARM):
        model(*inputs)
    share = _without_tensors()
    step_s = _step_s(lambda: model(*inputs))
    before = running.counts()
    peak = _peak(lambda: [model(*inputs) for _ in range(_STEPS)])
    return {
        "model": name,
        "way": way,
        "optimizer": optimizer,
        "lowerings": dict(answer.estimate.lowerings),
        "at places, in gaps, elsewhere": [
            then - earlier for earlier, then in zip(before, running.counts(), strict=True)
        ],
        "fit_s": round(fit_s, 2),
        "measured": peak - share,
        "estimate": answer.estimate.data()["bytes"],
        "parts": {
            part.role: [part.size.low, part.size.expected, part.size.high]
            for part in answer.estimate.peak.parts
        },
        "steady": _steady(answer.estimate),
        "share": share,
        "step_s": step_s,
    }


def _steady(estimate: fit.Estimate) -> dict[str, float]:
    """The estimate of what is measured: steps, not the start."""
    sizes = [moment.size for moment in estimate.moments if moment.name != "start"]
    return {
        "low": max(size.low for size in sizes),
        "expected": max(size.expected for size in sizes),
        "high": max(size.high for size in sizes),
    }


def _optimizer(module: nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "sgd":
        return poptorch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9)
    return poptorch.optim.Adam(module.parameters(), lr=1e-4)


def _step_s(step: Callable[[], Any]) -> float:
    """Seconds of the fastest step: others have work on this machine too."""
    times: list[float] = []
    while len(times) < _STEPS or (sum(times) < _TIMED_S and len(times) < _MOST_STEPS):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return min(times)


def _without_tensors() -> int:
    """Bytes that this process needs besides tensors."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for each in gc.get_objects()
        # Classes are compared by name: those of wrapped modules and of captures are not public.
        if issubclass(type(each), torch.Tensor)
        and type(each).__name__ != "FakeTensor"
        and each.device.type == "cpu"
    }
    return _status("RssAnon") - sum(storages.values()) - running.bytes_of_slabs()


def _peak(run: Callable[[], Any]) -> int:
    """The most memory that no file backs while something runs."""
    Path("/proc/self/clear_refs").write_text("5")
    run()
    return _status("VmHWM") - _status("RssFile") - _status("RssShmem")


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    match = re.search(rf"^{name}:\s*(\d+) kB", text, re.MULTILINE)
    assert match is not None, f"/proc/self/status has no {name}"
    return int(match[1]) * 1024


if __name__ == "__main__":
    sys.exit(main())
