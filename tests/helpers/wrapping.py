"""What tests of wrapped models share: quiet options, a small model, and plain PyTorch beside it."""

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - torch's own convention

import poptorch
from helpers.runs import HalfProductsInFloat32


def options(**settings: Any) -> poptorch.Options:
    """Options without a progress bar; each setting is a setter and its argument or arguments."""
    made = poptorch.Options().showCompilationProgressBar(False)
    for name, value in settings.items():
        values = value if isinstance(value, tuple) else (value,)
        holders = (made.Training, made.Precision, made)
        holder = next(each for each in holders if hasattr(type(each), name))
        getattr(holder, name)(*values)
    return made


class Scorer(torch.nn.Module):
    """A dense layer with a squared error; returns loss and scores."""

    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(4, 3)

    def forward(self, x, target):
        scores = self.fc(x)
        return F.mse_loss(scores, target), scores


class Calls(torch.nn.Module):
    """A model whose forward is a function of itself and the inputs; one scalar weight."""

    def __init__(self, forward: Callable):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(2.0))
        self._function = forward

    def forward(self, *args, **kwargs):
        return self._function(self, *args, **kwargs)


def scorer(seed: int = 0) -> Scorer:
    """The same weights for the same seed."""
    torch.manual_seed(seed)
    return Scorer()


def rows(count: int, seed: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and targets for a Scorer."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 4, generator=generator), torch.randn(count, 3, generator=generator)


def sgd(model: torch.nn.Module, lr: float = 0.1, **settings: Any) -> torch.optim.SGD:
    """Torch's own SGD over all parameters."""
    return torch.optim.SGD(model.parameters(), lr=lr, **settings)


def trainer(model: torch.nn.Module, optimizer: Any = None, **settings: Any):
    """A training wrapper with quiet options; SGD unless told otherwise."""
    return poptorch.trainingModel(model, options(**settings), optimizer or sgd(model))


def inference(function: Callable, **settings: Any):
    """An inference wrapper around a forward function of the inputs alone."""
    return poptorch.inferenceModel(
        Calls(lambda self, *a, **k: function(*a, **k)), options(**settings)
    )


def running(optimizer_of: Callable):
    """A scorer that a wrapper has trained once: the wrapper, the model and its optimizer."""
    model = scorer()
    optimizer = optimizer_of(model)
    wrapped = poptorch.trainingModel(model, options(), optimizer)
    wrapped(*rows(4))
    return wrapped, model, optimizer


def weights(model: torch.nn.Module) -> torch.Tensor:
    """All parameters in one vector."""
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def plain_steps(
    model: Scorer, optimizer: torch.optim.Optimizer, batches: Sequence, sum_gradients: bool = False
) -> list[torch.Tensor]:
    """Plain PyTorch: one update per entry, whose loss is averaged over its micro-batches."""
    losses = []
    for micro_batches in batches:
        optimizer.zero_grad()
        for x, target in micro_batches:
            loss = model(x, target)[0]
            (loss if sum_gradients else loss / len(micro_batches)).backward()
            losses.append(loss.detach())
        optimizer.step()
    return losses


def trains_like_eager(
    model: torch.nn.Module,
    batches: Iterable[Sequence],
    optimizer_of: Callable = sgd,
    rtol: float | None = 0.0,
    atol: float | None = 0.0,
) -> None:
    """Train a wrapped model beside plain PyTorch, and compare results, then all state.

    Args:
        model: its only or first result is the loss.
        batches: the arguments of each step.
        optimizer_of: makes the optimizer of a model.
        rtol: as of ``assert_close``; bits have to be the same by default.
        atol: likewise.
    """
    plain = copy.deepcopy(model)
    optimizer, wrapped = optimizer_of(plain), trainer(model, optimizer_of(model))
    for batch in batches:
        optimizer.zero_grad()
        with HalfProductsInFloat32():
            expected = plain(*copy.deepcopy(batch))  # forward may write to its inputs
            several = isinstance(expected, tuple)
            (expected[0] if several else expected).backward()
        optimizer.step()
        wanted = tuple(x.detach() for x in expected) if several else expected.detach()
        torch.testing.assert_close(wrapped(*batch), wanted, rtol=rtol, atol=atol)
    torch.testing.assert_close(
        dict(model.state_dict()), dict(plain.state_dict()), rtol=rtol, atol=atol
    )
