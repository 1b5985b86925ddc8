"""The memory and the time of one model in one setting, estimated and then measured.

Measured is what the process takes of the machine while steps run, less what it takes without the
model: memory that no file backs, after three steps and after everything free has been given back,
minus the tensors that exist at that moment. The results of a call are kept until there are new
ones, as a loop over batches does with its variables. What our kernels and libraries keep for
themselves is in that share. Time is that of the processor: others work here too.

Before the first step the kernel limits the process to what the estimate calls enough at most
(RLIMIT_DATA, with the address space that is not memory beside it): whoever asks for more is
refused. Libraries reserve address space for code, and the C library for what it gave back, which is
no memory until it is touched, so some is left for that; that it was not touched is what the
kernel's mark of the most memory in use says, which has to stay below the limit itself.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import re
import resource
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own convention

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT), str(ROOT / "examples")]

from benchmarks.models import (  # noqa: E402
    cosmic,
    dense,
    encoder,
    gpt,
    pictures,
    recurrent,
    residual,
    unet,
)

import poptorch  # noqa: E402 - after the path above, so that a checkout needs no installation
from abele import fit  # noqa: E402
from abele.arena import running  # noqa: E402
from abele.compilation import build  # noqa: E402
from abele.fit.run import PACKED, SCRATCH  # noqa: E402
from abele.program import Program  # noqa: E402
from abele.targets import get_target  # noqa: E402
from abele.targets.base import Target  # noqa: E402
from abele.targets.cpu.emitted.lowering import Emitted  # noqa: E402
from abele.targets.cpu.op_by_op.lowering import OpByOp  # noqa: E402
from cosmictagger.config.network import named  # noqa: E402
from cosmictagger.measures import Loss  # noqa: E402
from cosmictagger.models import LossInForward  # noqa: E402
from cosmictagger.models import build as build_network  # noqa: E402
from garment_model import ClassificationModel  # noqa: E402

Batch = tuple[torch.Tensor, ...]
Made = tuple[nn.Module, Callable[[int], Batch]]
WAYS = ("interpreted", "op by op", "compiled")
_WARM, _STEPS = 2, 3
# Short steps are repeated for so long: the fastest counts.
_LEAST_S = 0.4
# Address space that may be reserved after the limit was set, and not touched.
_UNTOUCHED = 128 * 2**20


class AutoEncoder(nn.Module):
    """Three strided convolutions, and three transposed ones back to the image."""

    def __init__(self):
        super().__init__()
        sizes = (3, 16, 32, 64)
        down = [nn.Conv2d(a, b, 3, 2, 1) for a, b in itertools.pairwise(sizes)]
        back = [nn.ConvTranspose2d(b, a, 2, 2) for a, b in itertools.pairwise(sizes)]
        self.layers = nn.ModuleList([*down, *back[::-1]])

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Images [B, 3, H, W] -> loss."""
        x = images
        for layer in self.layers[:-1]:
            x = F.relu(layer(x))
        return F.mse_loss(self.layers[-1](x), images)


class Separable(nn.Module):
    """Convolutions of each channel alone, then across channels (arXiv 1704.04861)."""

    def __init__(self):
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1)]
        for a, b, stride in ((32, 64, 1), (64, 128, 2), (128, 128, 1), (128, 256, 2)):
            layers += [nn.Conv2d(a, a, 3, stride, 1, groups=a, bias=False), nn.BatchNorm2d(a)]
            layers += [nn.ReLU(), nn.Conv2d(a, b, 1, bias=False), nn.BatchNorm2d(b), nn.ReLU()]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(256, 10)

    def forward(self, images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Images [B, 3, H, W], labels [B] -> loss."""
        return F.cross_entropy(self.head(self.layers(images).mean((2, 3))), labels)


class Gated(nn.Module):
    """One GRU and a linear layer on every state."""

    def __init__(self):
        super().__init__()
        self.gru, self.head = nn.GRU(32, 96, batch_first=True), nn.Linear(96, 10)

    def forward(self, sequences: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        """Sequences [B, steps, 32], labels [B] -> loss."""
        return F.cross_entropy(self.head(self.gru(sequences)[0]).mean(1), labels)


_TAGGER = {
    **cosmic.SMALL,
    "depth": 2,
    "blocks_per_layer": 1,
    "blocks_deepest_layer": 1,
    "blocks_final": 1,
}


def _tagger() -> Made:
    network = build_network(named("uresnet", **_TAGGER), cosmic.SMALL_SIZE)
    mark = lambda loss: poptorch.identity_loss(loss, reduction="none")  # noqa: E731
    module = LossInForward(network, Loss("focal"), mark)
    return module, lambda size: cosmic.batch(size, cosmic.SMALL_SIZE)


def _marked(size: int) -> Batch:
    """Images of 64 x 64 and a class for each of their elements."""
    return torch.randn(size, 3, 64, 64), torch.randint(0, 2, (size, 64, 64))


def _classes(*shape: int) -> Callable[[int], Batch]:
    return lambda size: (torch.randn(size, *shape), torch.randint(0, 10, (size,)))


#: By name: the network with what makes its batches, and the rows of a micro-batch. Steps take tens
#: of milliseconds, so that a cell takes seconds; activations are most of the memory all the same.
MODELS: dict[str, tuple[Callable[[], Made], int]] = {
    "introduction": (lambda: (ClassificationModel(), pictures.batch), 512),
    "mlp": (lambda: (dense.Dense(), dense.batch), 256),
    "lstm": (lambda: (recurrent.Recurrent(), _classes(24, recurrent.FEATURES)), 128),
    "gru": (lambda: (Gated(), _classes(16, 32)), 256),
    "gpt": (lambda: (gpt.GPT(), gpt.batch), 8),
    "encoder-128": (lambda: (encoder.Transformer(128), encoder.batch), 4),
    "encoder-256": (lambda: (encoder.Transformer(256), encoder.batch), 2),
    "autoencoder": (lambda: (AutoEncoder(), lambda n: (torch.randn(n, 3, 64, 64),)), 32),
    "separable": (lambda: (Separable(), _classes(3, 64, 64)), 8),
    "tagger": (_tagger, 2),
    "unet": (lambda: (unet.UNet(16), _marked), 4),
    "resnet18": (lambda: (residual.ResNet18(), residual.batch), 4),
}

#: By name: rows for one row, optimizer or none, batches in a call, and whether in half.
SETTINGS: dict[str, tuple[float, str, int, bool]] = {
    "sgd": (1, "sgd", 1, False),
    "adam, two batches": (1, "adam", 2, False),
    "rmsprop, twice the rows": (2, "rmsprop", 1, False),
    "half": (0.5, "sgd", 1, True),
    "inference": (2, "", 1, False),
    "inference, two batches": (1, "", 2, False),
}


class _OpByOp(OpByOp):
    def why(self, program: Program) -> str | None:
        """Take every program."""
        del program
        return "the benchmark asks for it"


class _Emitted(Emitted):
    def why(self, program: Program) -> str | None:
        """Take every program."""
        del program
        return "the benchmark asks for it"


def target_of(way: str) -> Target:
    """Return the target that runs programs in one of ``WAYS``."""
    if way == "interpreted":
        return get_target("reference")
    target = get_target("cpu")
    target.lowerings = (_OpByOp() if way == "op by op" else _Emitted(),)
    return target


def measured(name: str, way: str, setting: str, limited: bool) -> dict[str, Any]:
    """Return the estimate and the measurement of a model.

    Args:
        name: of ``MODELS``.
        way: of ``WAYS``.
        setting: of ``SETTINGS``.
        limited: the kernel refuses what is above the estimate.
    """
    model, inputs, answer, facts = _asked(name, way, setting)
    limit = round(answer.size.high) if limited else None
    if way == "compiled":  # the compiler is a process that would be limited too
        model.compile(*inputs)
    files = _limited(limit)
    if way != "compiled":
        model.compile(*inputs)
    kept: list[Any] = [None]  # as in a loop over batches: until there are new ones

    def step() -> None:
        kept[0] = model(*inputs)

    for _ in range(_WARM):
        step()
    most = _status("VmHWM") - files
    kept[0] = None  # a loss may have more memory than it touches
    share = _without_tensors()
    step()
    before = running.counts()
    peak = _peak(lambda: _several(step))
    most = max(most, peak)
    if limit is not None and most > limit:
        facts["refused"] = f"it took {most / 2**20:.1f} MiB"
    counts = [b - a for a, b in zip(before, running.counts(), strict=True)]
    return {
        "model": name,
        "way": way,
        "setting": setting,
        "measured": peak - share,
        "share": share,
        "at places, in gaps, elsewhere": counts,
        "limited": limited,
        "limit": limit,
        "most": most,
        **facts,
    }


def estimated(name: str, way: str, setting: str) -> dict[str, Any]:
    """Return the estimate of a model; arguments as of ``measured``."""
    return _asked(name, way, setting)[-1]


def _asked(
    name: str, way: str, setting: str
) -> tuple[Any, Sequence[torch.Tensor], fit.Answer, dict[str, Any]]:
    """Return a wrapped model, the arguments of a call, and the estimate."""
    target = target_of(way)
    setattr(build, "choose_target", lambda: (target, True))  # noqa: B010 - a front-end asks it
    torch.manual_seed(0)
    model, inputs = _wrapped(name, setting)
    started = time.process_time()
    answer = model.fit(*inputs, limit="1TiB").answer
    facts = {
        "estimate": _steady(answer.estimate),
        "fit_s": round(time.process_time() - started, 2),
    }
    return model, inputs, answer, facts


def _wrapped(name: str, setting: str) -> tuple[Any, Sequence[torch.Tensor]]:
    """Return a wrapped model and the arguments of a call."""
    factor, optimizer, count, half = SETTINGS[setting]
    make, rows = MODELS[name]
    module, batch = make()
    settings = poptorch.Options().startMode("wait").showCompilationProgressBar(False)
    inputs = batch(max(1, round(rows * factor)) * count)
    if half:
        module.half()
        inputs = tuple(each.half() if each.is_floating_point() else each for each in inputs)
    if not optimizer:
        settings.deviceIterations(count)
        return poptorch.inferenceModel(module.eval(), settings), inputs
    settings.Training.gradientAccumulation(count)
    rule = _optimizer(module.train(), optimizer)
    return poptorch.trainingModel(module, settings, rule), inputs


def _optimizer(module: nn.Module, name: str) -> torch.optim.Optimizer:
    if name == "sgd":
        return poptorch.optim.SGD(module.parameters(), lr=1e-4, momentum=0.9)
    make = poptorch.optim.Adam if name == "adam" else poptorch.optim.RMSprop
    return make(module.parameters(), lr=1e-4)


def _limited(size: int | None) -> int:
    """Limit the process's memory and reset its peak.

    Returns:
        Bytes of the mark that are files, which can be dropped.
    """
    if size is not None:
        beside = _status("VmData") - _status("RssAnon") + _UNTOUCHED
        _, most = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (size + beside, most))
    Path("/proc/self/clear_refs").write_text("5")
    return _status("RssFile") + _status("RssShmem")


def _steady(estimate: fit.Estimate) -> dict[str, float]:
    """Return the estimated memory of steps, without the start and kernels' own."""
    parts = (moment.parts for moment in estimate.moments if moment.name != "start")
    kept = (SCRATCH, PACKED)
    sizes = [
        fit.Interval.sum(part.size for part in each if part.role not in kept) for each in parts
    ]
    return {
        "low": max(size.low for size in sizes),
        "expected": max(size.expected for size in sizes),
        "high": max(size.high for size in sizes),
    }


def _several(step: Callable[[], Any]) -> None:
    """Run enough steps for the peak to show."""
    count, began = 0, time.process_time()
    while count < _STEPS or time.process_time() - began < _LEAST_S:
        step()
        count += 1


def _without_tensors() -> int:
    """Bytes that this process needs besides tensors."""
    gc.collect()
    storages = {
        each.untyped_storage().data_ptr(): each.untyped_storage().nbytes()
        for each in gc.get_objects()
        # Classes are compared by name: those of wrapped modules and of captures are not public.
        if issubclass(type(each), torch.Tensor)
        and type(each).__name__ != "FakeTensor"
        and each.device.type == "cpu"
    }
    ctypes.CDLL(None).malloc_trim(0)  # after the list of all objects, which is megabytes itself
    return _status("RssAnon") - sum(storages.values()) - running.bytes_of_slabs()


def _peak(run: Callable[[], Any]) -> int:
    """Return the peak of anonymous memory while a function runs."""
    Path("/proc/self/clear_refs").write_text("5")
    run()
    return _status("VmHWM") - _status("RssFile") - _status("RssShmem")


def _status(name: str) -> int:
    text = Path("/proc/self/status").read_text()
    match = re.search(rf"^{name}:\s*(\d+) kB", text, re.MULTILINE)
    assert match is not None, f"/proc/self/status has no {name}"
    return int(match[1]) * 1024
