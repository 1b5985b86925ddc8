"""The rows of the tables: a model, its batch and its optimizer, each a whole training step."""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn

EAGER, COMPILE, ABELE, JAX = WAYS = ("eager", "torch.compile", "abele", "jax")
BACKEND = "backend=abele"  # torch.compile with abele's backend; no column of the table
DECORATOR = "abele.compile"  # the whole step, decorated; no column either


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """What one row measures.

    Attributes:
        name: on the command line and in records.
        title: in the table.
        batch: rows of a step's batch.
        module: of ``benchmarks.models``; its function ``batch(size)`` makes the inputs.
        model: makes the network from that module, with fresh weights of torch's random numbers.
        optimizer: class name in ``torch.optim`` and its arguments; None: forward only.
        inputs: the name of another function than ``batch``.
        twin: module of ``benchmarks.twins``; None where nobody wrote the network for JAX.
        loader: the batch comes from a data loader, a new one each step.
        mode_step: a step of an application that brings its own loop, by way; instead of ``model``.
        marks_loss: for abele the loss is marked, because forward has several of its kind.
        tolerance: how far the first losses may be from plain PyTorch's, relative.
    """

    name: str
    title: str
    batch: int
    module: str
    model: Callable[[Any], nn.Module] | None = None
    optimizer: tuple[str, Mapping[str, float]] | None = None
    inputs: str = "batch"
    twin: str | None = None
    loader: bool = False
    mode_step: Callable[[Any, str, int], Callable[[], torch.Tensor]] | None = None
    marks_loss: bool = False
    tolerance: float = 1e-3

    def load(self) -> Any:
        """Import the module; not before, because it may need extras."""
        return importlib.import_module(f"benchmarks.models.{self.module}")


_SGD = ("SGD", {"lr": 0.001, "momentum": 0.9})
_ADAM = ("Adam", {"lr": 0.001})
# A network with a hundred batch norms multiplies rounding, and Adam's first updates have the size
# of the rate whatever the gradient.
_DEEP = 2e-2


def _garments(_: Any) -> nn.Module:
    from garment_model import ClassificationModel

    return ClassificationModel().train()


def _introduction(batch: int, *, loader: bool = False) -> Row:
    return Row(
        name=f"introduction-{batch}{'-loader' * loader}",
        title=f"introduction, batch {batch}, SGD{', with its loader' * loader}",
        batch=batch,
        module="pictures",
        model=_garments,
        optimizer=_SGD,
        twin="introduction",
        loader=loader,
    )


def _cosmic_mode(module: Any, way: str, batch: int) -> Callable[[], torch.Tensor]:
    mode = "IPU" if way == ABELE else "CPU"
    return module.step_of_mode(mode, batch, compiled=way == COMPILE)


_NETWORKS = (
    Row(
        name="resnet18",
        title="ResNet-18, 32 x 32, batch 32, SGD",
        batch=32,
        module="residual",
        model=lambda module: module.ResNet18(),
        optimizer=_SGD,
    ),
    Row(
        name="transformer",
        title="encoder, 4 layers of 256, sequence 128, batch 8, Adam",
        batch=8,
        module="encoder",
        model=lambda module: module.Transformer(256),
        optimizer=_ADAM,
        twin="encoder",
    ),
    Row(
        name="gpt",
        title="GPT, 4 layers of 128, sequence 64, batch 12, AdamW",
        batch=12,
        module="gpt",
        model=lambda module: module.GPT(),
        optimizer=("AdamW", {"lr": 0.001, "weight_decay": 0.1}),
        twin="gpt",
    ),
    Row(
        name="lstm",
        title="LSTM, 64 steps of 128 units, batch 32, Adam",
        batch=32,
        module="recurrent",
        model=lambda module: module.Recurrent(),
        optimizer=_ADAM,
        twin="recurrent",
    ),
    Row(
        name="unet",
        title="U-Net, 16 channels, 256 x 256, batch 2, Adam",
        batch=2,
        module="unet",
        model=lambda module: module.UNet(),
        optimizer=_ADAM,
        tolerance=_DEEP,
    ),
    Row(
        name="mlp",
        title="MLP 784-1024-1024-1024-10, batch 64, Adam",
        batch=64,
        module="dense",
        model=lambda module: module.Dense(),
        optimizer=_ADAM,
        twin="dense",
    ),
)
_COSMIC = (
    Row(
        name="a21",
        title="CosmicTagger A21, 320 x 512, batch 2, Adam",
        batch=2,
        module="cosmic",
        model=lambda module: module.a21(),
        optimizer=("Adam", {"lr": 3e-4}),
        marks_loss=True,
        tolerance=_DEEP,
    ),
    Row(
        name="a21-inference",
        title="CosmicTagger A21, 320 x 512, batch 2, inference",
        batch=2,
        module="cosmic",
        model=lambda module: module.a21_alone(),
        inputs="images",
        tolerance=_DEEP,
    ),
    Row(
        name="cosmic-modes",
        title="CosmicTagger, small network, batch 4: IPU mode against CPU mode",
        batch=4,
        module="cosmic",
        mode_step=_cosmic_mode,
        optimizer=("Adam", {"lr": 3e-4}),
        tolerance=_DEEP,
    ),
)


def _images(name: str, title: str, batch: int, module: str, model: str) -> Row:
    title = f"{title}, 224 x 224, batch {batch}, SGD"
    return Row(
        name=name,
        title=title,
        batch=batch,
        module=module,
        model=lambda module: getattr(module, model)(),
        optimizer=_SGD,
        tolerance=_DEEP,
    )


def _text(name: str, title: str, batch: int, module: str, model: str, inputs: str) -> Row:
    return Row(
        name=name,
        title=f"{title}, batch {batch}, AdamW",
        batch=batch,
        module=module,
        model=lambda module: getattr(module, model)(),
        optimizer=("AdamW", {"lr": 1e-4, "weight_decay": 0.1}),
        inputs=inputs,
    )


_REAL = (
    _images("resnet50-224", "ResNet-50", 8, "bottlenecks", "resnet50"),
    _images("resnet18-224", "ResNet-18", 16, "bottlenecks", "resnet18"),
    _images("mobilenet-224", "MobileNetV2", 8, "separable", "mobilenet"),
    _images("vit-s", "ViT-S", 4, "vit", "ViT"),
    _text("gpt-384", "GPT, 6 layers of 384, sequence 256", 4, "gpt", "gpt384", "long_batch"),
    _text("bert-base", "BERT-base, sequence 128", 4, "encoder", "bert", "bert_batch"),
    _text("gpt2", "GPT-2 of 124M, sequence 256", 1, "gpt", "gpt2", "gpt2_batch"),
)
#: The rows of each table by name.
SETS: dict[str, dict[str, Row]] = {
    "table": {
        row.name: row
        for row in (
            *(_introduction(batch) for batch in (1, 4, 16, 64, 256)),
            _introduction(16, loader=True),
            *_NETWORKS,
            *_COSMIC,
        )
    },
    "real": {row.name: row for row in _REAL},
}
ROWS = SETS["table"] | SETS["real"]
#: Rows of the table that are measured with several numbers of threads, and this set's name.
THREADS = "threads"
SCALED = {
    name: ROWS[name]
    for name in ("introduction-16", "resnet18", "transformer", "lstm", "unet", "mlp")
}
